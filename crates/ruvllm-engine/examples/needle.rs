//! Does a model still find one fact in a long text when the KV cache of old tokens is kept in fewer bits?
//!
//! `cargo run --release -p ruvllm-engine --example needle -- MODEL.gguf TEXT.txt [N_TOKENS]` puts a sentence at five
//! depths of a text of so many tokens, asks for it at the end, and tells for each policy at how many depths the answer
//! holds it.

use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{Engine, EngineError, GenerateRequest, KvPolicy, LoadOptions, SamplingParams};

const FACT: &str = " The code of the blue door is 7341.";
const QUESTION: &str = "\n\nQuestion: What is the code of the blue door?\nAnswer: The code of the blue door is";
const ANSWER: &str = "7341";
const DEPTHS: [usize; 5] = [10, 30, 50, 70, 90];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, rest @ ..] = args.as_slice() else {
        return Err("usage: needle MODEL.gguf TEXT.txt [N_TOKENS]".into());
    };
    let n_tokens = rest.first().map_or(Ok(3500), |n| n.parse())?;
    let text = std::fs::read_to_string(text)?;
    for policy in [KvPolicy::F16, KvPolicy::Q8, KvPolicy::TIERED, KvPolicy::Q4, KvPolicy::Q2] {
        let options =
            LoadOptions { kv: policy, n_ctx: Some(n_tokens + 64), prefix_cache: false, ..LoadOptions::default() };
        let mut engine = Engine::load(model.as_ref(), &options, &mut |_| {})?;
        let found =
            DEPTHS.iter().map(|&depth| finds(&mut engine, &text, n_tokens, depth)).collect::<Result<Vec<_>, _>>()?;
        let n_found = found.iter().filter(|&&found| found).count();
        println!("{policy}: {n_found} of {} ({found:?} at {DEPTHS:?} %)", DEPTHS.len());
    }
    Ok(())
}

/// Returns whether the model names the fact that stands at `depth` percent of the text.
fn finds(engine: &mut Engine, text: &str, n_tokens: usize, depth: usize) -> Result<bool, EngineError> {
    let tokenizer = engine.tokenizer()?;
    let options = EncodeOptions { add_special: false, parse_special: false };
    let (fact, question) = (tokenizer.encode(FACT, options)?, tokenizer.encode(QUESTION, options)?);
    let mut prompt = tokenizer.encode(text, EncodeOptions { add_special: true, ..options })?;
    prompt.truncate(n_tokens - fact.len() - question.len());
    let at = prompt.len() * depth / 100;
    prompt.splice(at..at, fact);
    prompt.extend(question);
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    let request = GenerateRequest { prompt, max_tokens: Some(8), sampling, ..GenerateRequest::default() };
    Ok(engine.generate(&request)?.for_each_token(|_| {})?.text.contains(ANSWER))
}
