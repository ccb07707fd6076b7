//! Times of prompts that start alike, for programs that measure: JSON lines in, JSON lines out.
//!
//! `cargo run --release -p ruvllm-engine --example prefix_times -- model.gguf [THREADS]`
//!
//! - `{"prompt": [ids], "max_tokens": 8}` answers greedily with `tokens`, `prompt_ms`, `ttft_ms` and `cached_tokens`.
//! - `{"batch": [[ids], …], "max_tokens": 1}` runs all at once and answers with `tokens` (a list each),
//!   `tokens_computed` and `seconds`.
//! - `{"clear": true}` forgets all cached prefixes.

use std::io::BufRead;
use std::time::Instant;

use ruvllm_engine::{Engine, EngineError, GenerateRequest, LoadOptions, SamplingParams, SchedulerOptions};
use serde_json::{Value, json};

/// Sequences that run at once.
const N_SEQ: usize = 16;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: prefix_times MODEL.gguf [THREADS]")?;
    let mut options = LoadOptions { n_ctx: Some(2048), n_seq_max: N_SEQ, ..LoadOptions::default() };
    if let Some(n_threads) = args.next() {
        options.n_threads = n_threads.parse()?;
    }
    let mut engine = Engine::load(path.as_ref(), &options, &mut |_| {})?;
    for line in std::io::stdin().lock().lines() {
        let line: Value = serde_json::from_str(&line?)?;
        println!("{}", answer(&mut engine, &line)?);
    }
    Ok(())
}

fn answer(engine: &mut Engine, line: &Value) -> Result<Value, EngineError> {
    let max_tokens = line["max_tokens"].as_u64().map(|n| n as usize);
    let request = |prompt: &Value| GenerateRequest {
        prompt: prompt.as_array().into_iter().flatten().filter_map(Value::as_u64).map(|id| id as u32).collect(),
        max_tokens,
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        ..GenerateRequest::default()
    };
    if let Some(prompts) = line["batch"].as_array() {
        let start = Instant::now();
        let mut scheduler = engine.scheduler(&SchedulerOptions::default())?;
        for prompt in prompts {
            scheduler.submit(request(prompt))?;
        }
        let tokens: Result<Vec<_>, _> = scheduler.run().into_iter().map(|(_, answer)| Ok(answer?.tokens)).collect();
        let tokens: Vec<Vec<u32>> = tokens.map_err(|error: EngineError| error)?;
        let n_computed = scheduler.stats().n_tokens;
        return Ok(json!({"tokens": tokens, "tokens_computed": n_computed, "seconds": start.elapsed().as_secs_f64()}));
    }
    if line["clear"] == true {
        engine.clear_cache();
        return Ok(json!({"clear": true}));
    }
    let summary = engine.generate(&request(&line["prompt"]))?.for_each_token(|_| {})?;
    let times = summary.timings;
    Ok(json!({
        "tokens": summary.tokens, "prompt_ms": times.prompt_ms, "ttft_ms": times.ttft_ms,
        "cached_tokens": times.cached_tokens,
    }))
}
