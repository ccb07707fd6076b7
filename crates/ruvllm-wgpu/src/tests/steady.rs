//! What a token costs: command buffers, dispatches, bytes that are read back, and nothing that is made.

use ruvllm_backend::{CacheSalt, LogitRows, Segment, SeqId, TokenModel};
use ruvllm_candle::{CandleBackend, CandleOptions, CandleWeights};
use ruvllm_native::{LoadOptions, NativeBackend};
use ruvllm_testkit::{Golden, argmax, real_model};

use super::{load, options};
use crate::WgpuBackend;

/// Computes tokens and returns the most likely next one.
pub(super) fn next(model: &mut dyn TokenModel, seq: SeqId, tokens: &[u32]) -> u32 {
    next_of(model, seq, tokens, 1)
}

/// Computes tokens, asks for so many of the largest logits, and returns the most likely next one.
fn next_of(model: &mut dyn TokenModel, seq: SeqId, tokens: &[u32], n_best: usize) -> u32 {
    let logits = LogitRows::Top { n_tail: 1, n_best };
    argmax(model.forward(&[Segment { seq, tokens, logits }]).expect("it fits").logits) as u32
}

/// Asserts that greedy tokens cost one command buffer and eight bytes each, and returns their dispatches.
pub(super) fn check_steady(model: &mut WgpuBackend, seq: SeqId, token: u32, n: u64) -> u64 {
    let (n_dispatches, n_bytes) = steady(model, seq, token, n, 1);
    assert_eq!(n_bytes, 8, "a token and its logit are read back");
    n_dispatches
}

/// Asserts that tokens whose choice depends on `n_best` logits cost one command buffer each and make nothing; returns the
/// dispatches of one and the bytes that are read back.
fn steady(model: &mut WgpuBackend, seq: SeqId, mut token: u32, n: u64, n_best: usize) -> (u64, u64) {
    token = next_of(model, seq, &[token], n_best);
    let before = model.stats();
    for _ in 0..n {
        token = next_of(model, seq, &[token], n_best);
    }
    let after = model.stats();
    assert_eq!(after.n_command_buffers - before.n_command_buffers, n, "one command buffer a token");
    let made =
        |stats: ruvllm_gpu::GpuStats| (stats.n_buffers, stats.n_bind_groups, stats.n_pipelines, stats.allocated_bytes);
    assert_eq!(made(after), made(before), "decoding makes neither buffers, bind groups nor pipelines");
    let n_dispatches = after.n_dispatches - before.n_dispatches;
    let n_bytes = after.n_bytes_read - before.n_bytes_read;
    assert_eq!((n_dispatches % n, n_bytes % n), (0, 0), "every token has the same dispatches and bytes");
    (n_dispatches / n, n_bytes / n)
}

#[test]
fn decoding_makes_nothing_and_reads_back_the_token_alone() {
    let golden = Golden::load("llama-a");
    let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    let token = next(&mut model, seq, &golden.tokens[..8]);
    // A table of tokens, 14 a layer, and gathering, norm, head and the most likely token.
    let n_dispatches = check_steady(&mut model, seq, token, 10);
    assert_eq!(n_dispatches as usize, 1 + 14 * model.info().n_layers + 4);
}

/// The same where tokens are drawn from the 40 most likely ones, whatever was asked for before.
#[test]
fn a_sampled_token_reads_back_the_largest_logits_alone() {
    for (name, n_more) in [("llama-a", 0), ("gemma2-a", 1), ("granite-a", 1)] {
        let golden = Golden::load(name);
        let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
        let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
        let token = next(&mut model, seq, &golden.tokens[..4]);
        let made =
            |model: &WgpuBackend| (model.stats().n_buffers, model.stats().n_bind_groups, model.stats().n_pipelines);
        let before = made(&model);
        let (n_greedy, _) = steady(&mut model, seq, token, 2, 1);
        for n_best in [2, 8, 40, 100] {
            let (n_dispatches, n_bytes) = steady(&mut model, seq, token, 2, n_best);
            assert_eq!(n_bytes as usize, 8 * (n_best + n_more), "{name}");
            assert!(n_bytes as usize <= 8 * n_best + 64, "{name}");
            assert_eq!(n_dispatches, n_greedy + 1, "{name}: two for the largest, where the most likely token has one");
        }
        assert_eq!(made(&model), before, "{name}");
    }
}

/// Rows that want the most likely token alone have the same as those that want all logits.
#[test]
fn the_most_likely_token_is_that_of_the_logits() {
    for name in ["llama-a", "gemma2-a", "granite-a"] {
        let golden = Golden::load(name);
        let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
        let tokens = &golden.tokens[..12];
        let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
        let top = LogitRows::Top { n_tail: 12, n_best: 1 };
        let best = model.forward(&[Segment { seq, tokens, logits: top }]).expect("it fits").logits.to_vec();
        model.rewind(seq, 0).expect("it goes back");
        let all = model.forward(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("it fits").logits.to_vec();
        for (best, all) in best.chunks_exact(golden.n_vocab).zip(all.chunks_exact(golden.n_vocab)) {
            assert_eq!(argmax(best), argmax(all), "{name}");
            assert_eq!(best[argmax(best)].to_bits(), all[argmax(all)].to_bits(), "{name}");
            assert_eq!(best.iter().filter(|x| x.is_finite()).count(), 1, "{name}");
        }
    }
}

/// The same call gives the same bits.
#[test]
fn the_same_call_gives_the_same_bits() {
    let golden = Golden::load("qwen3moe-a");
    let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
    let (first, second) = (super::logits(&mut model, &golden.tokens), super::logits(&mut model, &golden.tokens));
    assert!(first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits()));
}

/// Returns how far the tokens of an answer are behind the best ones of a model's logits, in logits.
fn behind(model: &mut dyn TokenModel, prompt: &[u32], answer: &[u32]) -> Vec<f32> {
    let text = [prompt, &answer[..answer.len() - 1]].concat();
    let (logits, n_vocab) = (super::logits(model, &text), model.info().n_vocab);
    let rows = logits.chunks_exact(n_vocab).skip(prompt.len() - 1);
    rows.zip(answer).map(|(row, token)| row[argmax(row)] - row[*token as usize]).collect()
}

/// SmolLM2's greedy answer is that of the same weights in f32, and native's but where rounded activations decide.
#[test]
fn smollm2_writes_what_it_writes_in_f32() {
    let path = real_model("smollm2:135m");
    let mut model = load(&path, &options(1024));
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    // "Once upon a time, in a small village by the sea,"
    let prompt = [6403, 1980, 253, 655, 28, 281, 253, 1165, 6560, 411, 260, 3426, 28];
    let mut answer = vec![next(&mut model, seq, &prompt)];
    while answer.len() < 64 {
        answer.push(next(&mut model, seq, &[answer[answer.len() - 1]]));
    }
    let n_dispatches = check_steady(&mut model, seq, answer[63], 2);
    println!("{n_dispatches} dispatches a token");
    let n_layers = model.info().n_layers;
    assert_eq!(n_dispatches as usize, 1 + 15 * n_layers + 4, "keys are split: one more to put them together");
    let options = CandleOptions { n_ctx: Some(1024), weights: CandleWeights::F32, ..CandleOptions::default() };
    let mut exact = CandleBackend::load(&path, &options, &mut |_| {}).expect("it loads");
    for (step, behind) in behind(&mut exact, &prompt, &answer).into_iter().enumerate() {
        assert!(behind <= 1e-2, "step {step}: token {} is {behind} behind the best one in f32", answer[step]);
    }
    drop(exact);
    let options = LoadOptions { n_ctx: Some(1024), ..LoadOptions::default() };
    let mut native = NativeBackend::load(&path, &options, &mut |_| {}).expect("it loads");
    let all = behind(&mut native, &prompt, &answer);
    let n_same = all.iter().filter(|behind| **behind == 0.0).count();
    let most = all.iter().copied().fold(0.0, f32::max);
    println!("{n_same} of 64 tokens are native's, the others at most {most} behind");
    // Native rounds activations to 8 bits, which moves its logits by some tenths (see the goldens' README).
    assert!(n_same >= 61 && most <= 0.1, "{n_same} of 64 tokens are native's, the others at most {most} behind");
}

#[test]
fn kernels_are_timed_where_the_device_has_a_clock() {
    let golden = Golden::load("llama-a");
    let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
    match model.profile(8, 1) {
        Err(error) => assert!(error.to_string().contains("has no timestamps"), "{error}"),
        Ok(kernels) => {
            let n: usize = kernels.iter().map(|kernel| kernel.n_dispatches).sum();
            // A dispatch may be shorter than the clock tells.
            assert!(n > 0 && n <= 1 + 14 * model.info().n_layers + 4, "{kernels:?}");
            assert!(kernels.windows(2).all(|two| two[0].ms >= two[1].ms) && kernels[0].ms > 0.0, "{kernels:?}");
        }
    }
    assert!(model.profile(0, 0).is_err() && model.profile(0, 100_000).is_err());
    assert_eq!(model.n_free(), 1);
}
