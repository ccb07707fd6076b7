//! Against llama.cpp: what its samplers leave of the same logits (`testdata/samplers/make.py`).

use ruvllm_text::tokenizer::Tokenizer;
use serde_json::Value;

use super::super::dry::{Breakers, breakers};
use super::*;

/// Reads the parameters of a case over those that do nothing.
fn params(changes: &Value) -> SamplingParams {
    let mut p = SamplingParams { dry_sequence_breakers: Vec::new(), ..open(1.0) };
    for (name, value) in changes.as_object().expect("an object") {
        let float = || value.as_f64().expect("a number") as f32;
        let count = || value.as_u64().expect("a count") as usize;
        let texts = || value.as_array().expect("a list").iter().map(|text| text.as_str().expect("a text").to_owned());
        match name.as_str() {
            "temperature" => p.temperature = float(),
            "dynatemp_range" => p.dynatemp_range = float(),
            "dynatemp_exponent" => p.dynatemp_exponent = float(),
            "top_k" => p.top_k = count(),
            "top_p" => p.top_p = float(),
            "min_p" => p.min_p = float(),
            "typical_p" => p.typical_p = float(),
            "top_n_sigma" => p.top_n_sigma = float(),
            "xtc_probability" => p.xtc_probability = float(),
            "xtc_threshold" => p.xtc_threshold = float(),
            "repeat_penalty" => p.repeat_penalty = float(),
            "frequency_penalty" => p.frequency_penalty = float(),
            "presence_penalty" => p.presence_penalty = float(),
            "repeat_last_n" => p.repeat_last_n = count(),
            "dry_multiplier" => p.dry_multiplier = float(),
            "dry_base" => p.dry_base = float(),
            "dry_allowed_length" => p.dry_allowed_length = count(),
            "dry_last_n" => p.dry_penalty_last_n = count(),
            "dry_breakers" => p.dry_sequence_breakers = texts().collect(),
            "mirostat" => p.mirostat = [Mirostat::Off, Mirostat::V1, Mirostat::V2][count()],
            "mirostat_tau" => p.mirostat_tau = float(),
            "order" => p.order = texts().map(|name| name.parse().expect("a sampler")).collect(),
            other => panic!("{other} is no parameter"),
        }
    }
    p
}

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("../../../testdata/samplers/cases.json")).expect("cases.json is JSON")
}

fn history(case: &Value) -> impl Iterator<Item = u32> {
    case["history"].as_array().expect("a list").iter().map(|id| id.as_u64().expect("an id") as u32)
}

#[test]
fn what_is_left_is_what_llama_cpp_leaves() {
    let (mut n, cases) = (0, cases());
    for case in cases.iter().filter(|case| case["logits"].is_array()) {
        let number = |x: &Value| x.as_f64().expect("a number");
        let mut logits: Vec<f32> =
            case["logits"].as_array().expect("a list").iter().map(|x| number(x) as f32).collect();
        let mut sampler =
            Sampler::assemble(&params(&case["params"]), logits.len(), Told::default(), || Ok(Breakers::default()))
                .expect("valid");
        history(case).for_each(|id| sampler.accept(id));
        sampler.sample(&mut logits, |_| {}).expect("numbers");
        let left = sampler.candidates.items().iter().filter(|candidate| candidate.p > 5e-8);
        let mut left: Vec<(u32, f64)> = left.map(|candidate| (candidate.id, f64::from(candidate.p))).collect();
        let mut expected: Vec<(u32, f64)> = case["left"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|pair| (pair[0].as_u64().expect("an id") as u32, number(&pair[1])))
            .collect();
        left.sort_by_key(|pair| pair.0);
        expected.sort_by_key(|pair| pair.0);
        let same = |(a, b): (&(u32, f64), &(u32, f64))| a.0 == b.0 && (a.1 - b.1).abs() < 2e-6;
        assert_eq!(left.len(), expected.len(), "{}: {left:?}, expected {expected:?}", case["params"]);
        assert!(left.iter().zip(&expected).all(same), "{}: {left:?}, expected {expected:?}", case["params"]);
        n += 1;
    }
    assert_eq!(n, 60);
}

/// Breakers need a vocabulary: that of SmolLM2.
#[test]
fn repetitions_end_where_llama_cpp_ends_them() {
    let file = ruvllm_gguf::GgufFile::open(&ruvllm_testkit::real_model("smollm2:135m")).expect("a GGUF file");
    let tokenizer = Tokenizer::from_metadata(file.metadata()).expect("a tokenizer");
    let (mut n, cases) = (0, cases());
    for case in cases.iter().filter(|case| case["cost"].is_array()) {
        let params = params(&case["params"]);
        let breakers = || breakers(&tokenizer, &params.dry_sequence_breakers);
        let mut sampler = Sampler::assemble(&params, tokenizer.vocab_len(), Told::default(), breakers).expect("valid");
        history(case).for_each(|id| sampler.accept(id));
        let mut logits = vec![0.0; tokenizer.vocab_len()];
        sampler.sample(&mut logits, |_| {}).expect("numbers");
        let costs = logits.iter().enumerate().filter(|(_, logit)| **logit != 0.0);
        let costs: Vec<Value> = costs.map(|(id, logit)| serde_json::json!([id, -f64::from(*logit)])).collect();
        assert_eq!(Value::Array(costs), case["cost"], "{}", case["params"]);
        n += 1;
    }
    assert_eq!(n, 6);
}
