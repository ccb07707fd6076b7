//! A model's file with adapters in it says what the model says with the adapters beside it.

use std::path::{Path, PathBuf};

use ruvllm_engine::{AdapterSet, Engine, FactorFormat, KvPolicy, LoadOptions, LogitRows, Segment};
use ruvllm_lora::merge::Merged;
use ruvllm_lora::{Adapter, Delta, FactorPair, LoraErrorKind, RowOrder, Values};
use ruvllm_testkit::{Golden, max_abs_diff, real_model};

fn testdata(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-lora/testdata").join(name)
}

fn open(path: &Path, kv: KvPolicy) -> Engine {
    let options = LoadOptions { n_ctx: Some(256), n_threads: 2, kv, ..LoadOptions::default() };
    Engine::load(path, &options, &mut |_| {}).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn logits(engine: &mut Engine, tokens: &[u32], adapters: &AdapterSet) -> Vec<f32> {
    let seq = engine.new_adapted_sequence(adapters).expect("a free sequence");
    let segment = Segment { seq, tokens, logits: LogitRows::All };
    let logits = engine.forward(&[segment]).expect("it fits").to_vec();
    engine.free_sequence(seq);
    logits
}

#[test]
fn merged_files_agree_with_base_and_adapter() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = std::fs::read_to_string(testdata("index.json")).expect("the folder has an index");
    let index: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("it is JSON");
    let mut n_merged = 0;
    for (name, about) in &index {
        let golden = Golden::load(about["model"].as_str().expect("a name"));
        let mut base = open(&golden.model("f32"), KvPolicy::F32);
        let loader = base.adapter_loader().expect("it applies adapters");
        let adapter = loader.read(&testdata(name)).expect("it is sound");
        let bound = loader.bind(&adapter, FactorFormat::F32).expect("it fits");
        let tokens = &golden.tokens[..golden.tokens.len().min(64)];
        for (scale, merged, bound_on) in [
            (1.0, Merged::F32, 1e-4),
            (-0.5, Merged::F32, 1e-4),
            // Halves and bytes lose 2^-11 and 2^-8 of the largest of their weights; these models are small and random.
            (1.0, Merged::F16, 5e-2),
            (1.0, Merged::Q8, 1.0),
        ] {
            // A router between two experts takes the other one for less than that.
            if merged != Merged::F32 && name == "mixtral" {
                continue;
            }
            let set = AdapterSet::new(vec![(std::sync::Arc::clone(&bound), scale)]).expect("a set");
            let beside = logits(&mut base, tokens, &set);
            let path = folder.path().join("merged.gguf");
            if let Err(error) = loader.merge_into_model(&[(&adapter, scale)], merged, &path) {
                let line = error.to_string();
                assert!(
                    error.kind() == LoraErrorKind::Unsupported && line.contains("tied to the embeddings"),
                    "{name}: {line}"
                );
                continue;
            }
            let within = logits(&mut open(&path, KvPolicy::F32), tokens, &AdapterSet::default());
            let diff = max_abs_diff(&beside, &within);
            assert!(diff <= bound_on && (merged == Merged::F32 || diff > 0.0), "{name} {scale} {merged:?}: {diff:e}");
            n_merged += 1;
        }
    }
    assert!(n_merged >= 22, "{n_merged} of {} were merged", 4 * index.len());
}

/// An adapter on attention that moves a real model about as much as a short training does.
fn noise(engine: &Engine) -> Adapter {
    let noise = |n: usize, seed: f32| (0..n).map(|i| ((i as f32) * 0.731 + seed).sin() * 0.12).collect::<Vec<f32>>();
    let layers = engine.adapter_loader().expect("it applies adapters").targets().all().to_vec();
    let delta = |(i, target): (usize, ruvllm_lora::Target)| {
        let (n_in, n_out) = (target.n_in, target.rows.len());
        let a = Values::from_f32(4, n_in, &noise(4 * n_in, i as f32));
        let b = Values::from_f32(n_out, 4, &noise(n_out * 4, 0.5 * i as f32));
        Delta::new(&target.tensor, 2.0, FactorPair { a, b }, None, RowOrder::Same).expect("a pair")
    };
    let attention = layers.into_iter().filter(|target| target.tensor.contains(".attn_"));
    Adapter::new("noise", attention.enumerate().map(delta).collect()).expect("an adapter")
}

/// The mean negative log-likelihood of a text's tokens, in nats.
fn nll(logits: &[f32], tokens: &[u32]) -> f64 {
    let n_vocab = logits.len() / tokens.len();
    let of = |(row, &next): (&[f32], &u32)| {
        let max = row.iter().fold(f32::MIN, |max, &x| max.max(x));
        let sum: f64 = row.iter().map(|&x| f64::from(x - max).exp()).sum();
        sum.ln() - f64::from(row[next as usize] - max)
    };
    logits.chunks_exact(n_vocab).zip(&tokens[1..]).map(of).sum::<f64>() / (tokens.len() - 1) as f64
}

#[test]
fn a_quantised_model_with_an_adapter_in_it_predicts_as_well_as_with_it_beside() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut base = open(&real_model("smollm2:135m"), KvPolicy::F16);
    let text = include_str!("merge.rs");
    let tokens = base.encode_prompt(&text[..600], true).expect("a prompt");
    let (loader, adapter) = (base.adapter_loader().expect("it applies adapters"), noise(&base));
    let set = AdapterSet::new(vec![(loader.bind(&adapter, FactorFormat::F32).expect("it fits"), 1.0)]).expect("a set");
    let plain = nll(&logits(&mut base, &tokens, &AdapterSet::default()), &tokens);
    let beside = nll(&logits(&mut base, &tokens, &set), &tokens);
    assert!((beside - plain).abs() > 0.02, "the adapter does nothing: {plain} and {beside}");
    for merged in [Merged::F16, Merged::Q8] {
        let path = folder.path().join("merged.gguf");
        loader.merge_into_model(&[(&adapter, 1.0)], merged, &path).expect("it can be written");
        let within = nll(&logits(&mut open(&path, KvPolicy::F16), &tokens, &AdapterSet::default()), &tokens);
        // What differs are activations, which the base's blocks of 4 bits multiply in 8 bits, and the merged ones not so.
        assert!((within - beside).abs() <= 0.02, "{merged:?}: {within} for {beside} (base alone {plain})");
    }
}
