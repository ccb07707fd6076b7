//! The contract, and the numbers against transformers' and against the native backend's.

use std::path::Path;

use ruvllm_backend::conformance::{Case, Tolerances, check};
use ruvllm_backend::{BackendErrorKind, CacheSalt, LogitRows, Segment, TokenModel};
use ruvllm_gguf::{GgufFile, GgufWriter};
use ruvllm_lora::merge::Merged;
use ruvllm_native::{LoadOptions, NativeBackend};
use ruvllm_testkit::{Golden, GoldenKind, compare_logits};

use crate::{CandleBackend, CandleDevice, CandleOptions, CandleWeights};

fn load(path: &Path, options: &CandleOptions) -> CandleBackend {
    CandleBackend::load(path, options, &mut |_| {}).expect("it loads")
}

fn logits(model: &mut dyn TokenModel, tokens: &[u32]) -> Vec<f32> {
    let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
    let rows =
        model.forward(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("the tokens fit").logits.to_vec();
    model.close(seq);
    rows
}

fn texts() -> impl Iterator<Item = Golden> {
    Golden::all().into_iter().filter(|golden| golden.kind == GoldenKind::Logits)
}

#[test]
fn every_architecture_keeps_the_contract() {
    let tolerances = Tolerances { chunks: 2e-4, batch: 2e-4, reuse: 2e-4 };
    let mut n = 0;
    for golden in texts() {
        let mut model = load(&golden.model("f32"), &CandleOptions { n_seq_max: 4, ..CandleOptions::default() });
        let tokens: Vec<u32> = (0..40).map(|i| (i * 7 + 3) % 61).collect();
        check(&mut model, &Case { tokens: &tokens, tolerances });
        n += 1;
    }
    assert!(n > 20, "{n} models");
}

#[test]
fn logits_agree_with_the_native_backend() {
    for golden in texts() {
        let (path, n_ctx) = (golden.model("f32"), Some(golden.n_ctx));
        let mut own = load(&path, &CandleOptions { n_ctx, ..CandleOptions::default() });
        let options = LoadOptions { n_ctx, kv: ruvllm_kvcache::KvPolicy::F32, ..LoadOptions::default() };
        let mut native = NativeBackend::load(&path, &options, &mut |_| {}).expect("it loads");
        let (own, native) = (logits(&mut own, &golden.tokens), logits(&mut native, &golden.tokens));
        let found = compare_logits(&native, &own, golden.n_vocab);
        assert_eq!(found.n_rows, golden.tokens.len());
        assert!(found.max_kl <= 1e-6 && found.argmax_agreement == 1.0, "{}: {found:?}", golden.name);
    }
}

/// Writes a model again with the matrices of its layers in Q8_0.
fn write_q8_0(path: &Path, to: &Path) {
    let file = GgufFile::open(path).expect("a golden file is sound");
    let mut writer = GgufWriter::new();
    *writer.metadata_mut() = file.metadata().clone();
    for tensor in file.tensors() {
        let data = file.data(tensor);
        let (ty, bytes) = match tensor.shape.len() {
            2 => Merged::Q8.encode(bytemuck::cast_slice(&data), tensor.shape[0]),
            _ => (tensor.ty, data),
        };
        writer.add_tensor(&*tensor.name, ty, &tensor.shape, bytes).expect("the shape is the same");
    }
    writer.write_file(to).expect("it can be written");
}

/// Quantised weights give about the same: candle quantises activations to 8 bits.
#[test]
fn quantised_weights_stay_near_those_in_f32() {
    let golden = Golden::load("llama-a");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("q8_0.gguf");
    write_q8_0(&golden.model("f32"), &path);
    let of = |weights| {
        let options = CandleOptions { weights, ..CandleOptions::default() };
        logits(&mut load(&path, &options), &golden.tokens)
    };
    let (exact, near) = (of(CandleWeights::F32), of(CandleWeights::Quantised));
    assert_ne!(exact, near, "activations are quantised");
    let found = compare_logits(&exact, &near, golden.n_vocab);
    assert!(found.max_kl < 5e-3, "{found:?}");
}

#[test]
fn what_it_cannot_do_is_said() {
    let refusal = |path: &Path, options: &CandleOptions| match CandleBackend::load(path, options, &mut |_| {}) {
        Ok(_) => panic!("it loads"),
        Err(error) => (error.kind(), error.to_string()),
    };
    let path = Golden::load("llama-a").model("f32");
    let encoder = Golden::all().into_iter().find(|golden| golden.arch == "bert").expect("there is one").model("f32");
    let plain = CandleOptions::default();
    let (kind, line) = refusal(&encoder, &plain);
    assert_eq!(
        (kind, &*line),
        (BackendErrorKind::Unsupported, "backend candle runs no encoders, and 'bert' is one; use native")
    );
    let (kind, line) = refusal(&path, &CandleOptions { n_seq_max: 0, ..plain.clone() });
    assert_eq!((kind, &*line), (BackendErrorKind::Options, "0 sequences; choose 1 to 4096"));
    let (kind, line) = refusal(&path, &CandleOptions { device: CandleDevice::Metal(0), ..plain.clone() });
    assert_eq!(kind, BackendErrorKind::Options);
    assert!(line.starts_with("no device metal:0 for backend candle") && !line.contains('\n'), "{line}");
    let mut model = load(&path, &plain);
    let kv = Some(ruvllm_kvcache::KvPolicy::TIERED);
    let error = model.open(None, &CacheSalt { kv, ..CacheSalt::default() }).expect_err("no policy but f32");
    assert_eq!(error.kind(), BackendErrorKind::Unsupported);
}
