//! `cargo xtask python`: a virtual environment with the clients that the server's tests talk to it with.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::shell;

/// What is installed.
const REQUIREMENTS: &str = "crates/ruvllm-server/tests/clients/requirements.txt";

/// Makes the environment in the target folder, unless it is there with what is required.
///
/// # Errors
/// There is no Python 3 with `venv`, or a package cannot be had.
pub(crate) fn run() -> Result<()> {
    let requirements = shell::root().join(REQUIREMENTS);
    let wanted = std::fs::read_to_string(&requirements).with_context(|| format!("cannot read {REQUIREMENTS}"))?;
    let python = install(&shell::target_dir().join("python"), &wanted)?;
    println!("python: {}", python.display());
    Ok(())
}

/// Makes an environment in `folder` unless it is there with what is wanted, a requirement a line, and returns its Python.
///
/// # Errors
/// As for [`run`].
pub(crate) fn install(folder: &Path, wanted: &str) -> Result<PathBuf> {
    let (stamp, python) = (folder.join("installed.txt"), python_in(folder));
    if python.is_file() && std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    let has_venv = Command::new("python3").args(["-c", "import venv, ensurepip"]).stderr(Stdio::null()).status();
    if !has_venv.is_ok_and(|status| status.success()) {
        shell::apt_install(&["python3", "python3-venv"]).context("the server's tests need python3 with venv")?;
    }
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
    let requirements = folder.join("requirements.txt");
    std::fs::write(&requirements, wanted).with_context(|| format!("cannot write {}", requirements.display()))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "5", "--requirement"];
    shell::run(Command::new(&python).args(pip).arg(&requirements))?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

fn python_in(folder: &Path) -> PathBuf {
    if cfg!(windows) { folder.join("Scripts/python.exe") } else { folder.join("bin/python") }
}
