//! Layers before those of the device on another backend: the contract, the logits, and how many are where.

use std::path::Path;

use ruvllm_backend::conformance::{Case, Tolerances, check};
use ruvllm_backend::{BackendError, BackendErrorKind, CacheSalt, TokenModel};
use ruvllm_kvcache::KvPolicy;
use ruvllm_native::{LoadOptions, NativeBackend};
use ruvllm_testkit::{Golden, compare_logits};

use super::{logits, options, same_best};
use crate::{FirstLayers, WgpuBackend, WgpuOptions};

/// Loads the first layers with native.
fn load_first(path: &Path, first: FirstLayers) -> Result<Box<dyn TokenModel>, BackendError> {
    let options = LoadOptions {
        n_ctx: Some(first.n_ctx),
        n_seq_max: first.n_seq_max,
        kv: KvPolicy::F32,
        kv_bytes: Some(first.kv_bytes),
        prefix_cache: false,
        n_threads: 2,
        first_layers: Some(first.n_layers),
        ..LoadOptions::default()
    };
    Ok(Box::new(NativeBackend::load(path, &options, &mut |_| {})?))
}

fn load_last(path: &Path, options: &WgpuOptions, n_layers: usize) -> Result<WgpuBackend, BackendError> {
    WgpuBackend::load_last(path, options, n_layers, &mut |first| load_first(path, first), &mut |_| {})
}

#[test]
fn the_last_layers_go_on_where_others_end() {
    for name in ["llama-a", "gemma3-a", "gpt2-a", "qwen3moe-a", "granite-a", "mamba2-a", "falcon-h1-a", "deepseek2-b"] {
        let golden = Golden::load(name);
        let path = golden.model("f32");
        let mut model = load_last(&path, &options(golden.n_ctx), 1).expect("it loads");
        let n_all = model.info().n_layers;
        assert!(model.n_gpu_layers() == 1 && n_all > 1, "{name} has {n_all} layers");
        let (expected, found) = (golden.logits(), logits(&mut model, &golden.tokens));
        let comparison = compare_logits(&expected, &found, golden.n_vocab);
        let is_same = same_best(&expected, &found, golden.n_vocab, 0.05);
        assert!(comparison.max_kl <= 1e-6 && is_same, "{name}: {comparison:?}");
        assert_eq!(model.n_free(), 1);
    }
}

#[test]
fn a_split_model_keeps_the_contract() {
    let tolerances = Tolerances { chunks: 5e-4, batch: 5e-4, reuse: 5e-4 };
    let tokens: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 61).collect();
    for (name, n_layers) in [("llama-a", 1), ("lfm2-a", 2), ("mamba-a", 1)] {
        let path = Golden::load(name).model("f32");
        let options = WgpuOptions { n_seq_max: 4, ..options(64) };
        let mut model = load_last(&path, &options, n_layers).expect("it loads");
        assert!(model.adapters().is_none());
        check(&mut model, &Case { tokens: &tokens, tolerances });
    }
}

#[test]
fn numbers_of_layers_out_of_range_are_one_line() {
    let path = Golden::load("llama-a").model("f32");
    let n_all = load_last(&path, &options(64), 1).expect("it loads").info().n_layers;
    for n_layers in [0, n_all + 1, usize::MAX] {
        let error = load_last(&path, &options(64), n_layers).map(drop).expect_err("out of range");
        assert_eq!(error.kind(), BackendErrorKind::Options);
        let line = format!(
            "backend gpu: {n_layers} layers on the GPU were asked for, and the model has {n_all}; choose 1 to {n_all}"
        );
        assert_eq!(error.to_string(), line);
    }
    // All layers are no split.
    assert!(load_last(&path, &options(64), n_all).expect("it loads").adapters().is_some());
    let encoder = Golden::load("bert-a").model("f32");
    let error = load_last(&encoder, &options(64), 1).map(drop).expect_err("an encoder");
    assert!(error.to_string().starts_with("backend gpu runs all layers of an encoder or none"), "{error}");
}

#[test]
fn as_many_layers_as_fit_are_loaded() {
    let golden = Golden::load("qwen3-a");
    let path = golden.model("f32");
    let fitting = |memory_bytes_max| {
        let options = WgpuOptions { memory_bytes_max, ..options(golden.n_ctx) };
        WgpuBackend::load_what_fits(&path, &options, &mut |first| load_first(&path, first), &mut |_| {})
    };
    let mut whole = fitting(None).expect("it loads");
    let (n_all, n_bytes) = (whole.info().n_layers, whole.stats().allocated_bytes);
    assert_eq!(whole.n_gpu_layers(), n_all);
    let expected = logits(&mut whole, &golden.tokens);
    // What remains of a layer's weights is less than the whole needs.
    let mut some = fitting(Some(n_bytes - 1000)).expect("some of it fits");
    assert!((1..n_all).contains(&some.n_gpu_layers()), "{} of {n_all} layers", some.n_gpu_layers());
    let found = logits(&mut some, &golden.tokens);
    let comparison = compare_logits(&expected, &found, golden.n_vocab);
    assert!(comparison.max_kl <= 1e-6, "{comparison:?}");
    let error = fitting(Some(1000)).map(drop).expect_err("nothing fits");
    assert!(error.to_string().contains("1000 are allowed"), "{error}");
}

/// A sequence that the first layers have no room for is not opened here either.
#[test]
fn both_sides_open_and_close_the_same_sequences() {
    let path = Golden::load("llama-a").model("f32");
    let mut model = load_last(&path, &WgpuOptions { n_seq_max: 2, ..options(64) }, 1).expect("it loads");
    let (a, _) = model.open(None, &CacheSalt::default()).expect("it is free");
    let (b, _) = model.open(Some(&[1, 2, 3]), &CacheSalt::default()).expect("it is free");
    assert!(model.open(None, &CacheSalt::default()).is_err() && model.n_free() == 0);
    [a, b].into_iter().for_each(|seq| model.close(seq));
    let again = [(); 2].map(|()| model.open(None, &CacheSalt::default()).expect("it is free").0);
    again.into_iter().for_each(|seq| model.close(seq));
}
