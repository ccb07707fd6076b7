//! `cargo xtask models`: fetches the real models that tests and benches read, by the product's own `ruvllm pull`.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{self, PROFILE, cargo};

/// The models that the tests read, by their registry names, smallest first.
pub(crate) const NAMES: [&str; 4] = ["smollm2:135m", "minilm:l6", "gemma3:270m", "qwen2.5-coder:0.5b"];

/// Those of them that write text.
pub(crate) const WRITERS: [&str; 3] = ["smollm2:135m", "gemma3:270m", "qwen2.5-coder:0.5b"];

/// How often a pull is tried before it counts as failed; networks are not always there.
const N_TRIES: usize = 3;

/// Which models `cargo xtask models` fetches.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fetch only this model
    #[arg(long, value_name = "NAME", value_parser = NAMES)]
    only: Option<String>,
}

/// Fetches the models that are not there.
///
/// # Errors
/// `ruvllm` cannot be built, or a model cannot be pulled.
pub(crate) fn run(args: &Args) -> Result<()> {
    match &args.only {
        Some(name) => fetch(&[name], build_ruvllm),
        None => fetch(&NAMES, build_ruvllm),
    }
}

/// Fetches each of `names` unless it is there, with the program that `ruvllm` builds.
///
/// # Errors
/// `ruvllm` cannot be built, or a model cannot be pulled.
pub(crate) fn fetch(names: &[&str], ruvllm: fn() -> Result<PathBuf>) -> Result<()> {
    let folder = folder()?;
    let (mut missing, mut n_present) = (Vec::new(), 0);
    for &name in names {
        let path = folder.join(file_name(name));
        if path.is_file() {
            println!("{name}: {}", path.display());
            n_present += 1;
        } else {
            missing.push(name);
        }
    }
    if n_present == names.len() {
        return Ok(());
    }
    if let Some(own) = own_folder() {
        bail!("RUVLLM_MODELS is {}, which lacks {}; put them there or unset it", own.display(), missing.join(", "));
    }
    let ruvllm = ruvllm()?;
    for name in missing {
        pull(&ruvllm, name)?;
    }
    Ok(())
}

/// Builds `ruvllm` and returns where it lies.
///
/// # Errors
/// It does not build.
pub(crate) fn build_ruvllm() -> Result<PathBuf> {
    shell::run(cargo("build --package ruvllm-cli").args(["--profile", PROFILE]))?;
    Ok(ruvllm_path(PROFILE))
}

/// Returns the program that a command was given, or builds it.
///
/// # Errors
/// It does not build.
pub(crate) fn given_or_built(given: Option<&PathBuf>) -> Result<PathBuf> {
    match given {
        Some(path) => std::path::absolute(path).with_context(|| format!("no such program: {}", path.display())),
        None => build_ruvllm(),
    }
}

/// Returns where cargo puts `ruvllm` when it builds it with this profile.
pub(crate) fn ruvllm_path(profile: &str) -> PathBuf {
    shell::target_dir().join(profile).join("ruvllm").with_extension(std::env::consts::EXE_EXTENSION)
}

fn pull(ruvllm: &PathBuf, name: &str) -> Result<()> {
    for n_try in 1..=N_TRIES {
        match shell::run(Command::new(ruvllm).args(["pull", name]).envs(shell::ci_env())) {
            Ok(()) => return Ok(()),
            Err(error) if n_try == N_TRIES => return Err(error),
            Err(error) => eprintln!("{error:#}; trying again ({n_try} of {N_TRIES})"),
        }
    }
    bail!("no try was made to pull {name}")
}

/// Returns the value of an environment variable that names a folder.
fn var(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the folder the tests read instead of the one that `ruvllm pull` writes to, if there is one.
fn own_folder() -> Option<PathBuf> {
    var("RUVLLM_MODELS")
}

/// Returns the folder that the tests read: their own, or the one that `ruvllm pull` writes to.
fn folder() -> Result<PathBuf> {
    if let Some(own) = own_folder() {
        return Ok(own);
    }
    let home = var("RUVLLM_HOME")
        .or_else(|| Some(var("XDG_CACHE_HOME")?.join("ruvllm")))
        .or_else(|| Some(var("HOME")?.join(".cache/ruvllm")))
        .context("neither RUVLLM_HOME nor XDG_CACHE_HOME nor HOME is set; set RUVLLM_HOME to a folder for models")?;
    Ok(home.join("models"))
}

/// Returns where the file of a fetched model lies.
///
/// # Errors
/// No folder for models can be told.
pub(crate) fn path(name: &str) -> Result<PathBuf> {
    Ok(folder()?.join(file_name(name)))
}

/// Returns the name of a model's file: `smollm2:135m` lies in `smollm2-135m.gguf`.
fn file_name(name: &str) -> String {
    format!("{}.gguf", name.replace(':', "-"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_are_named_after_models() {
        assert_eq!(super::file_name("qwen2.5-coder:0.5b"), "qwen2.5-coder-0.5b.gguf");
    }
}
