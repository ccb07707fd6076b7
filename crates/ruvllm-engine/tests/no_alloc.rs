//! Decoding allocates nothing once it is warm: a test binary of its own, because it counts every allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ruvllm_engine::{Engine, GenerateRequest, KvPolicy, LoadOptions, LogitRows, SamplingParams, Segment, Speculation};
use ruvllm_testkit::{Golden, argmax, real_model};

struct Counting;

static N_ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator unchanged; counting touches no memory it manages.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        N_ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Decodes 64 tokens of `n_seq` sequences, crossing KV blocks, and returns the allocations on all threads.
fn decoding(path: &Path, n_seq: usize, kv: KvPolicy) -> usize {
    let options = LoadOptions { kv, n_threads: 2, n_ctx: Some(256), n_seq_max: n_seq, ..LoadOptions::default() };
    let mut engine = Engine::load(path, &options, &mut |_| {}).expect("it loads");
    let n_vocab = engine.info().n_vocab;
    let seqs: Vec<_> = (0..n_seq).map(|_| engine.new_sequence().expect("a free sequence")).collect();
    let mut tokens: Vec<[u32; 1]> = (0..n_seq).map(|i| [100 + i as u32]).collect();
    let mut counted = 0;
    for step in 0..66 {
        let segments: Vec<_> =
            seqs.iter().zip(&tokens).map(|(&seq, tokens)| Segment { seq, tokens, logits: LogitRows::Last }).collect();
        let before = N_ALLOCATIONS.load(Ordering::Relaxed);
        let logits = engine.forward(&segments).expect("it fits");
        let next: [u32; 4] = std::array::from_fn(|i| match i < n_seq {
            true => argmax(&logits[i * n_vocab..(i + 1) * n_vocab]) as u32,
            false => 0,
        });
        let n = N_ALLOCATIONS.load(Ordering::Relaxed) - before;
        // The first two steps are the warm-up.
        counted += if step < 2 { 0 } else { n };
        tokens.iter_mut().zip(next).for_each(|(token, next)| token[0] = next);
    }
    counted
}

fn check(name: &str, n_seq: usize, kv: KvPolicy) {
    let counted = decoding(&real_model(name), n_seq, kv);
    assert_eq!(counted, 0, "{name}, {n_seq} sequences: {counted} allocations in 64 decode steps");
}

/// Blocks that no real model here has. Steps of tiny models are so short that an allocation of the test's own threads may fall among
/// them; one of the steps' own comes in each of ten runs.
fn check_golden(name: &str, n_seq: usize, kv: KvPolicy) {
    let path = Golden::load(name).model("f32");
    let counted = (0..10).map(|_| decoding(&path, n_seq, kv)).find(|&counted| counted == 0);
    assert!(counted.is_some(), "{name}, {n_seq} sequences: allocations in decode steps of each of ten runs");
}

/// Tokens before the count: behind the 16th the head's screen is made.
const N_WARM_UP: usize = 20;

/// Generates 64 tokens behind the warm-up and returns the allocations, those of their texts included.
fn generating(engine: &mut Engine, sampling: SamplingParams, speculation: Speculation) -> usize {
    let prompt = engine.encode_prompt("Once upon a time", true).expect("plain text encodes");
    let max_tokens = Some(N_WARM_UP + 64);
    let request = GenerateRequest { prompt, max_tokens, sampling, speculation, ignore_eos: true, ..Default::default() };
    let mut run = engine.generate(&request).expect("a valid request");
    run.by_ref().take(N_WARM_UP).for_each(|event| drop(event.expect("it runs")));
    let before = N_ALLOCATIONS.load(Ordering::Relaxed);
    assert!(run.by_ref().all(|event| event.is_ok()));
    N_ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// A token's text is a string of its own and its bytes and characters are two more; choosing it allocates nothing.
fn check_sampling() {
    let options = LoadOptions { n_ctx: Some(256), ..LoadOptions::default() };
    let mut engine = Engine::load(&real_model("smollm2:135m"), &options, &mut |_| {}).expect("it loads");
    let default = || SamplingParams { seed: Some(1), ..SamplingParams::default() };
    for sampling in [
        SamplingParams::greedy(),
        default(),
        SamplingParams { top_k: 0, typical_p: 0.9, xtc_probability: 0.5, dynatemp_range: 0.3, ..default() },
        SamplingParams { repeat_penalty: 1.2, frequency_penalty: 0.1, logit_bias: vec![(7, 1.0)], ..default() },
    ] {
        // The whole text grows now and then, and so does the list of what may be guessed.
        for (speculation, n_more) in [(Speculation::Off, 8), (Speculation::Ngram, 24)] {
            let n = generating(&mut engine, sampling.clone(), speculation);
            assert!(n <= 3 * 64 + n_more, "{n} allocations in 64 tokens, {speculation:?}, with {sampling:?}");
        }
    }
}

#[test]
fn decoding_allocates_nothing_after_warm_up() {
    check("smollm2:135m", 1, KvPolicy::F16);
    check("smollm2:135m", 4, KvPolicy::F16);
    check("gemma3:270m", 1, KvPolicy::F16);
    check("qwen2.5-coder:0.5b", 1, KvPolicy::F16);
    // Blocks of 8 bits on the way.
    check("smollm2:135m", 1, KvPolicy::Tiered { hot: 16, warm: 32 });
    for name in ["lfm2-a", "mamba-a", "mamba2-b", "falcon-h1-a", "deepseek2-a", "deepseek2-b"] {
        check_golden(name, 2, KvPolicy::F16);
        check_golden(name, 1, KvPolicy::Tiered { hot: 16, warm: 32 });
    }
    check_sampling();
}
