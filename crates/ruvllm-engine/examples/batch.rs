//! Several prompts at once: their answers come together, token by token, and each is what it would be alone.
//!
//! `cargo run --release -p ruvllm-engine --example batch -- model.gguf "Name three rivers." "Why is the sky blue?"`

use ruvllm_engine::{Engine, Event, GenerateRequest, LoadOptions, SamplingParams, SchedulerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("usage: batch MODEL.gguf PROMPT…")?;
    let prompts: Vec<String> = args.collect();
    let options = LoadOptions { n_ctx: Some(2048), n_seq_max: prompts.len().clamp(1, 16), ..LoadOptions::default() };
    let mut engine = Engine::load(path.as_ref(), &options, &mut |_| {})?;
    let encoded: Result<Vec<_>, _> = prompts.iter().map(|prompt| engine.encode_prompt(prompt, false)).collect();

    let mut scheduler = engine.scheduler(&SchedulerOptions::default())?;
    let mut ids = Vec::new();
    for prompt in encoded? {
        let sampling = SamplingParams { seed: Some(1), ..SamplingParams::default() };
        ids.push(scheduler.submit(GenerateRequest { prompt, max_tokens: Some(64), sampling, ..Default::default() })?);
    }
    while !scheduler.is_idle() {
        for event in scheduler.step() {
            // A server would send the text of every `Event::Token` to whoever asked; here each answer is shown whole.
            let Event::Done(id, result) = event else { continue };
            let (prompt, answer) = (ids.iter().position(|&other| other == id).ok_or("an unknown id")?, result?);
            println!("> {}\n{}\n", prompts[prompt], answer.text.trim());
            let times = answer.timings;
            println!("[first token after {:.0} ms, then {:.1} tokens/s]\n", times.ttft_ms, times.decode_tps);
        }
    }
    Ok(())
}
