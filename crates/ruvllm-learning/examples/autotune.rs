//! Is the autotuner better than the fixed default, and never worse? Five workloads, the default and the autotuner (and
//! other fixed settings) in turns on the same requests with the same seeds; answers are compared.
//!
//! ```text
//! cargo run --release -p ruvllm-learning --example autotune -- MODEL.gguf DOCUMENT.txt [--rounds N] [--kv] [--memory MIB] \
//!     [--also NAME,…] [--paced] [--out FILE.json] [chat|document|documents|edits|bursts]…
//! ```
//! - chat: questions one after the other, answers drawn.
//! - document: a long document, and eight questions on it: one, and the others at once when it is read. Half ask for a
//!   span, half are drawn.
//! - documents: sixteen questions on four long documents, one after the other in no order, with 160 MiB for keys and values
//!   (`--memory MIB`): of SmolLM2's that is room for two and a half of the documents in `f16`.
//! - edits: a file, and six requests one after the other to write it again with something changed.
//! - bursts: twelve requests at once, eight of them computed together: half ask for a span, half write on.
//!
//! `--also` measures other fixed settings too (`24 guesses`, `32 guesses`, `48 guesses`, `no guesses`, `32 prompt tokens`,
//! `512 prompt tokens`, `tiered`, or `all`); `--kv` lets the autotuner keep old keys and values in fewer bits, which changes
//! answers a little; `--paced` waits for a line on standard input before each round, where a machine is quiet only now and
//! then. One JSON object goes to standard output, and to FILE.json with a picture of the same name beside it.

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

use ruvllm_engine::tokenizer::{DecodeOptions, EncodeOptions};
use ruvllm_engine::tuner::Tuner;
use ruvllm_engine::{Engine, GenerateRequest, KvPolicy, LoadOptions, SamplingParams, SchedulerOptions};
use ruvllm_learning::autotune::Autotuner;
use serde_json::{Value, json};

const SEQUENCES: usize = 8;
/// Tokens of a long document, and of a file that is edited.
const LONG: usize = 3000;
const EDITED: usize = 600;
/// Which of several documents a question is about, one after the other.
const ASKED: [usize; 16] = [0, 1, 2, 3, 1, 0, 3, 2, 0, 2, 1, 3, 3, 0, 1, 2];
const QUESTIONS: [&str; 6] = [
    "Why is the sky blue?",
    "Give me three tips for a good night's sleep.",
    "What is the difference between a process and a thread?",
    "Write a short poem about a lighthouse.",
    "How do I cook rice?",
    "Explain what a hash table is to a child.",
];

const EDITS: [&str; 6] = [
    "Add a comment in front of each function.",
    "Remove all comments.",
    "Correct spelling mistakes.",
    "Use double quotes for all strings.",
    "Leave out the last function.",
    "Indent it with two spaces.",
];

/// A way to run requests.
struct Variant {
    name: &'static str,
    options: SchedulerOptions,
    autotuner: Option<Box<dyn Tuner>>,
    /// How keys and values are kept, if not as the autotuner or the engine does.
    kv: Option<KvPolicy>,
    /// Seconds of each round.
    seconds: Vec<f64>,
    /// Guesses of the last round, and how many of them were right.
    guesses: (usize, usize),
}

/// Groups of requests: those of one group come at once, a group when the one before is over.
type Round = Vec<Vec<GenerateRequest>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = args.iter().position(|arg| arg == name)?;
        args.drain(at..(at + 2).min(args.len())).nth(1)
    };
    let n_rounds: usize = option("--rounds").map_or(Ok(12), |n| n.parse())?;
    let memory: usize = option("--memory").map_or(Ok(160), |mib| mib.parse())?;
    let out = option("--out").map(PathBuf::from);
    let also = option("--also").unwrap_or_default();
    let is_paced = args.iter().position(|arg| arg == "--paced").map(|at| args.remove(at)).is_some();
    let is_kv = args.iter().position(|arg| arg == "--kv").map(|at| args.remove(at)).is_some();
    let [model, document, only @ ..] = &args[..] else {
        return Err(
            "usage: autotune MODEL.gguf DOCUMENT.txt [--rounds N] [--also NAME,…] [--out FILE.json] [chat|…]…".into()
        );
    };
    let kv_others = if is_kv { vec![KvPolicy::TIERED] } else { Vec::new() };
    let load = LoadOptions { n_ctx: Some(4096), n_seq_max: SEQUENCES, kv_others, ..LoadOptions::default() };
    let mut engine = Engine::load(model.as_ref(), &load, &mut |_| {})?;
    let document = engine.tokenizer()?.encode(&std::fs::read_to_string(document)?, EncodeOptions::default())?;
    let mut workloads = Vec::new();
    for (name, round) in [
        ("chat", chat as fn(&Engine, &[u32], usize) -> Result<Round, Box<dyn Error>>),
        ("document", long_document),
        ("documents", long_documents),
        ("edits", edits),
        ("bursts", bursts),
    ] {
        if only.is_empty() || only.iter().any(|wanted| wanted == name) {
            let kv_bytes = (name == "documents").then_some(memory << 20);
            engine = Engine::load(model.as_ref(), &LoadOptions { kv_bytes, ..load.clone() }, &mut |_| {})?;
            let mut variants = variants(&also, is_kv);
            let mut choices = String::new();
            // The first round is not counted: memory is taken in it, and the autotuner learns nothing.
            for i in 0..=n_rounds {
                let is_first = i == 0;
                if is_paced {
                    std::io::stdin().read_line(&mut String::new())?;
                }
                let requests = round(&engine, &document, i)?;
                choices = play(&mut engine, &requests, i, &mut variants)?;
                if is_first {
                    variants.iter_mut().for_each(|variant| variant.seconds.clear());
                    continue;
                }
                eprintln!("{name}: round {i} of {n_rounds}: {}", shares(&variants));
            }
            workloads.push((name, variants, choices));
        }
    }
    let object = json!({
        "model": engine.info().name,
        "workloads": workloads.iter().map(|(name, variants, choices)| report(name, variants, choices)).collect::<Vec<_>>(),
    });
    println!("{object}");
    if let Some(out) = out {
        std::fs::write(&out, format!("{object:#}\n"))?;
        std::fs::write(out.with_extension("svg"), picture(&workloads))?;
    }
    Ok(())
}

fn variants(also: &str, is_kv: bool) -> Vec<Variant> {
    let fixed = |name, draft_rows, draft_tokens_max, prefill_tokens| {
        let options = SchedulerOptions { draft_rows, draft_tokens_max, prefill_tokens, ..SchedulerOptions::default() };
        Variant { name, options, autotuner: None, kv: None, seconds: Vec::new(), guesses: (0, 0) }
    };
    let options = SchedulerOptions::default();
    let learned =
        Box::new(|policy: ruvllm_sona::policy::NewPolicy| eprintln!("  {}: {}", policy.context, policy.reason));
    let autotuner = Autotuner::new("model", &options, learned);
    let kv = [KvPolicy::F16, KvPolicy::TIERED];
    let autotuner = if is_kv { autotuner.with_kv("model", &kv) } else { autotuner };
    let mut all = vec![fixed("default", 12, 8, 128)];
    all.push(Variant { autotuner: Some(Box::new(autotuner)), ..fixed("autotuner", 12, 8, 128) });
    let others = [
        fixed("24 guesses", 24, 24, 128),
        fixed("32 guesses", 32, 32, 128),
        fixed("48 guesses", 48, 32, 128),
        fixed("no guesses", 0, 0, 128),
        fixed("32 prompt tokens", 12, 8, 32),
        fixed("512 prompt tokens", 12, 8, 512),
        Variant { kv: Some(KvPolicy::TIERED), ..fixed("tiered", 12, 8, 128) },
    ];
    let is_wanted = |other: &Variant| {
        let is_named = also.split(',').any(|name| name == "all" || name == other.name);
        is_named && (is_kv || other.kv.is_none())
    };
    all.extend(others.into_iter().filter(is_wanted));
    all
}

fn request(prompt: Vec<u32>, max_tokens: usize, sampling: SamplingParams) -> GenerateRequest {
    GenerateRequest { prompt, max_tokens: Some(max_tokens), sampling, ignore_eos: true, ..GenerateRequest::default() }
}

fn drawn(seed: usize) -> SamplingParams {
    SamplingParams { seed: Some(seed as u64), ..SamplingParams::default() }
}

fn chat(engine: &Engine, _: &[u32], round: usize) -> Result<Round, Box<dyn Error>> {
    let one = |(i, question): (usize, &&str)| {
        let seed = round * QUESTIONS.len() + i;
        Ok(vec![request(engine.encode_prompt(question, false)?, 96, drawn(seed))])
    };
    QUESTIONS.iter().enumerate().map(one).collect()
}

/// Returns tokens of the document from somewhere on, and then how a span of them begins.
fn span(document: &[u32], at: usize, n: usize, n_begin: usize) -> Vec<u32> {
    let at = at % document.len().saturating_sub(n).max(1);
    let part = &document[at..(at + n).min(document.len())];
    let from = part.len() / 4;
    [part, &part[from..(from + n_begin).min(part.len())]].concat()
}

/// Returns one of the questions on a part of the document: for a span, or for what comes to mind behind its last words.
fn question(part: &[u32], i: usize, seed: usize) -> GenerateRequest {
    let from = (i % 8 + 1) * part.len() / 10;
    let (begins, sampling) = match i / 2 % 2 {
        0 => (&part[from..(from + 40).min(part.len())], SamplingParams::greedy()),
        _ => (&part[..8.min(part.len())], drawn(seed)),
    };
    request([part, begins].concat(), 192, sampling)
}

/// Returns the `i`th of the parts of so many tokens.
fn part(document: &[u32], i: usize, n: usize) -> &[u32] {
    let at = (i * 7919) % document.len().saturating_sub(n).max(1);
    &document[at..(at + n).min(document.len())]
}

fn long_document(_: &Engine, document: &[u32], round: usize) -> Result<Round, Box<dyn Error>> {
    let part = part(document, round, LONG);
    let one = |i: usize| question(part, i, round * 8 + i);
    Ok(vec![vec![one(0)], (1..8).map(one).collect()])
}

fn long_documents(_: &Engine, document: &[u32], round: usize) -> Result<Round, Box<dyn Error>> {
    let one = |(i, &asked): (usize, &usize)| {
        vec![question(part(document, 4 * round + asked, LONG), i, round * ASKED.len() + i)]
    };
    Ok(ASKED.iter().enumerate().map(one).collect())
}

fn edits(engine: &Engine, document: &[u32], round: usize) -> Result<Round, Box<dyn Error>> {
    let file = engine.tokenizer()?.decode(part(document, round, EDITED), DecodeOptions::default());
    let one = |edit: &&str| {
        let question = format!("```\n{file}\n```\nWrite all of this file again. {edit}");
        Ok(vec![request(engine.encode_prompt(&question, false)?, EDITED, SamplingParams::greedy())])
    };
    EDITS.iter().map(one).collect()
}

fn bursts(_: &Engine, document: &[u32], round: usize) -> Result<Round, Box<dyn Error>> {
    let one = |i: usize| {
        let at = (12 * round + i) * 6007;
        match i % 2 {
            0 => request(span(document, at, 300, 30), 96, SamplingParams::greedy()),
            _ => request(span(document, at, 120, 0), 96, drawn(at)),
        }
    };
    Ok(vec![(0..12).map(one).collect()])
}

/// Runs a round by each variant, whoever comes first another one each time. Returns what the autotuner says of the last
/// answer.
fn play(engine: &mut Engine, round: &Round, i: usize, variants: &mut [Variant]) -> Result<String, Box<dyn Error>> {
    let (n, mut choices, mut expected) = (variants.len(), String::new(), HashMap::new());
    for variant in (0..n).map(|j| (i + j) % n) {
        let Variant { options, autotuner, kv, seconds, guesses, name } = &mut variants[variant];
        *guesses = (0, 0);
        let mut answers = Vec::new();
        let start = Instant::now();
        let mut scheduler = engine.scheduler(options)?;
        if i > 0 {
            autotuner.take().into_iter().for_each(|autotuner| scheduler.set_tuner(autotuner));
        }
        for group in round {
            for request in group {
                // Each finds what it has computed itself of a prompt, and nothing of others.
                let tenant = (i * n + variant + 1) as u64;
                scheduler.submit(GenerateRequest { tenant, kv: *kv, ..request.clone() })?;
            }
            for (id, answer) in scheduler.run() {
                let answer = answer?;
                let timings = &answer.timings;
                *guesses = (guesses.0 + timings.draft_tokens, guesses.1 + timings.accepted_tokens);
                if !answer.choices.is_empty() {
                    choices = answer.choices.into();
                }
                // With other keys and values answers may differ.
                if answer.kv.is_none_or(|kv| kv == KvPolicy::F16) {
                    answers.push((id, answer.tokens));
                }
            }
        }
        seconds.push(start.elapsed().as_secs_f64());
        *autotuner = scheduler.take_tuner().or(autotuner.take());
        for (id, tokens) in answers {
            if *expected.entry(id).or_insert_with(|| tokens.clone()) != tokens {
                return Err(format!("{name} gave another answer").into());
            }
        }
    }
    Ok(choices)
}

fn total(seconds: &[f64]) -> f64 {
    seconds.iter().sum()
}

fn shares(variants: &[Variant]) -> String {
    let share = |v: &Variant| format!("{} {:.3}", v.name, total(&v.seconds) / total(&variants[0].seconds));
    variants[1..].iter().map(share).collect::<Vec<_>>().join(", ")
}

fn report(name: &str, variants: &[Variant], choices: &str) -> Value {
    let of = |variant: &Variant| {
        let (own, default) = (&variant.seconds, &variants[0].seconds);
        let last = own.len() / 2;
        let mut ratios: Vec<f64> = own.iter().zip(default).map(|(a, b)| a / b).collect();
        ratios.sort_by(f64::total_cmp);
        json!({
            "name": variant.name,
            "seconds": own,
            "time": total(own) / total(default),
            "time_second_half": total(&own[last..]) / total(&default[last..]),
            "time_median_round": ratios[ratios.len() / 2],
            "guesses_of_last_round": { "made": variant.guesses.0, "right": variant.guesses.1 },
            "lost_by_trying": variant.autotuner.as_ref().map(|autotuner| autotuner.loss()),
        })
    };
    json!({ "workload": name, "choices": choices, "variants": variants.iter().map(of).collect::<Vec<_>>() })
}

/// Draws the autotuner's time over the default's, round by round and in all so far.
fn picture(workloads: &[(&str, Vec<Variant>, String)]) -> String {
    let (width, height, left) = (480.0, 160.0, 60.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"640\" height=\"{}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        workloads.len() as f64 * (height + 50.0) + 20.0
    );
    for (i, (name, variants, _)) in workloads.iter().enumerate() {
        let top = 34.0 + i as f64 * (height + 50.0);
        let y = |ratio: f64| top + height * (1.2 - ratio.clamp(0.4, 1.2)) / 0.8;
        let [default, autotuner] = [0, 1].map(|i| &variants[i].seconds);
        let x = |round: usize| left + width * (round as f64 + 0.5) / default.len() as f64;
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{:.0}\" font-weight=\"bold\">{name}: time over the default's</text>",
            top - 10.0
        );
        for tick in [0.4, 0.6, 0.8, 1.0, 1.2] {
            let (at, colour) = (y(tick), if tick == 1.0 { "#000" } else { "#ddd" });
            let _ = writeln!(
                svg,
                "<path d=\"M{left} {at:.1}h{width}\" stroke=\"{colour}\"/><text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{tick:.1}</text>",
                left - 6.0,
                at + 4.0
            );
        }
        let mut points = String::new();
        for round in 0..default.len() {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"#1b4f72\"/>",
                x(round),
                y(autotuner[round] / default[round])
            );
            let _ =
                write!(points, "{:.1},{:.1} ", x(round), y(total(&autotuner[..=round]) / total(&default[..=round])));
        }
        let _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" stroke=\"#b03a2e\" stroke-width=\"1.6\"/>");
    }
    svg + "<text x=\"60\" y=\"100%\" dy=\"-6\">dots: a round; line: all rounds so far</text>\n</svg>\n"
}
