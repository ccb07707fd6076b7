//! What an adapter forgets when it learns one domain after another, and what holds it:
//! `forgetting MODEL OUT.json NAME=FOLDER… control=FOLDER…`
//!
//! Each folder is a domain: its files in order, cut into sequences of 256 tokens; the first are learned, others held back. Those named
//! `control` are never learned: the gate does not let them suffer. For each
//! method the matrix `R[i][j]` is the mean loss of domain `j`, held back, behind learning domain `i` (row 0: before any). From it, in
//! shares of the loss before any learning, as Lopez-Paz & Ranzato 2017 (arXiv:1706.08840) have it for losses:
//!
//! ```text
//! ACC   mean over j of R[T][j]/R[0][j] - 1              below 0 is better
//! BWT   mean over j < T of (R[T][j] - R[j][j])/R[0][j]  what became of it since it was learned; above 0 is forgetting
//! FWT   mean over j > 1 of (R[j-1][j] - R[0][j])/R[0][j]  what others taught before it was learned; below 0 helps
//! worst max over i and j ≤ i of R[i][j]/min over earlier rows - 1
//! ```

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{CancelToken, Engine, LoadOptions};
use ruvllm_learning::{DeepTrainer, DeepTrainerOptions};
use ruvllm_sona::deep::{DeepModel, DeepOptions, DeepState, DeepTask, TrainingSequence};
use ruvllm_sona::ewc::Consolidation;
use ruvllm_sona::publish::PublicationGate;
use serde_json::{Value, json};

/// Tokens of a sequence.
const N_TOKENS: usize = 256;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn setting(name: &str, default: f64) -> f64 {
    std::env::args()
        .filter_map(|arg| arg.strip_prefix(&format!("{name}="))?.parse().ok())
        .next_back()
        .unwrap_or(default)
}

/// Returns a domain's sequences: those that are learned, and those that are held back, from other files where there are several.
fn domain(engine: &Engine, name: &str, folder: &str, n_learned: usize, n_held: usize) -> Result<DeepTask> {
    let mut files: Vec<_> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    let bos = engine.tokenizer()?.bos_to_add().or(engine.tokenizer()?.bos());
    let mut sequences = Vec::new();
    for file in files {
        let tokens = engine.tokenizer()?.encode(&std::fs::read_to_string(&file)?, EncodeOptions::default())?;
        for piece in tokens.chunks_exact(N_TOKENS - 1) {
            let tokens: Vec<u32> = bos.into_iter().chain(piece.iter().copied()).collect();
            sequences.push(TrainingSequence { tokens, n_read: 1 });
        }
    }
    if sequences.len() < n_learned + n_held {
        return Err(format!("{folder}: {} lessons, {} are needed", sequences.len(), n_learned + n_held).into());
    }
    let holdout = sequences.split_off(sequences.len() - n_held);
    sequences.truncate(n_learned);
    Ok(DeepTask { domain: name.to_owned(), sequences, holdout, controls: Vec::new() })
}

fn mean(losses: &[f64]) -> f64 {
    losses.iter().sum::<f64>() / losses.len() as f64
}

/// Returns the figures of a matrix whose first row is before any learning.
fn figures(matrix: &[Vec<f64>]) -> Value {
    let n = matrix[0].len();
    let base = &matrix[0];
    let over = |all: Vec<f64>| mean(&all);
    let acc = over((0..n).map(|j| matrix[n][j] / base[j] - 1.0).collect());
    let bwt = over((0..n - 1).map(|j| (matrix[n][j] - matrix[j + 1][j]) / base[j]).collect());
    let fwt = over((1..n).map(|j| (matrix[j][j] - base[j]) / base[j]).collect());
    let mut worst = 0.0f64;
    for j in 0..n {
        // A domain counts from when it was learned; the best before that counts as well.
        let column: Vec<f64> = matrix.iter().map(|row| row[j]).collect();
        let mut best = f64::INFINITY;
        for (i, &loss) in column.iter().enumerate() {
            best = best.min(loss);
            if i > j {
                worst = worst.max(loss / best - 1.0);
            }
        }
    }
    json!({ "acc": acc, "bwt": bwt, "fwt": fwt, "worst_above_best": worst })
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (model, out) = (args.first().ok_or("MODEL OUT.json NAME=FOLDER…")?, args.get(1).ok_or("OUT.json")?);
    let sizes = (setting("learned", 24.0) as usize, setting("held", 16.0) as usize);
    let (n_epochs, strength) = (setting("epochs", 3.0), setting("strength", 1e3) as f32);
    let options = DeepTrainerOptions {
        rank: setting("rank", 4.0) as usize,
        n_blocks: setting("blocks", 4.0) as usize,
        rate: setting("rate", 1e-3),
    };
    let load = LoadOptions { n_threads: 1, n_ctx: Some(512), prefix_cache: false, ..LoadOptions::default() };
    let engine = Engine::load(Path::new(model), &load, &mut |_| {})?;
    let folders =
        args[2..].iter().filter_map(|arg| arg.split_once('=').filter(|(_, folder)| Path::new(folder).is_dir()));
    let (mut tasks, mut controls) = (Vec::new(), Vec::new());
    for (name, folder) in folders {
        match name {
            "control" => controls.push((folder.to_owned(), domain(&engine, folder, folder, 0, sizes.1)?.holdout)),
            _ => tasks.push(domain(&engine, name, folder, sizes.0, sizes.1)?),
        }
    }
    tasks.iter_mut().for_each(|task| task.controls.clone_from(&controls));
    let mut trainer = DeepTrainer::new(&engine, &options, CancelToken::default(), &mut |_| {})?;
    let plain = DeepOptions {
        n_epochs,
        strength,
        consolidation: None,
        replay_share: 0.0,
        gate: None,
        ..DeepOptions::default()
    };
    let (newest, replay_share) = (0.5, 1.0);
    let methods = [
        ("none", plain),
        ("EWC", DeepOptions { consolidation: Some(Consolidation::Ewc), ..plain }),
        ("EWC++", DeepOptions { consolidation: Some(Consolidation::PlusPlus { newest }), ..plain }),
        ("replay", DeepOptions { replay_share, ..plain }),
        ("replay + gate", DeepOptions { replay_share, gate: Some(PublicationGate::default()), ..plain }),
    ];
    let n_tokens: usize = tasks.iter().flat_map(|task| &task.sequences).map(|sequence| sequence.tokens.len()).sum();
    let mut report = json!({
        "model": model, "domains": tasks.iter().map(|task| task.domain.as_str()).collect::<Vec<_>>(), "rank": options.rank,
        "blocks": options.n_blocks, "rate": options.rate, "epochs": n_epochs, "strength": strength, "learned_tokens": n_tokens, "methods": [],
    });
    let start = Instant::now();
    let fresh = trainer.fresh()?;
    let row = |trainer: &mut DeepTrainer, values: &_| -> Result<Vec<f64>> {
        tasks.iter().map(|task| Ok(mean(&trainer.losses(values, &task.holdout)?))).collect()
    };
    let base = row(&mut trainer, &fresh)?;
    eprintln!("{:.0} s: before any learning {base:.3?}", start.elapsed().as_secs_f64());
    for (name, options) in methods {
        let (mut state, mut matrix, mut decisions) =
            (DeepState::new(&mut trainer, &options)?, vec![base.clone()], vec![]);
        for task in &tasks {
            let judgement = state.run(task, &options, &mut trainer)?;
            matrix.push(row(&mut trainer, state.values())?);
            decisions.extend(judgement.map(|judgement| judgement.why));
            let last =
                matrix.last().map(|row| row.iter().zip(&base).map(|(x, b)| 100.0 * (x / b - 1.0)).collect::<Vec<_>>());
            eprintln!(
                "{:.0} s: {name}, {}: {:+.2?} %",
                start.elapsed().as_secs_f64(),
                task.domain,
                last.unwrap_or_default()
            );
            decisions.last().inspect(|why| eprintln!("   {why}"));
        }
        let mut one = json!({ "method": name, "matrix": matrix, "decisions": decisions, "seconds": start.elapsed().as_secs_f64() });
        one["figures"] = figures(&matrix);
        eprintln!("   {}", one["figures"]);
        report["methods"].as_array_mut().ok_or("a list")?.push(one);
        std::fs::write(out, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}
