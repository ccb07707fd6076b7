//! Golden models: the contract, logits against transformers', encoders.

use ruvllm_backend::conformance::{Case, Tolerances, check};
use ruvllm_backend::{Embeddings, Pooling};
use ruvllm_kvcache::KvPolicy;
use ruvllm_lora::AdapterSet;
use ruvllm_testkit::{Golden, GoldenKind, compare_logits, cosine, max_abs_diff};

use super::{load, logits, options, same_best, texts};
use crate::WgpuOptions;

#[test]
fn every_architecture_keeps_the_contract() {
    let tolerances = Tolerances { chunks: 5e-4, batch: 5e-4, reuse: 5e-4 };
    let mut n = 0;
    for golden in texts() {
        let mut model = load(&golden.model("f32"), &WgpuOptions { n_seq_max: 4, ..options(64) });
        let tokens: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 61).collect();
        check(&mut model, &Case { tokens: &tokens, tolerances });
        n += 1;
    }
    assert!(n >= 33, "{n} models");
}

/// The cache in f16 rounds keys and values the same way however a text is cut.
#[test]
fn a_cache_in_f16_keeps_the_contract() {
    let path = Golden::load("llama-a").model("f32");
    let mut model = load(&path, &WgpuOptions { n_seq_max: 4, kv: KvPolicy::F16, ..options(64) });
    let tokens: Vec<u32> = (0..40).collect();
    let tolerances = Tolerances { chunks: 2e-2, batch: 2e-2, reuse: 2e-2 };
    check(&mut model, &Case { tokens: &tokens, tolerances });
}

#[test]
fn logits_agree_with_transformers() {
    for golden in texts() {
        let expected = golden.logits();
        for dtype in golden.dtypes() {
            let mut model = load(&golden.model(dtype), &options(golden.n_ctx));
            let found = logits(&mut model, &golden.tokens);
            let comparison = compare_logits(&expected, &found, golden.n_vocab);
            let is_same = same_best(&expected, &found, golden.n_vocab, 0.05);
            assert!(comparison.max_kl <= 1e-6 && is_same, "{} {dtype}: {comparison:?}", golden.name);
        }
    }
}

/// Matrices in several parts, because bindings are small.
#[test]
fn split_matrices_give_the_same_logits() {
    for name in ["llama-a", "olmoe-a", "gpt2-a", "deepseek2-a"] {
        let golden = Golden::load(name);
        let path = golden.model("f32");
        let whole = logits(&mut load(&path, &options(golden.n_ctx)), &golden.tokens);
        let small = WgpuOptions { binding_bytes_max: Some(200_000), ..options(golden.n_ctx) };
        let mut model = load(&path, &small);
        assert!(model.model.rows.n_outputs <= 97, "logits come in parts");
        let split = logits(&mut model, &golden.tokens);
        let comparison = compare_logits(&whole, &split, golden.n_vocab);
        assert!(comparison.max_kl <= 1e-7, "{name}: {comparison:?}");
    }
}

#[test]
fn embeddings_agree_with_transformers() {
    let mut n_models = 0;
    for golden in Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Embedding) {
        let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
        let adapters = AdapterSet::default();
        let pooled = model.embed(&golden.tokens, None, &adapters).expect("the tokens fit");
        let expected = golden.pooled();
        assert!(cosine(&expected, &pooled) >= 0.999_999, "{}: cosine {}", golden.name, cosine(&expected, &pooled));
        assert!(max_abs_diff(&expected, &pooled) <= 5e-4, "{}", golden.name);
        let hidden = model.embed(&golden.tokens, Some(Pooling::None), &adapters).expect("the tokens fit");
        assert!(cosine(&golden.hidden(), &hidden) >= 0.999_99, "{}", golden.name);
        let error = model.score(&golden.tokens, 3, &adapters).expect_err("it is no cross-encoder");
        assert!(error.to_string().contains("scores no pairs of texts"), "{error}");
        n_models += 1;
    }
    assert!(n_models >= 1, "no encoder was compared");
}
