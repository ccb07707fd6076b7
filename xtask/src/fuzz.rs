//! `cargo xtask fuzz`: the targets of `fuzz/`, each for some minutes, with bounds on the time and the memory of a run.
//!
//! It needs `cargo-fuzz`, and installs it where it is not there. The toolchain stays the stable one: what the sanitizer
//! needs of the compiler is unlocked for the build of `fuzz/` alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{self, cargo};

/// What reads bytes of strangers, one target each.
const TARGETS: [&str; 12] = [
    "gguf",
    "safetensors",
    "folder",
    "peft",
    "gguf_adapter",
    "imatrix",
    "template",
    "grammar",
    "schema",
    "tool_calls",
    "records",
    "fields",
];

/// Seconds that a run may take. The sanitizer makes it several times slower than it is.
const RUN_SECONDS_MAX: u32 = 2;
/// Mebibytes that a run may leave in use, beyond what the sanitizer itself takes.
const MEMORY_MIB_MAX: u32 = 512;
/// Bytes of an input, at most.
const INPUT_BYTES_MAX: u32 = 4096;

/// What is asked for.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this target [default: all, one after the other]
    #[arg(value_parser = TARGETS)]
    target: Option<String>,
    /// How long each runs
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Build the targets and run none
    #[arg(long)]
    build: bool,
}

/// Runs it.
///
/// # Errors
/// The targets do not build, or one of them found something; libFuzzer says what, and leaves the input in
/// `target/fuzz/artifacts`.
pub(crate) fn run(args: &Args) -> Result<()> {
    if !cargo("fuzz --version").output().is_ok_and(|output| output.status.success()) {
        println!("installing cargo-fuzz");
        shell::run(&mut cargo("install --locked cargo-fuzz"))?;
    }
    let folder = shell::root().join("fuzz");
    shell::run(&mut fuzz(&folder, "build"))?;
    if args.build {
        return Ok(());
    }
    let mut failed = Vec::new();
    for target in TARGETS.into_iter().filter(|target| args.target.as_deref().is_none_or(|only| only == *target)) {
        println!("\n== {target}");
        if let Err(error) = one(&folder, target, args.minutes) {
            println!("{error:#}");
            failed.push(target);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => bail!("found something: {}; the inputs lie in target/fuzz/artifacts", failed.join(", ")),
    }
}

/// Runs a target. What it finds new is kept in `target/fuzz/corpus`, beside the seeds.
fn one(folder: &Path, target: &str, minutes: f64) -> Result<()> {
    let (corpus, seeds) = (found().join("corpus").join(target), folder.join("seeds").join(target));
    let artifacts = found().join("artifacts").join(target);
    for folder in [&corpus, &artifacts] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut command = fuzz(folder, "run");
    command.arg(target).args([&corpus, &seeds]).arg("--");
    command.arg(format!("-artifact_prefix={}/", artifacts.display()));
    command.arg(format!("-max_total_time={}", (60.0 * minutes).ceil()));
    command.arg(format!("-timeout={RUN_SECONDS_MAX}"));
    // No allocation and no run may take more; what the process holds besides are models and the sanitizer's shadow.
    command.arg(format!("-malloc_limit_mb={MEMORY_MIB_MAX}")).arg(format!("-rss_limit_mb={}", 3 * MEMORY_MIB_MAX));
    // Threads of a server live as long as the process.
    command.arg(format!("-max_len={INPUT_BYTES_MAX}")).args(["-detect_leaks=0", "-print_final_stats=1"]);
    shell::run(&mut command)
}

/// Returns where targets are built and what they find is put.
fn found() -> PathBuf {
    shell::target_dir().join("fuzz")
}

/// Returns a call of cargo-fuzz in its folder.
fn fuzz(folder: &Path, what: &str) -> Command {
    let mut command = cargo("fuzz");
    command
        .args([what, "--fuzz-dir", ".", "--target-dir"])
        .arg(found().join("build"))
        .current_dir(folder)
        .env("RUSTC_BOOTSTRAP", "1");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_file_and_seeds() {
        let folder = shell::root().join("fuzz");
        let mut names: Vec<String> = fs::read_dir(folder.join("targets"))
            .expect("targets")
            .map(|entry| entry.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
            .collect();
        names.sort();
        let mut expected = TARGETS.map(str::to_owned);
        expected.sort();
        assert_eq!(names, expected);
        for target in TARGETS {
            let files: Vec<u64> = fs::read_dir(folder.join("seeds").join(target))
                .unwrap_or_else(|_| panic!("no seeds of {target}"))
                .map(|entry| entry.expect("an entry").metadata().expect("a file").len())
                .collect();
            assert!(!files.is_empty() && files.iter().all(|n| *n <= u64::from(INPUT_BYTES_MAX)), "{target}: {files:?}");
        }
    }
}
