//! The prefix cache as a caller sees it: the same bits as without it, and honest numbers.

use std::collections::HashMap;
use std::path::Path;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_engine::{
    Engine, ErrorKind, GenerateRequest, Level, LoadOptions, LogitRows, Relief, SamplingParams, Segment, SeqId,
};
use ruvllm_testkit::{Golden, real_model};

const N_SEQ: usize = 4;

fn open(path: &Path, n_ctx: usize, prefix_cache: bool) -> Engine {
    let options =
        LoadOptions { n_threads: 2, n_ctx: Some(n_ctx), n_seq_max: N_SEQ, prefix_cache, ..LoadOptions::default() };
    Engine::load(path, &options, &mut |_| {}).expect("it loads")
}

/// Computes `tokens` and returns the bits of the last row's logits.
fn forward(engine: &mut Engine, seq: SeqId, tokens: &[u32]) -> Vec<u32> {
    let logits = engine.forward(&[Segment { seq, tokens, logits: LogitRows::Last }]).expect("there is room");
    logits.iter().map(|x| x.to_bits()).collect()
}

/// What a cacheless engine computes, remembered by the tokens.
struct Reference {
    engine: Engine,
    known: HashMap<Vec<u32>, Vec<u32>>,
}

impl Reference {
    fn new(path: &Path, n_ctx: usize) -> Reference {
        Reference { engine: open(path, n_ctx, false), known: HashMap::new() }
    }

    fn logits(&mut self, tokens: &[u32]) -> &[u32] {
        let engine = &mut self.engine;
        self.known.entry(tokens.to_vec()).or_insert_with(|| {
            let seq = engine.new_sequence().expect("a free sequence");
            let logits = forward(engine, seq, tokens);
            engine.free_sequence(seq);
            logits
        })
    }
}

/// Random requests over a few documents, against a cacheless engine.
struct Interleaving {
    engine: Engine,
    reference: Reference,
    rng: ChaCha8Rng,
    /// Open sequences and their tokens.
    running: Vec<(SeqId, Vec<u32>)>,
    n_vocab: usize,
    len_max: usize,
    n_checked: usize,
}

impl Interleaving {
    fn new(path: &Path, kv_bytes: Option<usize>, len_max: usize, seed: u64) -> Interleaving {
        let options = LoadOptions { n_threads: 2, n_ctx: Some(256), n_seq_max: N_SEQ, kv_bytes, ..Default::default() };
        let engine = Engine::load(path, &options, &mut |_| {}).expect("it loads");
        let n_vocab = engine.info().n_vocab;
        Interleaving {
            engine,
            reference: Reference::new(path, 256),
            rng: ChaCha8Rng::seed_from_u64(seed),
            running: Vec::new(),
            n_vocab,
            len_max,
            n_checked: 0,
        }
    }

    fn below(&mut self, n: usize) -> usize {
        self.rng.next_u32() as usize % n
    }

    /// The beginning of one of three documents, with another ending.
    fn prompt(&mut self) -> Vec<u32> {
        let (document, len, ending) = (self.below(3), 1 + self.below(self.len_max), self.below(4));
        let word = |i: usize| ((i * 7919 + document * 101) % self.n_vocab) as u32;
        let mut tokens: Vec<u32> = (0..len).map(word).collect();
        tokens.extend((0..ending).map(|i| (i + 1) as u32));
        tokens
    }

    fn compute(&mut self, seq: SeqId, known: usize, tokens: &[u32]) {
        let chunk = 1 + self.below(tokens.len());
        let mut logits = Vec::new();
        for part in tokens[known..].chunks(chunk) {
            logits = forward(&mut self.engine, seq, part);
        }
        assert!(logits == self.reference.logits(tokens), "{} tokens, {known} of them cached: other bits", tokens.len());
        self.n_checked += 1;
    }

    fn step(&mut self) {
        let n = self.running.len();
        match self.below(12) {
            0..5 if n < N_SEQ => {
                let (prompt, tenant) = (self.prompt(), self.below(3) as u64 / 2);
                let (seq, known) = self.engine.sequence_with_prefix(&prompt, tenant).expect("a free sequence");
                self.compute(seq, known, &prompt);
                self.running.push((seq, prompt));
            }
            5 | 6 if n > 0 => {
                // Another token, as decoding does.
                let i = self.below(n);
                let (seq, mut tokens) = self.running.swap_remove(i);
                let known = tokens.len();
                tokens.push(self.below(2) as u32);
                self.compute(seq, known, &tokens);
                self.running.push((seq, tokens));
            }
            7 if n > 0 && n < N_SEQ => {
                let i = self.below(n);
                let len = self.below(self.running[i].1.len());
                let child = self.engine.fork_sequence(self.running[i].0, len).expect("a free sequence");
                let mut tokens = self.running[i].1[..len].to_vec();
                tokens.push(5);
                self.compute(child, len, &tokens);
                self.running.push((child, tokens));
            }
            8 if n > 0 => {
                let i = self.below(n);
                self.engine.share_prefix(self.running[i].0);
            }
            9 if self.below(100) == 0 => self.engine.clear_cache(),
            _ if n > 0 => {
                let i = self.below(n);
                self.engine.free_sequence(self.running.swap_remove(i).0);
            }
            _ => {}
        }
        let usage = self.engine.kv_usage();
        assert_eq!(usage.free + usage.cached_only + usage.in_use, usage.total);
        if self.running.is_empty() {
            assert_eq!(usage.in_use, 0);
        }
    }
}

fn check_interleaving(path: &Path, kv_bytes: Option<usize>, len_max: usize, n_steps: usize) {
    let mut world = Interleaving::new(path, kv_bytes, len_max, 7);
    (0..n_steps).for_each(|_| world.step());
    let stats = world.engine.cache_stats().expect("there is a cache");
    assert!(stats.full > 0 && stats.partial > 0 && stats.hit_rate() > 0.3, "{stats:?}");
    assert!(world.n_checked > n_steps / 3);
}

/// Issue "The KV cache", 2, with real arithmetic: any interleaving gives the bits of a run without a cache.
#[test]
fn interleavings_on_tiny_models_give_the_bits_of_no_cache() {
    for name in ["llama-a", "gemma3-a", "gpt2-a", "mixtral-a"] {
        check_interleaving(&Golden::load(name).model("f32"), Some(2 << 20), 90, 5_000);
    }
}

#[test]
fn interleavings_on_smollm2_give_the_bits_of_no_cache() {
    check_interleaving(&real_model("smollm2:135m"), Some(12 << 20), 60, 120);
}

fn request(prompt: &[u32], max_tokens: usize, tenant: u64) -> GenerateRequest {
    let sampling = SamplingParams::greedy();
    GenerateRequest { prompt: prompt.to_vec(), max_tokens: Some(max_tokens), sampling, tenant, ..Default::default() }
}

/// Returns the answer's tokens and how many of the prompt's were cached.
fn answer(engine: &mut Engine, request: &GenerateRequest) -> (Vec<u32>, usize) {
    let run = engine.generate(request).expect("a valid request");
    let summary = run.for_each_token(|_| {}).expect("it runs");
    (summary.tokens, summary.timings.cached_tokens)
}

/// A conversation goes on where it ended: the answer of each turn is part of the next prompt.
fn check_conversation(name: &str, text: &str, n_turns: usize) {
    let path = real_model(name);
    let (mut with, mut without) = (open(&path, 1024, true), open(&path, 1024, false));
    let mut prompt = with.encode_prompt(text, true).expect("plain text encodes");
    for turn in 0..n_turns {
        let request = GenerateRequest { ignore_eos: true, ..request(&prompt, 6, 0) };
        let (tokens, cached) = answer(&mut with, &request);
        assert_eq!((tokens.clone(), 0), answer(&mut without, &request), "{name}, turn {turn}");
        // All but the answer's last token, which was never computed, and the new question.
        let expected = if turn == 0 { 0 } else { prompt.len() - 1 - 5 };
        assert_eq!(cached, expected, "{name}, turn {turn}");
        prompt.extend(tokens);
        prompt.extend(1000..1005);
    }
    // Again from the start: everything is known but the token that must be computed.
    let (_, cached) = answer(&mut with, &request(&prompt[..100], 1, 0));
    assert_eq!(cached, 99);
    assert_eq!(without.cache_stats(), None);
}

#[test]
fn conversations_are_not_computed_again() {
    let text = "The river rises in the hills and runs through three old towns. ".repeat(12);
    check_conversation("smollm2:135m", &text, 3);
    check_conversation("qwen2.5-coder:0.5b", &text, 2);
}

/// Gemma 3's local layers see 512 tokens back; the blocks before them are kept, so a long conversation goes on as well.
#[test]
fn a_sliding_window_goes_on_where_it_ended() {
    check_conversation("gemma3:270m", &"The river rises in the hills and runs through three old towns. ".repeat(44), 2);
}

#[test]
fn prompts_that_share_fifty_tokens_share_their_blocks() {
    let mut engine = open(&Golden::load("llama-a").model("f32"), 256, true);
    let prompt = |i: u32| -> Vec<u32> { (0..50).chain([100 + i, 7, 8]).collect() };
    (0..100).for_each(|i| drop(answer(&mut engine, &request(&prompt(i), 1, 0))));
    let stats = engine.cache_stats().expect("there is a cache");
    assert_eq!((stats.lookups, stats.misses, stats.partial), (100, 1, 99));
    let share = stats.tokens_saved as f64 / (100.0 * 50.0);
    assert!(share >= 0.95, "{share}");
    engine.clear_cache();
    let stats = engine.cache_stats().expect("there is a cache");
    assert_eq!((stats.bytes, stats.entries, engine.kv_usage().cached_only), (0, 0, 0));
}

#[test]
fn tenants_share_nothing_and_quotas_count_their_sequences() {
    let mut engine = open(&Golden::load("llama-a").model("f32"), 256, true);
    let prompt: Vec<u32> = (0..60).collect();
    let cached: Vec<usize> = [0, 0, 1, 1, 2].map(|tenant| answer(&mut engine, &request(&prompt, 1, tenant)).1).into();
    assert_eq!(cached, [0, 59, 0, 59, 0]);
    engine.set_tenant_quota(1, Some(1));
    let error = engine.generate(&request(&prompt, 1, 1)).expect("a valid request").next().expect("one result");
    let error = error.expect_err("it needs a block");
    assert_eq!(error.kind(), ErrorKind::ContextLength);
    assert!(error.to_string().starts_with("the tenant's quota is full"), "{error}");
    assert_eq!(answer(&mut engine, &request(&prompt, 1, 2)).1, 59);
    engine.set_tenant_quota(1, None);
    assert_eq!(answer(&mut engine, &request(&prompt, 1, 1)).1, 59);
}

/// Two sequences, each of which may have more tokens than the 2 MiB hold.
#[test]
fn a_full_pool_is_an_error_of_one_request() {
    let path = Golden::load("llama-a").model("f32");
    let n_ctx = 40_000;
    let options = LoadOptions { n_ctx: Some(n_ctx), n_seq_max: 2, kv_bytes: Some(2 << 20), ..LoadOptions::default() };
    let mut engine = Engine::load(&path, &options, &mut |_| {}).expect("it loads");
    let total = engine.kv_usage().total;
    assert!(total * 16 < n_ctx, "{total} blocks");
    assert!(engine.cache_stats().is_some_and(|stats| stats.bytes_max <= 2 << 20));
    // One request takes all, though the cache holds something.
    answer(&mut engine, &request(&[1; 100], 1, 0));
    let (first, second) = (engine.new_sequence().expect("free"), engine.new_sequence().expect("free"));
    let tokens = vec![3; (total - 1) * 16];
    forward(&mut engine, first, &tokens);
    forward(&mut engine, second, &[1; 16]);
    assert_eq!((engine.kv_usage().free, engine.kv_usage().cached_only), (0, 0));
    let pressure = engine.kv_pressure().expect("a paged cache");
    assert_eq!((pressure.level, pressure.relief), (Level::High, Some(Relief::Reject)));
    let segment = |seq| [Segment { seq, tokens: &[5, 6], logits: LogitRows::Last }];
    let error = engine.forward(&segment(second)).expect_err("no block is free");
    assert_eq!(error.kind(), ErrorKind::ContextLength);
    assert!(error.to_string().starts_with("kv cache is full: 1 more"), "{error}");
    assert_eq!((engine.sequence_len(first), engine.sequence_len(second)), (tokens.len(), 16));
    engine.free_sequence(first);
    engine.forward(&segment(second)).expect("blocks are free again");
    assert_eq!(engine.kv_pressure().expect("a paged cache").level, Level::Low);
    let error = LoadOptions { kv_bytes: Some(1 << 20), ..LoadOptions::default() };
    let error = Engine::load(&path, &error, &mut |_| {}).err().expect("less than a page");
    assert_eq!(error.kind(), ErrorKind::Options);
}

#[test]
fn recurrent_models_and_encoders_have_no_cache() {
    ["lfm2-a", "mamba-a", "mamba2-a", "falcon-h1-a"].into_iter().for_each(check_recurrent);
    assert_eq!(open(&Golden::load("bert-a").model("f32"), 64, true).cache_stats(), None);
}

fn check_recurrent(name: &str) {
    let mut engine = open(&Golden::load(name).model("f32"), 256, true);
    let prompt: Vec<u32> = (0..60).collect();
    let first = answer(&mut engine, &request(&prompt, 4, 0));
    assert_eq!((answer(&mut engine, &request(&prompt, 4, 0)), first.1), (first.clone(), 0));
    assert_eq!(engine.cache_stats(), None);
    // Forked at the end it takes its state along; in the middle there is none to take.
    let seq = engine.new_sequence().expect("a free sequence");
    forward(&mut engine, seq, &prompt);
    let error = engine.fork_sequence(seq, 30).expect_err("no state");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let child = engine.fork_sequence(seq, 60).expect("a free sequence");
    let forked = forward(&mut engine, child, &[9, 8]);
    assert_eq!(forward(&mut engine, seq, &[9, 8]), forked);
    assert_eq!(engine.fork_sequence(seq, 63).expect_err("too long").kind(), ErrorKind::Options);
    // It is part of what a sequence holds.
    assert!(engine.sequence_bytes(seq) > 0, "{name}");
}
