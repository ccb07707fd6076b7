//! `cargo xtask bench`: measures kernels (criterion) and models (`ruvllm bench`), keeps baselines, prints tables.
//!
//! A baseline is a folder `benches/baselines/<host>/` with `kernels.json` and `models.json`: the host, the commit and
//! the ratios of each case, to scalar, to what the machine can do and to the peer. Figures of two machines say nothing
//! about a change, so `compare` refuses another host.

mod agent;
mod baseline;
mod criterion;
mod host;
mod models;
mod ratio;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use crate::shell;
use baseline::{Baseline, Place};
use criterion::Case;
use host::Host;
use ratio::ByCase;

/// What `cargo xtask bench` is asked to do.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    what: What,
}

#[derive(clap::Subcommand, Clone)]
enum Action {
    /// Measure and print (what happens without a word)
    Run,
    /// Measure and write the ratios as the baseline of this host
    Save,
    /// Measure and print each ratio beside the baseline of this host; fail if one fell
    Compare {
        /// Percent that a ratio may fall by
        #[arg(long, value_name = "PERCENT", default_value_t = 10.0)]
        tolerance: f64,
    },
    /// Print Markdown tables of the kernels measured last: what the machine can do, matrix products beside it, and the
    /// speed-up of every other kernel over scalar
    Table {
        /// A row per case instead of one per kernel
        #[arg(long)]
        full: bool,
    },
    /// Play the recorded session of an editing agent: without drafts, with drafts from the request alone, and with drafts from
    /// earlier texts as well; print times of decoding, and whether answers are the same
    Agent {
        /// Model that answers
        #[arg(long, value_name = "NAME", default_value = "qwen2.5-coder:0.5b")]
        model: String,
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
    /// Measure only kernel cases whose name matches this regular expression (and the machine)
    #[arg(long, global = true, value_name = "REGEX")]
    filter: Option<String>,
    /// Threads of the model runs
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    /// Rounds of the model runs
    #[arg(long, global = true, value_name = "N", default_value_t = 5)]
    reps: usize,
    /// Measure llama.cpp beside the models, with this Python that has llama-cpp-python
    #[arg(long, global = true, value_name = "PYTHON")]
    peer: Option<PathBuf>,
}

/// Measures, and saves, compares or prints.
///
/// # Errors
/// A bench fails, there is nothing to compare with, the baseline is of another host, or a ratio fell.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(Action::Table { full }) = args.action {
        let cases = criterion::read(&measurements(), SystemTime::UNIX_EPOCH)?;
        print!("{}", table::all(&cases, full)?);
        return Ok(());
    }
    if let Some(Action::Agent { model }) = &args.action {
        return agent::play(model, args.what.threads, args.what.reps.max(1));
    }
    let action = args.action.clone().unwrap_or(Action::Run);
    let host = Host::here()?;
    let (kernels, models) = (Place::new(&host, "kernels"), Place::new(&host, "models"));
    if let Action::Compare { .. } = action {
        // What is missing or does not fit is said before minutes of measuring.
        (!args.what.models).then(|| kernels.load()).transpose()?;
        (!args.what.kernels).then(|| models.load()).transpose()?;
    }
    let mut fallen = Vec::new();
    if !args.what.models {
        let filter = args.what.filter.as_deref();
        let cases = measure_kernels(filter)?;
        let again = |names: &[&str]| measure_kernels(Some(&exactly(names))).map(|cases| ratio::of_kernels(&cases));
        match action {
            Action::Save => {
                kernels.save(record(&host, machine(&cases), ratio::of_kernels(&cases))?, filter.is_some())?
            }
            Action::Compare { tolerance } => {
                fallen.extend(compare(&kernels, ratio::of_kernels(&cases), tolerance, &again)?);
            }
            Action::Run | Action::Table { .. } | Action::Agent { .. } => print!("{}", table::medians(&cases)),
        }
    }
    if !args.what.kernels {
        let What { threads, reps, ref peer, .. } = args.what;
        let what = models::What { n_threads: threads, n_rounds: reps.max(1), peer: peer.as_deref() };
        let measured = models::measure(&what)?;
        print!("{}", models::table(&measured));
        let ratios = measured.into_iter().map(|test| (test.name, test.ratios)).collect();
        match action {
            Action::Save => models.save(record(&host, BTreeMap::new(), ratios)?, false)?,
            Action::Compare { tolerance } => {
                fallen.extend(compare(&models, ratios, tolerance, &|_| Ok(BTreeMap::new()))?);
            }
            Action::Run | Action::Table { .. } | Action::Agent { .. } => {}
        }
    }
    if !fallen.is_empty() {
        bail!("{} ratios fell by more than the tolerance: {}", fallen.len(), fallen.join(", "));
    }
    Ok(())
}

/// Returns where criterion leaves what it measures.
fn measurements() -> PathBuf {
    shell::target_dir().join("criterion")
}

/// Runs the criterion benches. With a filter, older measurements stay for `table`, but do not come back.
fn measure_kernels(filter: Option<&str>) -> Result<Vec<Case>> {
    let (folder, start) = (measurements(), SystemTime::now());
    let bench = |which: &str| shell::cargo(&format!("bench --package ruvllm-benches --bench {which} --"));
    match filter {
        Some(filter) => {
            // Shares are of what the machine can do now.
            shell::run(bench("*").arg(format!("({filter})|^machine/|^matmul/[a-z0-9]+/read/")))?;
        }
        None => {
            if folder.exists() {
                std::fs::remove_dir_all(&folder).with_context(|| format!("cannot clear {}", folder.display()))?;
            }
            shell::run(&mut bench("*"))?;
        }
    }
    criterion::read(&folder, start)
}

/// Returns a regular expression that matches these cases, the scalar ones they are held against.
fn exactly(names: &[&str]) -> String {
    let mut names: Vec<String> = names.iter().flat_map(|name| [(*name).to_owned(), ratio::scalar_of(name)]).collect();
    names.sort();
    names.dedup();
    let escaped = names.iter().map(|name| name.replace('+', r"\+").replace('.', r"\."));
    format!("^({})$", escaped.collect::<Vec<_>>().join("|"))
}

/// Returns what the machine could do, by case.
fn machine(cases: &[Case]) -> BTreeMap<String, String> {
    let of_machine = cases.iter().filter(|case| ratio::is_machine(&case.name));
    of_machine.map(|case| (case.name.clone(), table::rate(case))).collect()
}

fn record(host: &Host, machine: BTreeMap<String, String>, ratios: ByCase) -> Result<Baseline> {
    Ok(Baseline { host: host.clone(), commit: host::commit()?, machine, ratios })
}

/// Prints every ratio beside the baseline, and returns the cases that fell, by name. What fell is measured a second
/// time by `again`, and the better ratio counts: among hundreds of cases some meet a busy moment.
fn compare(
    place: &Place,
    mut new: ByCase,
    tolerance: f64,
    again: &dyn Fn(&[&str]) -> Result<ByCase>,
) -> Result<Vec<String>> {
    let old = place.load()?;
    let fallen = |new: &ByCase| -> Vec<String> {
        let changes = baseline::changes(&old.ratios, new);
        let mut names: Vec<_> =
            baseline::fallen(&changes, tolerance).iter().map(|change| change.case.clone()).collect();
        names.dedup();
        names
    };
    let first = fallen(&new);
    if !first.is_empty() {
        println!("{} cases fell and are measured again", first.len());
        let second = again(&first.iter().map(String::as_str).collect::<Vec<_>>())?;
        for name in &first {
            if let (Some(ratios), Some(second)) = (new.get_mut(name), second.get(name)) {
                ratios.take_better(second);
            }
        }
    }
    println!("against commit {}", old.commit);
    print!("{}", baseline::show(&baseline::changes(&old.ratios, &new), tolerance));
    let missing: Vec<&str> = new.keys().filter(|name| !old.ratios.contains_key(*name)).map(String::as_str).collect();
    if !missing.is_empty() {
        println!("{} cases are not in the baseline: {}", missing.len(), missing.join(", "));
    }
    Ok(fallen(&new))
}

#[cfg(test)]
mod tests {
    #[test]
    fn cases_are_measured_again_by_name() {
        let names = ["matmul/qwen/qkv/Q5_0+Q8_0/n16/t1/avx2", "matmul/qwen/qkv/Q5_0+Q8_0/n8/t1/avx2"];
        let expected = r"^(matmul/qwen/qkv/Q5_0\+Q8_0/n16/t1/avx2|matmul/qwen/qkv/Q5_0\+Q8_0/n8/t1/avx2|matmul/qwen/qkv/Q5_0\+Q8_0/n8/t1/scalar)$";
        assert_eq!(super::exactly(&names), expected);
    }
}
