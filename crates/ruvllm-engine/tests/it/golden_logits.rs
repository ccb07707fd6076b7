//! Every architecture against logits made by transformers in float32.
//!
//! Bounds: issue "A real model answers" asks max KL ≤ 1e-7 nats and max difference ≤ 1e-3 of f32 files, everywhere the
//! same argmax; the goldens' own README gives the rows for f16 weights or keys (KL 2e-4, 6e-2, 99 %).

use ruvllm_engine::{Engine, KvPolicy, LoadOptions, architectures};
use ruvllm_testkit::{Golden, GoldenKind, LogitComparison, compare_logits, cosine, max_abs_diff};

struct Bounds {
    max_kl: f64,
    max_abs_diff: f64,
    argmax_agreement: f64,
}

const F32: Bounds = Bounds { max_kl: 1e-7, max_abs_diff: 1e-3, argmax_agreement: 1.0 };
const F16: Bounds = Bounds { max_kl: 2e-4, max_abs_diff: 6e-2, argmax_agreement: 0.99 };

fn open(golden: &Golden, dtype: &str, kv: KvPolicy) -> Engine {
    let options = LoadOptions { n_ctx: Some(golden.n_ctx), kv, n_threads: 2, ..LoadOptions::default() };
    Engine::load(&golden.model(dtype), &options, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", golden.name))
}

fn logits(engine: &mut Engine, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut all = Vec::new();
    engine
        .logits(tokens, chunk, &mut |rows| {
            all.extend_from_slice(rows);
            Ok(())
        })
        .expect("golden tokens fit the golden context");
    all
}

fn check(what: &str, result: &LogitComparison, bounds: &Bounds) {
    assert!(
        result.max_kl <= bounds.max_kl
            && result.max_abs_diff <= bounds.max_abs_diff
            && result.argmax_agreement >= bounds.argmax_agreement,
        "{what}: {result:?}"
    );
}

fn supported() -> impl Iterator<Item = Golden> {
    Golden::all().into_iter().filter(|golden| architectures().any(|arch| arch == golden.arch))
}

#[test]
fn logits_agree_with_transformers_in_one_batch_in_chunks_and_token_by_token() {
    let mut n_models = 0;
    for golden in supported().filter(|golden| golden.kind == GoldenKind::Logits) {
        let expected = golden.logits();
        for dtype in golden.dtypes() {
            for (kv, bounds) in [(KvPolicy::F32, if dtype == "f32" { &F32 } else { &F16 }), (KvPolicy::F16, &F16)] {
                let mut engine = open(&golden, dtype, kv);
                let what = format!("{} {dtype}, KV {kv:?}", golden.name);
                let whole = logits(&mut engine, &golden.tokens, golden.tokens.len());
                check(&what, &compare_logits(&expected, &whole, golden.n_vocab), bounds);
                for chunk in [13, 1] {
                    let chunked = logits(&mut engine, &golden.tokens, chunk);
                    let same = chunked.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same && chunked.len() == whole.len(), "{what}: chunks of {chunk} change bits");
                }
            }
        }
        n_models += 1;
    }
    assert!(n_models >= 34, "only {n_models} golden models were compared");
}

#[test]
fn embeddings_agree_with_transformers() {
    let mut n_models = 0;
    for golden in supported().filter(|golden| golden.kind == GoldenKind::Embedding) {
        let expected = golden.pooled();
        let pooled = open(&golden, "f32", KvPolicy::F32).embed(&golden.tokens).expect("golden tokens fit");
        assert!(cosine(&expected, &pooled) >= 0.999_999, "{}: cosine {}", golden.name, cosine(&expected, &pooled));
        assert!(max_abs_diff(&expected, &pooled) <= 5e-4, "{}", golden.name);
        n_models += 1;
    }
    assert!(n_models >= 1, "no encoder was compared");
}

#[test]
fn every_listed_architecture_has_a_golden() {
    let goldens: Vec<String> = Golden::all().into_iter().map(|golden| golden.arch).collect();
    for arch in architectures() {
        assert!(goldens.iter().any(|known| known == arch), "architecture {arch} has no golden model");
    }
}
