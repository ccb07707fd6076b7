//! What functions that a model is free to call cost while it does not: tokens a second with their grammar over those
//! without, and the time of a mask within free text.
//!
//! `cargo run --release -p ruvllm-engine --example tools -- model.gguf`

use std::time::Instant;

use ruvllm_engine::tools::{Tool, ToolChoice, ToolUse};
use ruvllm_engine::{Engine, GenerateRequest, Grammar, LoadOptions, SamplingParams};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("which model? name a GGUF file")?;
    let options = LoadOptions { n_ctx: Some(1024), prefix_cache: false, ..LoadOptions::default() };
    let mut engine = Engine::load(path.as_ref(), &options, &mut |_| {})?;
    let parameters = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer" } },
        "required": ["city"],
    });
    let tool = |name: &str| Tool {
        name: name.to_owned(),
        description: Some("Returns a forecast".to_owned()),
        parameters: Some(parameters.clone()),
        is_strict: true,
    };
    let tools = ["get_weather", "get_tides", "get_pollen"].map(tool).to_vec();
    let tool_use = ToolUse::new(&engine.text()?, tools, ToolChoice::Auto, true)?;
    let start = Instant::now();
    let compiler = engine.grammar_compiler()?;
    let compiler_ms = start.elapsed().as_secs_f64() * 1e3;
    let start = Instant::now();
    let grammar = compiler.compile_calls(&tool_use)?;
    println!(
        "{:?}: {compiler_ms:.0} ms for the vocabulary, {:.1} ms for the grammar",
        tool_use.format(),
        start.elapsed().as_secs_f64() * 1e3
    );

    let prompt = engine.encode_prompt("Tell me a long story about a lighthouse.", false)?;
    let request = |grammar: Option<&Grammar>| GenerateRequest {
        prompt: prompt.clone(),
        max_tokens: Some(200),
        sampling: SamplingParams { temperature: 0.7, seed: Some(1), ..SamplingParams::default() },
        grammar: grammar.cloned(),
        ..GenerateRequest::default()
    };
    let mut rates = [Vec::new(), Vec::new()];
    let mut text = String::new();
    for _ in 0..7 {
        for (rates, grammar) in rates.iter_mut().zip([None, Some(&grammar)]) {
            let summary = engine.generate(&request(grammar))?.for_each_token(|_| {})?;
            rates.push(summary.timings.decode_tps);
            text = summary.text;
        }
    }
    let [free, held] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("{free:.1} tokens a second without, {held:.1} with: {:.3}", held / free);

    let ids = engine.tokenizer()?.encode(&text, Default::default())?;
    let mut constraint = grammar.start();
    let (mut masks, mut steps) = (Vec::new(), Vec::new());
    let us = |start: Instant| start.elapsed().as_secs_f64() * 1e6;
    for id in ids {
        let start = Instant::now();
        constraint.compute_mask()?;
        masks.push(us(start));
        let start = Instant::now();
        constraint.accept(id)?;
        steps.push(us(start));
    }
    for (what, mut times) in [("a mask within text", masks), ("taking note of a token", steps)] {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!("{what}: {:.1} µs at the median, {:.1} at p99, {:.1} at most", at(0.5), at(0.99), at(1.0));
    }
    Ok(())
}
