//! Ageing of the KV cache: what it saves, what it costs, and that the budget holds.

use ruvllm_engine::{
    Engine, ErrorKind, GenerateRequest, KvPolicy, LoadOptions, LogitRows, PerplexityOptions, SamplingParams, Segment,
};
use ruvllm_testkit::real_model;
use std::ops::ControlFlow;

const MODEL: &str = "smollm2:135m";
/// Tokens repeat after so many: what a model predicts, it predicts from far back.
const PERIOD: usize = 700;

fn open(options: LoadOptions) -> Engine {
    let options = LoadOptions { n_threads: 2, ..options };
    Engine::load(&real_model(MODEL), &options, &mut |_| {}).expect("it loads")
}

/// Some tokens, long enough to age. A model finds them unlikely, so it is a hard text.
fn text(n: usize) -> Vec<u32> {
    (0..n).map(|i| 500 + ((i % PERIOD) * (i % PERIOD) * 31 % 9000) as u32).collect()
}

/// Computes tokens in steps and returns the bits of the last logits.
fn last_logits(engine: &mut Engine, tokens: &[u32], step: usize) -> Vec<f32> {
    let seq = engine.new_sequence().expect("a free sequence");
    let mut logits = Vec::new();
    for tokens in tokens.chunks(step) {
        logits = engine.forward(&[Segment { seq, tokens, logits: LogitRows::Last }]).expect("it fits").to_vec();
    }
    engine.free_sequence(seq);
    logits
}

#[test]
fn tiers_cost_little_and_save_much() {
    let tokens = text(4096);
    for (policy, smaller, kl_max) in [(KvPolicy::Q8, 1.5, 0.01), (KvPolicy::TIERED, 2.0, 0.1), (KvPolicy::Q4, 2.2, 0.1)]
    {
        let mut engine = open(LoadOptions { kv: policy, n_ctx: Some(2048), n_seq_max: 2, ..LoadOptions::default() });
        let options = PerplexityOptions { n_ctx: 2048, max_chunks: Some(1), against_f16: true };
        let measured = engine.perplexity(&tokens, &options, &mut |_| ControlFlow::Continue(())).expect("it fits");
        let price = measured.against_f16.expect("it was asked for");
        assert!(price.mean_kl > 0.0 && price.mean_kl < kl_max, "{policy}: {measured:?}");
        assert!(price.f16_bytes_per_token > smaller * measured.kv_bytes_per_token, "{policy}: {measured:?}");
        // The reference beside it is what an engine without policy computes.
        let mut plain = open(LoadOptions { n_ctx: Some(2048), ..LoadOptions::default() });
        let options = PerplexityOptions { against_f16: false, ..options };
        let alone = plain.perplexity(&tokens, &options, &mut |_| ControlFlow::Continue(())).expect("it fits");
        assert_eq!((alone.ppl, alone.against_f16), (price.ppl_f16, None));
    }
}

#[test]
fn steps_that_are_cut_alike_give_the_same_bits_for_any_number_of_threads() {
    let tokens = text(900);
    let policy = KvPolicy::Tiered { hot: 64, warm: 128 };
    let of = |n_threads| {
        let options = LoadOptions { kv: policy, n_ctx: Some(1024), ..LoadOptions::default() };
        let options = LoadOptions { n_threads, ..options };
        let mut engine = Engine::load(&real_model(MODEL), &options, &mut |_| {}).expect("it loads");
        last_logits(&mut engine, &tokens, 100).iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    };
    assert!(of(1) == of(2));
}

#[test]
fn auto_quantises_where_f16_finds_no_room_and_stays_in_its_bytes() {
    let (tokens, kv_bytes) = (text(1500), Some(24 << 20));
    let options = LoadOptions { kv_bytes, n_ctx: Some(2048), ..LoadOptions::default() };
    // 23 kB a token in f16: 1,000 tokens fit.
    let mut plain = open(options.clone());
    let seq = plain.new_sequence().expect("a free sequence");
    let segment = Segment { seq, tokens: &tokens, logits: LogitRows::Last };
    assert_eq!(plain.forward(&[segment]).expect_err("too long").kind(), ErrorKind::ContextLength);

    for policy in [KvPolicy::Auto, KvPolicy::TIERED] {
        let mut engine = open(LoadOptions { kv: policy, ..options.clone() });
        let seq = engine.new_sequence().expect("a free sequence");
        for (i, tokens) in tokens.chunks(128).enumerate() {
            engine
                .forward(&[Segment { seq, tokens, logits: LogitRows::Last }])
                .unwrap_or_else(|error| panic!("{policy}, step {i}: {error}"));
            let usage = engine.kv_usage();
            assert!(usage.committed_bytes <= 24 << 20, "{policy}, step {i}: {usage:?}");
            assert_eq!(usage.free + usage.cached_only + usage.in_use, usage.total, "{policy}, step {i}");
            // Nothing is lost before memory runs short.
            let is_exact = engine.sequence_bytes(seq) == usage.in_use * 23_040 * 16;
            assert!(is_exact || i > 0 && (policy != KvPolicy::Auto || i > 4), "{policy}, step {i}: {usage:?}");
        }
        assert!(engine.sequence_bytes(seq) < 1500 * 16_000, "{policy}");
        engine.free_sequence(seq);
    }
}

#[test]
fn cached_prefixes_of_several_formats_are_found_and_quantised_before_they_are_given_up() {
    let options = LoadOptions { kv: KvPolicy::Auto, kv_bytes: Some(32 << 20), ..LoadOptions::default() };
    let mut engine = open(LoadOptions { n_ctx: Some(1024), ..options });
    let request = |prompt: Vec<u32>| GenerateRequest {
        prompt,
        max_tokens: Some(4),
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        ignore_eos: true,
        ..GenerateRequest::default()
    };
    // Three prompts of 450 tokens are 96 % of it in f16.
    let prompts: Vec<Vec<u32>> = (0..3).map(|i| text(450 + 450 * i)[450 * i..].to_vec()).collect();
    for prompt in &prompts {
        let summary = engine.generate(&request(prompt.clone())).expect("it starts").for_each_token(|_| {});
        assert_eq!(summary.expect("there is room").timings.cached_tokens, 0);
    }
    assert_eq!(engine.cache_stats().expect("there is a cache").evictions, 0);
    let usage = engine.kv_usage();
    assert!(usage.cached_only_bytes < usage.cached_only * 23_040 * 16, "{usage:?}");
    for prompt in &prompts {
        let summary = engine.generate(&request(prompt.clone())).expect("it starts").for_each_token(|_| {});
        let timings = summary.expect("there is room").timings;
        // In whole blocks, where the last one is in few bits.
        assert!(timings.cached_tokens >= 432, "{timings:?}");
        assert!(timings.kv_bytes_per_token > 0.0 && timings.kv_bytes_per_token <= 23_700.0, "{timings:?}");
        assert!(engine.kv_usage().committed_bytes <= 32 << 20);
    }
}
