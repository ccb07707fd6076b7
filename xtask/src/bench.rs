//! `cargo xtask bench`: measures kernels (criterion) and models (`ruvllm bench`), keeps baselines, prints tables.
//!
//! A baseline is a folder `benches/baselines/<host>/` with `kernels.json` and `models.json`: the host, the commit and
//! one median per case. Figures of two machines say nothing about a change, so `compare` refuses another host.

mod criterion;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{models, shell};

/// What `cargo xtask bench` is asked to do.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    what: What,
}

#[derive(clap::Subcommand, Clone, Copy)]
enum Action {
    /// Measure and print (what happens without a word)
    Run,
    /// Measure and write the baseline of this host
    Save,
    /// Measure and print the ratio to the baseline of this host
    Compare,
    /// Print, from the last measurement, the speed-up of every kernel over scalar as a Markdown table
    Table {
        /// A row per case instead of one per kernel
        #[arg(long)]
        full: bool,
    },
}

/// What is measured.
#[derive(clap::Args)]
struct What {
    /// Measure only kernels
    #[arg(long, global = true, conflicts_with = "models")]
    kernels: bool,
    /// Measure only models
    #[arg(long, global = true)]
    models: bool,
    /// Measure only kernel cases whose name matches this regular expression
    #[arg(long, global = true, value_name = "REGEX")]
    filter: Option<String>,
    /// Threads of the model runs
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    /// Repetitions of each model run
    #[arg(long, global = true, value_name = "N", default_value_t = 5)]
    reps: usize,
}

/// The machine a figure belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Host {
    name: String,
    cpu: String,
    n_cores: usize,
    memory_gib: u64,
}

/// Medians of one kind, by the name of the case.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Baseline {
    host: Host,
    commit: String,
    /// What the figures count: `ns` (less is better) or `tokens/s` (more is better).
    unit: String,
    medians: BTreeMap<String, f64>,
}

/// Measures, and saves, compares or prints.
///
/// # Errors
/// A bench fails, there is nothing to compare with, or the baseline is of another host.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(Action::Table { full }) = args.action {
        let cases = criterion::read(&shell::target_dir().join("criterion"))?;
        print!("{}", table::speed_ups(&cases, full)?);
        return Ok(());
    }
    let action = args.action.unwrap_or(Action::Run);
    let (host, commit) = (host()?, commit()?);
    if let Action::Compare = action {
        // What is missing or does not fit is said before minutes of measuring.
        let wanted = [("kernels.json", !args.what.models), ("models.json", !args.what.kernels)];
        for (file, _) in wanted.into_iter().filter(|(_, wanted)| *wanted) {
            same_machine(&load(&baseline_folder(&host)?.join(file))?.host, &host)?;
        }
    }
    let mut measured = Vec::new();
    if !args.what.models {
        measured.push(("kernels.json", "ns", measure_kernels(args.what.filter.as_deref())?));
    }
    if !args.what.kernels {
        measured.push(("models.json", "tokens/s", measure_models(&args.what)?));
    }
    for (file, unit, medians) in measured {
        let new = Baseline { host: host.clone(), commit: commit.clone(), unit: unit.to_owned(), medians };
        match action {
            Action::Save => save(&new, file, args.what.filter.is_some())?,
            Action::Compare => compare(&new, file)?,
            Action::Run | Action::Table { .. } => print!("{}", table::medians(unit, &new.medians)),
        }
    }
    Ok(())
}

/// Runs the criterion benches and returns the median of each case in nanoseconds.
fn measure_kernels(filter: Option<&str>) -> Result<BTreeMap<String, f64>> {
    let folder = shell::target_dir().join("criterion");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
    }
    shell::run(shell::cargo("bench --package ruvllm-benches --bench * --").args(filter))?;
    Ok(criterion::read(&folder)?.into_iter().map(|case| (case.name, case.median_ns)).collect())
}

/// Runs `ruvllm bench` on every real model and returns tokens per second by `model/test`.
fn measure_models(what: &What) -> Result<BTreeMap<String, f64>> {
    models::fetch(&models::NAMES, models::build_ruvllm)?;
    shell::run(&mut shell::cargo("build --release --package ruvllm-cli"))?;
    let ruvllm = models::ruvllm_path("release");
    let mut medians = BTreeMap::new();
    for model in models::NAMES {
        let mut command = Command::new(&ruvllm);
        command.args(["bench", "--json", "--model", model, "--pp", "128,512", "--tg", "64"]);
        command.args(["--depth", "0,2048", "--batch", "1,8", "--reps", &what.reps.to_string()]);
        if let Some(n_threads) = what.threads {
            command.args(["--threads", &n_threads.to_string()]);
        }
        println!("{model}");
        read_model_bench(model, &shell::output(&mut command)?, &mut medians)?;
    }
    Ok(medians)
}

/// What is read of the object that `ruvllm bench --json` prints.
#[derive(Deserialize)]
struct ModelBench {
    isa: String,
    threads: usize,
    results: Vec<ModelResult>,
}

#[derive(Deserialize)]
struct ModelResult {
    test: String,
    tps: f64,
}

fn read_model_bench(model: &str, json: &str, medians: &mut BTreeMap<String, f64>) -> Result<()> {
    let bench: ModelBench =
        serde_json::from_str(json).with_context(|| format!("`ruvllm bench` on {model} printed '{}'", json.trim()))?;
    for ModelResult { test, tps } in bench.results {
        medians.insert(format!("{model}/{test}/{}/t{}", bench.isa, bench.threads), tps);
    }
    Ok(())
}

/// Writes a baseline. With `keep`, cases that were not measured this time stay as they were.
fn save(new: &Baseline, file: &str, keep: bool) -> Result<()> {
    let folder = shell::root().join("benches/baselines").join(&new.host.name);
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let path = folder.join(file);
    let mut medians = if keep && path.exists() { load(&path)?.medians } else { BTreeMap::new() };
    medians.extend(new.medians.clone());
    let whole = Baseline { medians, host: new.host.clone(), commit: new.commit.clone(), unit: new.unit.clone() };
    let json = serde_json::to_string_pretty(&whole).expect("a map of numbers is JSON") + "\n";
    std::fs::write(&path, json).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: {} medians", path.display(), whole.medians.len());
    Ok(())
}

/// Prints the ratio of every case to the baseline of this host.
fn compare(new: &Baseline, file: &str) -> Result<()> {
    let path = baseline_folder(&new.host)?.join(file);
    let old = load(&path)?;
    println!("against {} of commit {}", path.display(), old.commit);
    print!("{}", table::ratios(&old.unit, &old.medians, &new.medians));
    Ok(())
}

fn load(path: &PathBuf) -> Result<Baseline> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no baseline", path.display()))
}

/// Returns the folder of this host's baseline.
fn baseline_folder(host: &Host) -> Result<PathBuf> {
    let all = shell::root().join("benches/baselines");
    let folder = all.join(&host.name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let entries = all.read_dir().into_iter().flatten().flatten();
    let names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    bail!("no baseline of host {} (there is: {names}); run `cargo xtask bench save` first", host.name)
}

/// Refuses to compare figures of two machines.
fn same_machine(old: &Host, new: &Host) -> Result<()> {
    if (&old.cpu, old.n_cores) != (&new.cpu, new.n_cores) {
        bail!(
            "the baseline is of {} with {} cores and this machine is {} with {}; figures of two machines do not compare",
            old.cpu,
            old.n_cores,
            new.cpu,
            new.n_cores
        );
    }
    Ok(())
}

/// Describes this machine. `RUVLLM_BENCH_HOST` overrides the name, which in containers changes with every start.
fn host() -> Result<Host> {
    let name = match std::env::var("RUVLLM_BENCH_HOST") {
        Ok(name) => name,
        Err(_) => shell::output(&mut Command::new("hostname"))?,
    };
    let name: String = name.trim().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    if name.is_empty() {
        bail!("this machine has no name; set RUVLLM_BENCH_HOST");
    }
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key| {
        let line = text.lines().find(|line| line.starts_with(key));
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
    };
    let kib = field(&read("/proc/meminfo"), "MemTotal").and_then(|value| value.split(' ').next()?.parse::<u64>().ok());
    Ok(Host {
        name,
        cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        n_cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
        memory_gib: kib.unwrap_or(0) >> 20,
    })
}

/// Returns the commit that is measured, marked where the tree has changes of its own.
fn commit() -> Result<String> {
    let describe = ["describe", "--always", "--dirty", "--abbrev=12"];
    Ok(shell::output(Command::new("git").args(describe).current_dir(shell::root()))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_benches_are_read() {
        let json = r#"{"isa":"avx2","threads":2,"weight_bytes":97,"read_gbps":30.5,"load_ms":12,
            "results":[{"test":"pp512","tps":1650.0,"tps_min":1,"tps_max":2},{"test":"tg64@d2048","tps":87.5}]}"#;
        let mut medians = BTreeMap::new();
        read_model_bench("smollm2:135m", json, &mut medians).expect("the object of `ruvllm bench`");
        let expected = [("smollm2:135m/pp512/avx2/t2", 1650.0), ("smollm2:135m/tg64@d2048/avx2/t2", 87.5)];
        assert!(medians.iter().map(|(name, tps)| (name.as_str(), *tps)).eq(expected));
        assert!(read_model_bench("smollm2:135m", "error", &mut medians).is_err());
    }

    #[test]
    fn other_machines_are_refused() {
        let host = Host { name: "a".to_owned(), cpu: "Zen 5".to_owned(), n_cores: 2, memory_gib: 23 };
        assert!(same_machine(&host, &Host { name: "b".to_owned(), memory_gib: 24, ..host.clone() }).is_ok());
        let error = same_machine(&host, &Host { n_cores: 4, ..host.clone() }).expect_err("4 cores are not 2");
        assert!(error.to_string().contains("Zen 5 with 2 cores"), "{error}");
    }

    #[test]
    fn baselines_round_trip() {
        let medians = BTreeMap::from([("norm/576/avx2".to_owned(), 41.5)]);
        let old = Baseline { host: Host::default(), commit: "abc".to_owned(), unit: "ns".to_owned(), medians };
        let json = serde_json::to_string(&old).expect("a baseline is JSON");
        assert_eq!(serde_json::from_str::<Baseline>(&json).expect("it reads back"), old);
    }
}
