//! `cargo xtask ci`: every check, cheapest first, stopping at the first that fails.
//!
//! All steps build with one profile, one target folder and the same flags, so a dependency is compiled once for
//! checking and once for running.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::shell::{self, PROFILE, Totals, cargo};
use crate::{clients, cross, models, node, npm, page, python, tidy, vulkan, web, wheel};

/// What `cargo xtask ci` is asked to do.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only these steps, in their usual order
    #[arg(value_name = "STEP", value_parser = STEPS.map(|step| step.name))]
    only: Vec<String>,
}

/// One check. It adds the totals of the tests it ran, also when it fails.
struct Step {
    name: &'static str,
    run: fn(&mut Totals) -> Result<()>,
}

/// Every step, cheapest first. `models` comes before the tests that read the models, and after `build`, whose
/// `ruvllm` fetches them; `cross` and `web` are last because they build the standard library for other machines.
const STEPS: [Step; 19] = [
    Step { name: "fmt", run: |_| shell::run(&mut cargo("fmt --all --check")) },
    Step { name: "tidy", run: |_| tidy::run() },
    Step { name: "clippy", run: |_| clippy() },
    Step { name: "build", run: |_| build().map(drop) },
    Step { name: "models", run: |_| models::fetch(&models::NAMES, build) },
    Step { name: "python", run: |_| python::run() },
    Step { name: "node", run: |_| node::run() },
    Step { name: "page", run: |_| page::make(true) },
    Step { name: "vulkan", run: |_| vulkan::run() },
    Step { name: "test", run: test },
    Step { name: "examples", run: |_| examples() },
    Step { name: "clients", run: |_| clients::run_quick(models::ruvllm_path(PROFILE)) },
    Step { name: "npm", run: |_| npm::run_in_ci() },
    Step { name: "wheel", run: |_| wheel::run_in_ci() },
    Step { name: "bench", run: |_| bench() },
    Step { name: "docs", run: |_| docs() },
    Step { name: "package", run: |_| package() },
    Step { name: "cross", run: |totals| cross::run(&cross::Args::default(), totals) },
    Step { name: "web", run: |_| web::run_quick(&models::ruvllm_path(PROFILE)) },
];

/// Runs the steps and prints a line for each, then the totals of all tests.
///
/// # Errors
/// A step failed; the message names it.
pub(crate) fn run(args: &Args) -> Result<()> {
    let chosen = |step: &&Step| args.only.is_empty() || args.only.iter().any(|name| name == step.name);
    let (mut summary, mut totals, mut failure) = (Vec::new(), Totals::default(), None);
    for step in STEPS.iter().filter(chosen) {
        println!("\n== {}", step.name);
        let (start, mut found) = (Instant::now(), Totals::default());
        let result = (step.run)(&mut found);
        totals.add(found);
        summary.push(line(step.name, result.is_ok(), start.elapsed(), found));
        if let Err(error) = result {
            failure = Some((step.name, error));
            break;
        }
    }
    println!("\n== summary");
    summary.iter().for_each(|line| println!("{line}"));
    println!("{totals}");
    match failure {
        Some((name, error)) => bail!("step '{name}' failed: {error:#}"),
        None => Ok(()),
    }
}

/// Returns one line of the summary.
fn line(name: &str, ok: bool, took: Duration, totals: Totals) -> String {
    let verdict = if ok { "ok" } else { "FAILED" };
    let tests = if totals == Totals::default() { String::new() } else { format!("  {totals}") };
    format!("{name:<8} {verdict:<6} {:>7.1} s{tests}", took.as_secs_f64())
}

/// Lints all targets, and the engine without any backend.
fn clippy() -> Result<()> {
    let lint = |what: &str| shell::run(cargo(what).args(["--profile", PROFILE, "--", "-D", "warnings"]));
    lint("clippy --workspace --all-targets")?;
    lint("clippy --package ruvllm-engine --no-default-features")
}

/// Builds all tests and what they run, and returns where `ruvllm` lies. It is what `test` needs, so nothing is built
/// for the models alone.
fn build() -> Result<PathBuf> {
    shell::run(cargo("test --workspace --no-run").args(["--profile", PROFILE]))?;
    Ok(models::ruvllm_path(PROFILE))
}

fn test(totals: &mut Totals) -> Result<()> {
    let (found, result) = shell::test(cargo("test --workspace --no-fail-fast").args(["--profile", PROFILE]));
    totals.add(found);
    result?;
    if found.n_ignored > 0 {
        bail!("{} tests are ignored; a test that cannot run fails, it does not skip", found.n_ignored);
    }
    Ok(())
}

/// Examples that stand for what a stranger does with one crate. They run without arguments and check what they compute.
const EXAMPLES: [&str; 9] = [
    "tensors",
    "quantized_matmul",
    "radix_cache",
    "chat_tokens",
    "apply",
    "own_backend",
    "tokio_stream",
    "teach",
    "notes",
];

/// Runs the examples, which were built with the tests.
fn examples() -> Result<()> {
    let folder = shell::target_dir().join(PROFILE).join("examples");
    EXAMPLES.iter().try_for_each(|name| shell::run(&mut Command::new(folder.join(name))))
}

/// Runs every bench once, as a test. `--workspace` keeps the features of the dependencies as the tests had them.
fn bench() -> Result<()> {
    shell::run(cargo("bench --workspace --bench *").args(["--profile", PROFILE, "--", "--test"]))
}

fn docs() -> Result<()> {
    shell::run(cargo("doc --workspace --no-deps").args(["--profile", PROFILE]).env("RUSTDOCFLAGS", "-D warnings"))
}

/// Packs every crate for crates.io, which finds dependencies without a version and files that are not there. Their builds are the same as
/// those of `build`, so they are left out.
fn package() -> Result<()> {
    let mut command = cargo("package --workspace --no-verify --allow-dirty --locked --quiet");
    for outside in ["ruvllm-testkit", "ruvllm-benches", "xtask"] {
        command.args(["--exclude", outside]);
    }
    shell::run(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines_align() {
        let totals = Totals { n_passed: 7, n_failed: 1, n_ignored: 0 };
        assert_eq!(line("fmt", true, Duration::from_millis(1250), Totals::default()), "fmt      ok         1.2 s");
        assert_eq!(
            line("test", false, Duration::from_secs(83), totals),
            "test     FAILED    83.0 s  7 passed, 1 failed"
        );
    }

    #[test]
    fn steps_are_named_once() {
        for (i, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..i].iter().all(|other| other.name != step.name), "two steps are named {}", step.name);
        }
    }
}
