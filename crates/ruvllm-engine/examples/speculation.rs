//! Measures guessing ahead: what rows cost, and answers with and without guesses, in turns.
//!
//! ```text
//! cargo run --release -p ruvllm-engine --example speculation -- qwen.gguf prose.txt [--draft FILE [--branches N]] \
//!     [rows|edit|story|drawn|prose]…
//! ```
//! With a draft model it alone guesses.

use std::error::Error;
use std::time::Instant;

use ruvllm_engine::{
    DraftOptions, Engine, GenerateRequest, LoadOptions, LogitRows, SamplingParams, Segment, Speculation,
};

const TURNS: usize = 5;
const CODE: &str = include_str!("batch.rs");

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.drain(at..(at + 2).min(args.len())).nth(1)
    };
    let (path, n_branches) = (option("--draft"), option("--branches"));
    let [model, prose, only @ ..] = &args[..] else {
        return Err("usage: speculation model.gguf prose.txt [--draft FILE [--branches N]] [rows|edit|…]…".into());
    };
    let n_branches = n_branches.map_or(Ok(1), |n| n.parse())?;
    let draft = path.map(|path| DraftOptions { path: path.into(), n_branches });
    let how = if draft.is_some() { Speculation::Draft } else { Speculation::Ngram };
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let options = LoadOptions { n_ctx: Some(4096), n_seq_max: n_branches, draft, ..LoadOptions::default() };
    let mut engine = Engine::load(model.as_ref(), &options, &mut |_| {})?;
    if is_wanted("rows") {
        rows(&mut engine)?;
    }
    let edit =
        format!("Repeat this program exactly, but rename `scheduler` to `queue`. Only code.\n```rust\n{CODE}\n```");
    let story = "Write a long story about a lighthouse keeper and the sea.";
    let prose: String = std::fs::read_to_string(prose)?.chars().take(3000).collect();
    let hot = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    for (name, prompt, raw, sampling) in [
        ("edit", edit.as_str(), false, SamplingParams::greedy()),
        ("story", story, false, SamplingParams::greedy()),
        ("drawn", story, false, hot.clone()),
        // Hot, and averse to repeating itself: there is next to nothing to guess.
        ("prose", &prose, true, SamplingParams { temperature: 1.2, repeat_penalty: 1.1, ..hot }),
    ] {
        if is_wanted(name) {
            let prompt = engine.encode_prompt(prompt, raw)?;
            measure(&mut engine, name, &prompt, &sampling, how)?;
        }
    }
    Ok(())
}

/// Tells what a pass of some rows costs beside one of a single row.
fn rows(engine: &mut Engine) -> Result<(), Box<dyn Error>> {
    let seq = engine.new_sequence()?;
    let tokens: Vec<u32> = (100..612).collect();
    engine.forward(&[Segment { seq, tokens: &tokens, logits: LogitRows::Last }])?;
    let counts = [1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33];
    let mut best = [f64::INFINITY; 11];
    for _ in 0..16 {
        for (best, n) in best.iter_mut().zip(counts) {
            let start = Instant::now();
            engine.forward(&[Segment { seq, tokens: &tokens[..n], logits: LogitRows::All }])?;
            *best = best.min(start.elapsed().as_secs_f64());
            let len = engine.sequence_len(seq) - n;
            engine.runner_mut().rewind(seq, len)?;
        }
    }
    let one = best[0];
    for (best, n) in best.iter().zip(counts) {
        println!("{n} rows: {:.2} ms, {:.2} of one row", best * 1e3, best / one);
    }
    engine.free_sequence(seq);
    Ok(())
}

/// Answers in turns, compares the answers and tells the rates.
fn measure(
    engine: &mut Engine,
    name: &str,
    prompt: &[u32],
    sampling: &SamplingParams,
    how: Speculation,
) -> Result<(), Box<dyn Error>> {
    let mut rates = [Vec::new(), Vec::new()];
    let mut answers = [Vec::new(), Vec::new()];
    let mut guesses = (0, 0);
    for _ in 0..TURNS {
        for (i, speculation) in [Speculation::Off, how].into_iter().enumerate() {
            let (prompt, sampling) = (prompt.to_vec(), sampling.clone());
            let request =
                GenerateRequest { prompt, max_tokens: Some(160), sampling, speculation, ..Default::default() };
            let summary = engine.generate(&request)?.for_each_token(|_| {})?;
            rates[i].push(summary.timings.decode_tps);
            guesses = (summary.timings.draft_tokens, summary.timings.accepted_tokens);
            answers[i] = summary.tokens;
        }
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let [off, on] = [0, 1].map(|i| median(&mut rates[i]));
    let same = if answers[0] == answers[1] { "the same answer" } else { "ANOTHER ANSWER" };
    println!(
        "{name}: {off:.1} tok/s without, {on:.1} with: {:.2}x; {} of {} guesses right in {} tokens, {same}",
        on / off,
        guesses.1,
        guesses.0,
        answers[1].len()
    );
    Ok(())
}
