//! Plays a session of an editing agent in order, without drafts, with drafts from the request alone, and with drafts from
//! what the tenant was served before as well; tells the times of decoding, and whether the answers are the same.
//!
//! ```text
//! cargo run --release -p ruvllm-engine --example agent_session -- qwen.gguf benches/data/agent_session.jsonl \
//!     [--threads N] [--rounds N] [--only KIND]
//! ```
//! `cargo xtask bench agent` runs it. A line of the session is a turn: a `kind`, the most tokens of its answer and what the
//! user says; the first one is what the system says. Each way has an engine of its own, which is new in each round, and the
//! ways take turns.

use std::error::Error;
use std::path::Path;

use ruvllm_engine::{Engine, GenerateRequest, GenerationSummary, LoadOptions, SamplingParams, Speculation};
use serde_json::{Value, json};

/// The ways that are compared: what they are called, where drafts come from, and whether earlier texts are kept.
const WAYS: [(&str, Speculation, bool); 3] = [
    ("no drafts", Speculation::Off, false),
    ("from the request", Speculation::Ngram, false),
    ("and from earlier texts", Speculation::Ngram, true),
];

/// A turn of the session.
struct Turn {
    kind: String,
    max_tokens: usize,
    user: String,
}

/// Sums over the turns of a kind, by way.
#[derive(Clone, Copy, Default)]
struct Sums {
    decode_ms: [f64; WAYS.len()],
    n_drafted: [usize; WAYS.len()],
    n_accepted: [usize; WAYS.len()],
    n_tokens: usize,
    n_turns: usize,
    n_different: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.drain(at..(at + 2).min(args.len())).nth(1)
    };
    let (threads, rounds, only) = (option("--threads"), option("--rounds"), option("--only"));
    let [model, session] = &args[..] else {
        return Err("usage: agent_session model.gguf session.jsonl [--threads N] [--rounds N] [--only KIND]".into());
    };
    let mut options = LoadOptions { n_ctx: Some(4096), ..LoadOptions::default() };
    if let Some(n) = threads {
        options.n_threads = n.parse()?;
    }
    let (system, turns) = read(session)?;
    let turns: Vec<Turn> =
        turns.into_iter().filter(|turn| only.as_ref().is_none_or(|only| turn.kind == *only)).collect();
    for round in 1..=rounds.map_or(Ok(1), |n| n.parse())? {
        let sums = play(model.as_ref(), &options, &system, &turns)?;
        println!("round {round}");
        print(&sums);
    }
    Ok(())
}

/// Reads what the system says, and the turns.
fn read(path: &str) -> Result<(String, Vec<Turn>), Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let rows: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let words = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    let turn = |row: &Value| Turn {
        kind: words(row, "kind"),
        max_tokens: row["max_tokens"].as_u64().unwrap_or(256) as usize,
        user: words(row, "user"),
    };
    let (system, turns) = rows.split_first().ok_or("the session is empty")?;
    Ok((words(system, "user"), turns.iter().map(turn).collect()))
}

/// Plays all turns in each way, and returns the sums by kind in the order of the session.
fn play(
    model: &Path,
    options: &LoadOptions,
    system: &str,
    turns: &[Turn],
) -> Result<Vec<(String, Sums)>, Box<dyn Error>> {
    let mut engines = Vec::new();
    for (_, _, keeps) in WAYS {
        let mut engine = Engine::load(model, options, &mut |_| {})?;
        if !keeps {
            engine.runner_mut().set_history_bytes(0);
        }
        engines.push(engine);
    }
    let mut all: Vec<(String, Sums)> = Vec::new();
    for (i, turn) in turns.iter().enumerate() {
        let mut answers: [Option<GenerationSummary>; WAYS.len()] = Default::default();
        for way in (0..WAYS.len()).map(|n| (i + n) % WAYS.len()) {
            answers[way] = Some(answer(&mut engines[way], WAYS[way].1, system, turn)?);
        }
        if all.last().is_none_or(|(kind, _)| *kind != turn.kind) && !all.iter().any(|(kind, _)| *kind == turn.kind) {
            all.push((turn.kind.clone(), Sums::default()));
        }
        let sums = all.iter_mut().find(|(kind, _)| *kind == turn.kind).map(|(_, sums)| sums);
        let answers = answers.into_iter().flatten().collect::<Vec<_>>();
        sums.ok_or("the kind was just added")?.add(&answers);
        tell(i, turn, &answers);
    }
    Ok(all)
}

fn answer(
    engine: &mut Engine,
    speculation: Speculation,
    system: &str,
    turn: &Turn,
) -> Result<GenerationSummary, Box<dyn Error>> {
    let messages = match turn.kind.as_str() {
        // The control is asked without what is said to the agent.
        "prose" => vec![json!({ "role": "user", "content": turn.user })],
        _ => vec![json!({ "role": "system", "content": system }), json!({ "role": "user", "content": turn.user })],
    };
    let prompt = engine.encode_chat(&messages, true)?;
    let request = GenerateRequest {
        prompt,
        max_tokens: Some(turn.max_tokens),
        sampling: SamplingParams::greedy(),
        speculation,
        tenant: 1,
        ..GenerateRequest::default()
    };
    Ok(engine.generate(&request)?.for_each_token(|_| {})?)
}

impl Sums {
    /// Adds the answers of a turn, by way.
    fn add(&mut self, answers: &[GenerationSummary]) {
        for (way, answer) in answers.iter().enumerate() {
            self.decode_ms[way] += answer.timings.decode_ms;
            self.n_drafted[way] += answer.timings.draft_tokens;
            self.n_accepted[way] += answer.timings.accepted_tokens;
        }
        self.n_tokens += answers[0].tokens.len();
        self.n_turns += 1;
        self.n_different += usize::from(answers.iter().any(|answer| answer.tokens != answers[0].tokens));
    }
}

/// Prints a line for a turn.
fn tell(i: usize, turn: &Turn, answers: &[GenerationSummary]) {
    let of_way = |answer: &GenerationSummary| {
        let timings = &answer.timings;
        format!("{:7.0} ms {:4}/{:4}", timings.decode_ms, timings.accepted_tokens, timings.draft_tokens)
    };
    let ways: Vec<String> = answers.iter().map(of_way).collect();
    let begin: String = answers[0].text.replace('\n', " ").chars().take(48).collect();
    println!("{:3} {:5} {:4} tokens  {}  {begin}", i + 1, turn.kind, answers[0].tokens.len(), ways.join("  "));
}

/// Prints a table of the kinds, and of all turns of the agent together.
fn print(sums: &[(String, Sums)]) {
    let mut agent = Sums::default();
    for (_, sums) in sums.iter().filter(|(kind, _)| kind != "prose") {
        for way in 0..WAYS.len() {
            agent.decode_ms[way] += sums.decode_ms[way];
            agent.n_drafted[way] += sums.n_drafted[way];
            agent.n_accepted[way] += sums.n_accepted[way];
        }
        agent.n_tokens += sums.n_tokens;
        agent.n_turns += sums.n_turns;
        agent.n_different += sums.n_different;
    }
    println!("| turns | drafts | decode s | of no drafts | of the request's | accepted of drafted | answers |");
    println!("| --- | --- | --: | --: | --: | --: | --- |");
    let agent = ("agent".to_owned(), agent);
    for (kind, sums) in sums.iter().chain([&agent]) {
        let same = match sums.n_different {
            0 => "the same".to_owned(),
            n => format!("{n} DIFFERENT"),
        };
        for (way, (name, ..)) in WAYS.iter().enumerate() {
            let ms = sums.decode_ms[way];
            let over = |other: usize| ms / sums.decode_ms[other].max(f64::MIN_POSITIVE);
            println!(
                "| {} {kind}, {} tokens | {name} | {:.2} | {:.2} | {:.2} | {} of {} | {same} |",
                sums.n_turns,
                sums.n_tokens,
                ms / 1e3,
                over(0),
                over(1),
                sums.n_accepted[way],
                sums.n_drafted[way],
            );
        }
    }
}
