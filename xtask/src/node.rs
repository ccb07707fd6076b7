//! `cargo xtask node`: the packages of npm and the browser that the server's tests run.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::shell;

/// Where the packages are named, with the exact versions of all they need.
const FOLDER: &str = "crates/ruvllm-server/tests/clients";
const FILES: [&str; 2] = ["package.json", "package-lock.json"];
/// Where the tests look for the browser.
const CHROMIUM: &str = "/usr/bin/chromium";

/// Installs the packages in the target folder, unless they are there as the lock names them, and the browser.
///
/// # Errors
/// Node, npm or Chromium are not there and cannot be had, or a package cannot.
pub(crate) fn run() -> Result<()> {
    install_programs()?;
    install(&shell::root().join(FOLDER), &shell::target_dir().join("node"))
}

/// Installs in `folder` the packages that the files in `from` name, unless they are there as the lock names them.
///
/// # Errors
/// A package cannot be had.
pub(crate) fn install(from: &Path, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lock = FILES[1];
    let read = |path: &Path| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let stamp = folder.join("installed.json");
    let wanted = read(&from.join(lock))?;
    if std::fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        println!("node: {}", folder.display());
        return Ok(());
    }
    for name in FILES {
        std::fs::copy(from.join(name), folder.join(name)).with_context(|| format!("cannot copy {name}"))?;
    }
    let npm = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"];
    shell::run(Command::new("npm").args(npm).current_dir(folder))?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

/// Installs what is missing of Debian's packages.
fn install_programs() -> Result<()> {
    let has = |program: &str| {
        let status = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    let mut missing = Vec::new();
    if !has("node") {
        missing.push("nodejs");
    }
    if !has("npm") {
        missing.push("npm");
    }
    if !Path::new(CHROMIUM).exists() && std::env::var_os("RUVLLM_CHROMIUM").is_none() {
        // Fonts are only recommended by the browser's package.
        missing.extend(["chromium", "fonts-dejavu-core"]);
    }
    match missing.is_empty() {
        true => Ok(()),
        false => shell::apt_install(&missing).context("the server's tests need Node, npm and Chromium"),
    }
}
