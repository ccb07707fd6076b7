//! Every architecture from bytes: logits within the goldens' tolerance, and the tokens that the scalar kernels choose natively.

use std::fs;

use ruvllm_engine::{Engine, GenerateRequest, KvPolicy, LoadOptions, SamplingParams};
use ruvllm_kernels::Isa;
use ruvllm_testkit::{Golden, GoldenKind, RecordedBits, compare_logits, cosine, max_abs_diff};

use super::source;

/// Tokens that are chosen after each golden prompt.
const N_TOKENS: usize = 12;

fn open(golden: &Golden, isa: Isa) -> Engine {
    let bytes = fs::read(golden.model("f32")).expect("a golden file can be read");
    let options = LoadOptions {
        isa,
        n_threads: 1,
        n_ctx: Some(golden.n_ctx),
        kv: KvPolicy::F32,
        kv_bytes: Some(16 << 20),
        ..LoadOptions::default()
    };
    let engine = Engine::load_source(&golden.name, source(bytes), &options, &mut |_| {});
    engine.unwrap_or_else(|error| panic!("{}: {error}", golden.name))
}

/// Returns the most likely tokens after the beginning of the golden's own.
fn greedy(engine: &mut Engine, golden: &Golden) -> String {
    let prompt = golden.tokens[..golden.tokens.len().min(golden.n_ctx - N_TOKENS)].to_vec();
    let sampling = SamplingParams::greedy();
    let request = GenerateRequest {
        prompt,
        max_tokens: Some(N_TOKENS),
        sampling,
        ignore_eos: true,
        ..GenerateRequest::default()
    };
    let tokens = engine.generate(&request).expect("it runs").for_each_token(|_| {}).expect("it ends").tokens;
    let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
    format!("{} {}", golden.name, tokens.join(" "))
}

/// The bounds are those of the goldens for files in f32.
#[test]
fn every_architecture_answers_as_natively() {
    let mut recorded = RecordedBits::of_version(include_str!("greedy.txt"), 1);
    let mut n_models = 0;
    for golden in Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Logits) {
        let expected = golden.logits();
        for isa in Isa::available() {
            let mut engine = open(&golden, isa);
            let mut logits = Vec::new();
            let mut keep = |rows: &[f32]| {
                logits.extend_from_slice(rows);
                Ok(())
            };
            engine.logits(&golden.tokens, golden.tokens.len(), &mut keep).expect("golden tokens fit");
            let compared = compare_logits(&expected, &logits, golden.n_vocab);
            let is_near = compared.max_kl <= 1e-7 && compared.max_abs_diff <= 1e-3 && compared.argmax_agreement == 1.0;
            assert!(is_near, "{} with {isa}: {compared:?}", golden.name);
            recorded.check(greedy(&mut engine, &golden));
        }
        n_models += 1;
    }
    assert!(n_models >= 34, "only {n_models} golden models were compared");
    recorded.finish();
}

#[test]
fn encoders_embed_as_natively() {
    let mut n_models = 0;
    for golden in Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Embedding) {
        let expected = golden.pooled();
        for isa in Isa::available() {
            let pooled = open(&golden, isa).embed(&golden.tokens).expect("golden tokens fit");
            assert!(cosine(&expected, &pooled) >= 0.999_999, "{}", golden.name);
            assert!(max_abs_diff(&expected, &pooled) <= 5e-4, "{}", golden.name);
        }
        n_models += 1;
    }
    assert!(n_models >= 1, "no encoder was compared");
}
