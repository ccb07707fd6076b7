//! Measures what a grammar costs: answers by JSON schemas beside free ones of as many tokens, in turns.
//!
//! ```text
//! cargo run --release -p ruvllm-engine --example structured_speed -- model.gguf schemas.jsonl [schemas [threads]]
//! ```
//! A line of the file has a `"schema"`. Each answer is written three times over: free, by the schema, and by the schema
//! with every token computed by the model (which log-probabilities of no token ask for; then free ones have them too).

use std::error::Error;

use ruvllm_engine::{Engine, GenerateRequest, Grammar, GrammarSource, LoadOptions, SamplingParams, Speculation};
use serde_json::Value;

const TOKENS_MAX: usize = 96;
const TOKENS_MIN: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (model, file) = match &args[..] {
        [model, file, ..] => (model, file),
        _ => return Err("usage: structured_speed model.gguf schemas.jsonl [schemas [threads]]".into()),
    };
    let n_schemas: usize = args.get(2).map_or(Ok(40), |n| n.parse())?;
    let mut options = LoadOptions { n_ctx: Some(2048), prefix_cache: false, ..LoadOptions::default() };
    if let Some(n) = args.get(3) {
        options.n_threads = n.parse()?;
    }
    let mut engine = Engine::load(model.as_ref(), &options, &mut |_| {})?;
    let text = std::fs::read_to_string(file)?;
    let mut grammars = Vec::new();
    for line in text.lines() {
        let group: Value = serde_json::from_str(line)?;
        let compiled = engine.grammar_compiler()?.compile(&GrammarSource::JsonSchema(group["schema"].clone()));
        grammars.extend(compiled.ok());
        if grammars.len() == n_schemas {
            break;
        }
    }
    let (mut as_it_is, mut step_by_step, mut n_tokens) = (Vec::new(), Vec::new(), 0);
    for grammar in &grammars {
        let with = answer(&mut engine, Some(grammar), TOKENS_MAX, false)?;
        if with.n >= TOKENS_MIN {
            let without = answer(&mut engine, None, with.n, false)?;
            as_it_is.push(with.ms / without.ms);
            let with = answer(&mut engine, Some(grammar), with.n, true)?;
            let without = answer(&mut engine, None, with.n, true)?;
            step_by_step.push(with.ms / without.ms);
            n_tokens += with.n;
        }
    }
    println!("{} schemas, {} answers, {n_tokens} tokens by schema", grammars.len(), as_it_is.len());
    tell("time by schema over time of a free answer", as_it_is);
    tell("the same, no token taken over unasked   ", step_by_step);
    Ok(())
}

/// An answer: how many tokens, and the time from the first to the last.
struct Answer {
    n: usize,
    ms: f64,
}

fn answer(engine: &mut Engine, grammar: Option<&Grammar>, n: usize, asks_each: bool) -> Result<Answer, Box<dyn Error>> {
    let prompt = engine.encode_prompt("Write a JSON document.", false)?;
    let request = GenerateRequest {
        prompt,
        max_tokens: Some(n),
        sampling: SamplingParams { seed: Some(1), ..SamplingParams::default() },
        logprobs: asks_each.then_some(0),
        grammar: grammar.cloned(),
        ignore_eos: grammar.is_none(),
        speculation: Speculation::Off,
        ..GenerateRequest::default()
    };
    let summary = engine.generate(&request)?.for_each_token(|_| {})?;
    Ok(Answer { n: summary.tokens.len(), ms: summary.timings.decode_ms })
}

fn tell(what: &str, mut ratios: Vec<f64>) {
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| ratios.get(((ratios.len() as f64 - 1.0) * share) as usize).copied().unwrap_or(f64::NAN);
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    println!("{what}: mean {mean:.3}, median {:.3}, p90 {:.3}, most {:.3}", at(0.5), at(0.9), at(1.0));
}
