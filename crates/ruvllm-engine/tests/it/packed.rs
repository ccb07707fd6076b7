//! Repacked weights in the cache folder: what maps them answers bit for bit as what repacks.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, LogitRows, PackedWeights, SamplingParams, Segment};
use ruvllm_testkit::real_model;

fn open(model: &Path, cache: Option<&Path>) -> Engine {
    let cache_dir = cache.map(Path::to_owned);
    let options = LoadOptions { n_threads: 2, n_ctx: Some(64), cache_dir, ..LoadOptions::default() };
    Engine::load(model, &options, &mut |_| {}).expect("it loads")
}

/// Returns the bits of the logits behind some tokens.
fn bits(engine: &mut Engine) -> Vec<u32> {
    let tokens: Vec<u32> = (0..20).map(|i| (i * 37 + 5) % engine.info().n_vocab as u32).collect();
    let seq = engine.new_sequence().expect("a free sequence");
    let logits = engine.forward(&[Segment { seq, tokens: &tokens, logits: LogitRows::All }]).expect("the tokens fit");
    let bits = logits.iter().map(|logit| logit.to_bits()).collect();
    engine.free_sequence(seq);
    bits
}

/// Answers, so that there is time to write behind it, and ends.
fn answer(mut engine: Engine) {
    let request = GenerateRequest {
        prompt: vec![1, 2, 3],
        max_tokens: Some(1),
        sampling: SamplingParams::greedy(),
        ..Default::default()
    };
    engine.generate(&request).expect("a valid request").for_each_token(|_| {}).expect("it runs");
}

/// Between them the models have matrices of five types, and heads tied to the embeddings and not.
fn check(model: &str) {
    let (cache, model) = (tempfile::tempdir().expect("a folder"), real_model(model));
    let expected = bits(&mut open(&model, None));
    let mut first = open(&model, Some(cache.path()));
    assert_eq!(bits(&mut first), expected);
    assert_eq!(PackedWeights::list(cache.path()), [], "nobody had time to write");
    answer(first);
    let kept = PackedWeights::list(cache.path());
    assert_eq!(kept.len(), 1);
    let inode = || fs::metadata(&kept[0].path).expect("a file").ino();
    let first = inode();
    let mut second = open(&model, Some(cache.path()));
    assert_eq!(bits(&mut second), expected);
    answer(second);
    assert_eq!(inode(), first, "nothing was repacked, so nothing was written");
    // A folder whose prompts another process has is open to others that need only the weights.
    let holder = open(&model, Some(cache.path()));
    let packed_dir = Some(cache.path().to_owned());
    let options = LoadOptions { n_threads: 2, n_ctx: Some(64), packed_dir, ..LoadOptions::default() };
    let mut beside = Engine::load(&model, &options, &mut |_| {}).expect("it loads");
    assert_eq!(bits(&mut beside), expected);
    answer(beside);
    assert_eq!(inode(), first);
    drop(holder);
    // What somebody changed is not used, but made and written again.
    let sound = fs::read(&kept[0].path).expect("a file");
    let mut damaged = sound.clone();
    damaged[12_345_678] ^= 0x40;
    fs::write(&kept[0].path, damaged).expect("a file of this test");
    let mut again = open(&model, Some(cache.path()));
    assert_eq!((bits(&mut again), kept[0].path.exists()), (expected, false));
    answer(again);
    assert!(fs::read(&kept[0].path).expect("it is there again") == sound);
}

#[test]
fn smollm2_answers_alike_from_kept_weights() {
    check("smollm2:135m");
}

#[test]
fn gemma3_answers_alike_from_kept_weights() {
    check("gemma3:270m");
}

#[test]
fn qwen_answers_alike_from_kept_weights() {
    check("qwen2.5-coder:0.5b");
}
