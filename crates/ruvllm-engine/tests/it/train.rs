//! Training through the engine: the differentiable forward against golden logits, and what was trained against what is applied.

use ruvllm_engine::{
    AdapterSet, Engine, ErrorKind, FactorFormat, KvPolicy, LoadOptions, LogitRows, Segment, TextEncoder,
};
use ruvllm_lora::train::{Encoder, Example, ScoredSequence, TrainOptions, Trainer};
use ruvllm_testkit::{Golden, GoldenKind, max_abs_diff};
use serde_json::json;

fn open(golden: &Golden) -> Engine {
    let options = LoadOptions { n_ctx: Some(golden.n_ctx), kv: KvPolicy::F32, n_threads: 1, ..LoadOptions::default() };
    Engine::load(&golden.model("f32"), &options, &mut |_| {}).expect("a golden model loads")
}

#[test]
fn logits_of_dense_models_are_golden_and_others_are_refused() {
    let (mut dense, mut refused) = (Vec::new(), Vec::new());
    for golden in Golden::all() {
        let engine = open(&golden);
        let model = match engine.train_model(1.0, &mut |_| {}) {
            Ok(model) => model,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{}: {error}", golden.name);
                refused.push(golden.arch);
                continue;
            }
        };
        if golden.kind == GoldenKind::Logits {
            let off = max_abs_diff(&model.logits(&golden.tokens).expect("logits"), &golden.logits());
            assert!(off <= 1e-3, "{}: {off} off", golden.name);
        }
        dense.push(golden.arch);
    }
    refused.dedup();
    let expected = [
        "deepseek2",
        "falcon-h1",
        "gpt-oss",
        "granitemoe",
        "lfm2",
        "mamba",
        "mamba2",
        "llama",
        "olmoe",
        "qwen2moe",
        "qwen3moe",
    ];
    assert_eq!(refused, expected);
    assert!(dense.len() >= 20, "{dense:?}");
}

#[test]
fn what_was_trained_is_what_is_applied() {
    for (name, arch) in
        [("llama-a", "llama"), ("qwen2-a", "qwen2"), ("gemma3-a", "gemma3"), ("phi3-a", "phi3"), ("phi2-a", "phi2")]
    {
        let golden = Golden::load(name);
        assert_eq!(golden.arch, arch);
        let mut engine = open(&golden);
        let options =
            TrainOptions { rank: 2, alpha: 4.0, n_steps: 6, n_batch: 2, rate: 1e-2, ..TrainOptions::default() };
        let model = engine.train_model(options.scale(), &mut |_| {}).expect("a dense model");
        let example = |tokens: &[u32]| {
            let is_scored = (0..tokens.len()).map(|i| i > 0).collect();
            Example { sequences: vec![ScoredSequence { tokens: tokens.to_vec(), is_scored }], scores: Vec::new() }
        };
        let tokens = &golden.tokens[..golden.tokens.len().min(24)];
        let all = vec![example(tokens), example(&tokens[3..9]), example(&tokens[8..])];
        let mut trainer = Trainer::new(model, all.clone(), options, &[0; 32]).expect("a training");
        for _ in 0..6 {
            trainer.step(None).expect("a step");
        }
        let own = trainer.evaluate(&all[..1], true, &mut |_| true).expect("a loss").expect("of some");
        let base = trainer.evaluate(&all[..1], false, &mut |_| true).expect("a loss").expect("of some");
        assert!(own < base - 0.1, "{name}: {base} to {own}");

        let loader = engine.adapter_loader().expect("it applies adapters");
        let adapter = loader.bind(&trainer.adapter("new").expect("finite"), FactorFormat::F32).expect("it fits");
        let set = AdapterSet::new(vec![(adapter, 1.0)]).expect("one");
        let seq = engine.new_adapted_sequence(&set).expect("a free sequence");
        let logits = engine.forward(&[Segment { seq, tokens, logits: LogitRows::All }]).expect("it fits").to_vec();
        let nll: f64 = logits
            .chunks_exact(golden.n_vocab)
            .zip(&tokens[1..])
            .map(|(row, &token)| {
                let sum: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
                sum.ln() - f64::from(row[token as usize])
            })
            .sum();
        let applied = nll / (tokens.len() - 1) as f64;
        assert!((applied - own).abs() < 1e-3, "{name}: trained {own}, applied {applied}");
    }
}

#[test]
fn conversations_are_encoded_by_the_models_template() {
    let engine = Engine::load(&ruvllm_testkit::real_model("smollm2:135m"), &LoadOptions::default(), &mut |_| {})
        .expect("it loads");
    let text = TextEncoder(engine.text().expect("a text"));
    let messages = [json!({ "role": "user", "content": "2+2?" }), json!({ "role": "assistant", "content": "4" })];
    let line = json!({ "messages": messages }).to_string();
    let filter = ruvllm_lora::train::Filter::default();
    let mut data = ruvllm_lora::train::Dataset::read(line.as_bytes(), &filter).expect("a record");
    let example = data.encode(&text, &filter).expect("an example").remove(0);
    let sequence = &example.sequences[0];
    let (first, n) = (sequence.is_scored.iter().position(|&x| x).expect("an answer"), sequence.n_scored());
    assert_eq!(sequence.tokens[..first], text.chat(&messages[..1], true).expect("a prompt"));
    assert_eq!(n, 2, "the answer and its end");
    assert!(text.is_end(sequence.tokens[first + 1]));
}
