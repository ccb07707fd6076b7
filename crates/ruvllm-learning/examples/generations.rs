//! Which generations the gate publishes, of good and of bad feedback: `generations MODEL OUT.json NAME=FOLDER…`
//!
//! Each folder is a domain: its files in order, cut into requests of 512 tokens. A trial has 24 of them; every third is held
//! back, as a server holds back prompts, and four candidates for a generation learn the others from what is known so far:
//!
//! ```text
//! text      the text as it is: a good generation
//! random    the same contexts, each with another token of the trial behind it (random feedback)
//! lie       the same contexts, every token exchanged for always the same other one (consistent, so it can be learned)
//! garbage   the trial's tokens in random order, judged good
//! ```
//!
//! The gate judges each by what was held back, against the project's own two control texts and what an earlier trial of
//! the domain held back. A published text is what the domain's next trial begins with. The share of the bad ones that were
//! published and of the good ones that were not is what the gate is worth.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{Engine, LoadOptions};
use ruvllm_learning::{
    EvaluationStream, EvaluationStreamOptions, LearnOptions, Learned, Learning, LearningOptions, WindowOptions,
    read_text,
};
use ruvllm_sona::publish::{Paired, PublicationGate};
use serde_json::{Value, json};

/// Tokens of a request, requests of a trial, and of how many one is held back.
const N_TOKENS: usize = 512;
const N_REQUESTS: usize = 24;
const ONE_OF: usize = 3;
/// Tokens of a block, and blocks of a control.
const BLOCK: usize = 64;
const CONTROL_BLOCKS: usize = 32;
/// The texts that learning must not harm.
const CONTROLS: [(&str, &str); 2] =
    [("prose", include_str!("../src/control/prose.txt")), ("code", include_str!("../src/control/code.txt"))];
/// What is taught, and whether it should be published.
const KINDS: [(&str, bool); 4] = [("text", true), ("random", false), ("lie", false), ("garbage", false)];

type Result<T> = std::result::Result<T, Box<dyn Error>>;
type Request = Vec<u32>;
/// A text's name and its requests.
type Control = (String, Vec<Request>);

/// Numbers that look random and are the same each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    /// Puts tokens in another order (Fisher and Yates).
    fn shuffle(&mut self, tokens: &mut [u32]) {
        (1..tokens.len()).rev().for_each(|i| tokens.swap(i, self.below(i + 1)));
    }
}

/// What is taught in the place of a text.
struct BadFeedback {
    random: Request,
    lie: Request,
    garbage: Vec<Request>,
}

impl BadFeedback {
    fn new(tokens: &[u32], seed: u64) -> BadFeedback {
        let mut random = tokens.to_vec();
        Draw(seed).shuffle(&mut random);
        let mut kinds = tokens.to_vec();
        kinds.sort_unstable();
        kinds.dedup();
        let other = |token: &u32| kinds[(kinds.binary_search(token).unwrap_or(0) + kinds.len() / 2) % kinds.len()];
        let garbage = random.chunks_exact(N_TOKENS).map(<[u32]>::to_vec).collect();
        BadFeedback { lie: tokens.iter().map(other).collect(), random, garbage }
    }
}

/// The model, and what is common to all trials.
struct Bench {
    engine: Engine,
    learning: Learning,
    options: EvaluationStreamOptions,
}

impl Bench {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let options = EncodeOptions { add_special: false, parse_special: false };
        Ok(self.engine.tokenizer()?.encode(text, options)?)
    }

    /// Returns a domain's requests.
    fn domain(&self, folder: &str) -> Result<Vec<Request>> {
        let entries = std::fs::read_dir(folder).map_err(|error| format!("{folder}: {error}"))?;
        let mut files: Vec<_> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        files.sort();
        let mut requests = Vec::new();
        for file in files {
            let tokens = self.encode(&std::fs::read_to_string(&file)?)?;
            requests.extend(tokens.chunks_exact(N_TOKENS).map(<[u32]>::to_vec));
        }
        Ok(requests)
    }

    /// Has states learn the same requests, each with its own tokens in the place of those that follow.
    fn teach(&mut self, from: &Learned, requests: &[Request], taught: &[Option<Vec<u32>>]) -> Result<Vec<Learned>> {
        let mut courses: Vec<EvaluationStream> =
            taught.iter().map(|_| EvaluationStream::new(from.clone(), self.options)).collect();
        let head = self.learning.head();
        for (i, request) in requests.iter().enumerate() {
            read_text(&mut self.engine, request, &WindowOptions::default(), &mut |engine, shown| {
                let at = i * N_TOKENS + shown.first;
                for (course, taught) in courses.iter_mut().zip(taught) {
                    let taught = taught.as_ref().map(|taught| &taught[at..at + shown.rows.next.len()]);
                    course.read(engine, shown.rows, taught, head)?;
                }
                Ok(())
            })?;
            courses.iter_mut().for_each(EvaluationStream::end_text);
        }
        Ok(courses.into_iter().map(EvaluationStream::finish).collect())
    }

    /// Returns the mean losses of the blocks of some requests under each of the states.
    fn losses(&mut self, states: &[&Learned], requests: &[Request]) -> Result<Vec<Vec<f64>>> {
        let options = EvaluationStreamOptions { is_learning: false, ..self.options };
        let mut courses: Vec<EvaluationStream> =
            states.iter().map(|&state| EvaluationStream::new(state.clone(), options)).collect();
        let mut blocks = vec![Vec::new(); states.len()];
        let head = self.learning.head();
        for request in requests {
            read_text(&mut self.engine, request, &WindowOptions::default(), &mut |engine, shown| {
                courses.iter_mut().try_for_each(|course| course.read(engine, shown.rows, None, head))
            })?;
            for (course, blocks) in courses.iter_mut().zip(&mut blocks) {
                course.end_text();
                let nll = course.take_nll();
                let mean = |block: &[f32]| block.iter().map(|&x| f64::from(x)).sum::<f64>() / BLOCK as f64;
                blocks.extend(nll.chunks_exact(BLOCK).map(mean));
            }
        }
        Ok(blocks)
    }

    /// Learns a trial in four ways from `known` and judges them; returns the report and what learned the text itself, if that
    /// is published.
    fn trial(
        &mut self,
        known: &Learned,
        requests: &[Request],
        controls: &[Control],
        seed: usize,
    ) -> Result<(Value, Option<Learned>)> {
        let (held, learned) = split(requests);
        let BadFeedback { random, lie, garbage } = BadFeedback::new(&learned.concat(), seed as u64);
        let mut candidates = self.teach(known, &learned, &[None, Some(random), Some(lie)])?;
        candidates.extend(self.teach(known, &garbage, &[None])?);
        let states: Vec<&Learned> = std::iter::once(known).chain(&candidates).collect();
        let target = self.losses(&states, &held)?;
        let others = controls.iter().map(|(_, text)| self.losses(&states, text)).collect::<Result<Vec<_>>>()?;
        let mut report = serde_json::Map::new();
        let paired = |name: &str, blocks: &[Vec<f64>], i: usize| Paired {
            name: name.to_owned(),
            before: blocks[0].clone(),
            after: blocks[i + 1].clone(),
        };
        let mut is_kept = false;
        for (i, (kind, is_good)) in KINDS.into_iter().enumerate() {
            let controls: Vec<Paired> =
                controls.iter().zip(&others).map(|((name, _), blocks)| paired(name, blocks, i)).collect();
            let judgement = PublicationGate::default().judge(&paired("held back", &target, i), &controls)?;
            eprintln!(
                "   {kind}: {} ({})",
                if judgement.is_published { "published" } else { "discarded" },
                judgement.why
            );
            is_kept |= is_good && judgement.is_published;
            let risen: Vec<f64> = judgement.controls.iter().map(|change| change.relative).collect();
            report.insert(
                kind.to_owned(),
                json!({ "published": judgement.is_published, "why": judgement.why,
                    "held_back": judgement.target.relative, "controls": risen }),
            );
        }
        Ok((Value::Object(report), is_kept.then(|| candidates.swap_remove(0))))
    }
}

/// Returns the requests of a trial that are held back, and those that are learned.
fn split(requests: &[Request]) -> (Vec<Request>, Vec<Request>) {
    let all = requests.iter().cloned().enumerate();
    let (held, learned): (Vec<_>, Vec<_>) = all.partition(|(i, _)| i % ONE_OF == ONE_OF - 1);
    let of = |part: Vec<(usize, Request)>| part.into_iter().map(|(_, request)| request).collect();
    (of(held), of(learned))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (model, out) = (args.first().ok_or("MODEL OUT.json NAME=FOLDER…")?, args.get(1).ok_or("OUT.json")?);
    let n_trials = args.iter().find_map(|arg| arg.strip_prefix("trials=")?.parse().ok()).unwrap_or(2);
    let load = LoadOptions { n_ctx: Some(2048), prefix_cache: false, ..LoadOptions::default() };
    let mut engine = Engine::load(Path::new(model), &load, &mut |_| {})?;
    let learning =
        Learning::open(&mut engine, LearningOptions::default(), &mut |_| std::ops::ControlFlow::Continue(()))?;
    let mut bench = Bench {
        engine,
        learning,
        options: EvaluationStreamOptions { is_patient: true, ..EvaluationStreamOptions::default() },
    };
    let cut = |tokens: Vec<u32>| vec![tokens.into_iter().take(CONTROL_BLOCKS * BLOCK).collect::<Vec<_>>()];
    let own = CONTROLS.map(|(name, text)| bench.encode(text).map(|tokens| (name.to_owned(), cut(tokens))));
    let own = own.into_iter().collect::<Result<Vec<_>>>()?;
    let (mut trials, start) = (Vec::new(), Instant::now());
    let mut counts = [[0usize; 2]; KINDS.len()];
    for (name, folder) in args[2..].iter().filter_map(|arg| arg.split_once('=')) {
        if name == "trials" {
            continue;
        }
        let requests = bench.domain(folder)?;
        if requests.len() < N_REQUESTS {
            return Err(format!(
                "{folder}: {} requests of {N_TOKENS} tokens, a trial has {N_REQUESTS}",
                requests.len()
            )
            .into());
        }
        let fresh =
            Learned::new(Arc::clone(bench.learning.calibration()), LearnOptions::default(), bench.engine.compute())?;
        let (mut known, mut controls) = (fresh, own.clone());
        for (i, requests) in requests.chunks_exact(N_REQUESTS).take(n_trials).enumerate() {
            eprintln!("{:.0} s: {name}, trial {}", start.elapsed().as_secs_f64(), i + 1);
            let (report, published) = bench.trial(&known, requests, &controls, trials.len())?;
            for (count, (kind, _)) in counts.iter_mut().zip(KINDS) {
                count[usize::from(report[kind]["published"] == true)] += 1;
            }
            trials.push(json!({ "domain": name, "trial": i + 1, "candidates": report }));
            known = published.unwrap_or(known);
            controls.truncate(own.len());
            controls.push(("held back earlier".to_owned(), cut(split(requests).0.concat())));
            let shares: serde_json::Map<String, Value> = counts
                .iter()
                .zip(KINDS)
                .map(|([not, published], (kind, _))| {
                    (kind.to_owned(), json!({ "published": published, "of": not + published }))
                })
                .collect();
            std::fs::write(
                out,
                serde_json::to_string_pretty(&json!({ "model": model, "published": shares, "trials": trials }))?,
            )?;
        }
    }
    for ([not, published], (kind, is_good)) in counts.iter().zip(KINDS) {
        println!("{kind} ({}): {published} of {} published", if is_good { "good" } else { "bad" }, not + published);
    }
    Ok(())
}
