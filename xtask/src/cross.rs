//! `cargo xtask cross`: the aarch64 kernels (NEON), built for and run on an emulated machine.
//!
//! The pinned toolchain comes with the standard library of one target. Debian's `rustc-web` comes with the library's
//! source, so cargo's `-Zbuild-std` builds it for aarch64, `gcc-aarch64-linux-gnu` links, and `qemu-aarch64` runs the
//! tests. The build has a target folder of its own, because its compiler is another one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{self, PROFILE, Totals};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The Debian packages that hold the tools, each with a file that shows it is there.
const PACKAGES: [(&str, &str); 6] = [
    ("rustc-web", "/usr/bin/rustc"),
    ("cargo-web", "/usr/bin/cargo"),
    ("rust-web-src", "/usr/lib/rustlib/src/rust/library/Cargo.toml"),
    ("qemu-user", "/usr/bin/qemu-aarch64"),
    ("gcc-aarch64-linux-gnu", "/usr/bin/aarch64-linux-gnu-gcc"),
    ("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1"),
];

/// The oldest compiler that builds the kernels, by its minor version.
const MINOR_MIN: u32 = 95;

/// How many cases each property runs: an emulated machine is some 20 times slower than the real one.
const N_PROPTEST_CASES: &str = "16";

/// What `cargo xtask cross` is asked to run.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only the tests whose path contains this
    filter: Option<String>,
}

/// Builds the kernels and their threads for aarch64 and runs their tests under qemu, adding what they report to `totals`.
///
/// # Errors
/// A tool is missing and cannot be installed, the kernels do not build, or a test fails.
pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    install()?;
    let version = shell::output(Command::new("/usr/bin/rustc").arg("--version"))?;
    check_version(&version)?;
    println!("{}", version.trim());
    let mut command = Command::new("/usr/bin/cargo");
    command.args([
        "test",
        "--locked",
        "-Zbuild-std",
        "--package",
        "ruvllm-threads",
        "--package",
        "ruvllm-kernels",
        "--lib",
    ]);
    command.args(["--target", TARGET, "--profile", PROFILE]);
    command.args(&args.filter);
    let (found, result) = shell::test(with_env(&mut command));
    totals.add(found);
    result?;
    if found.n_passed == 0 {
        bail!("no test ran on {TARGET}");
    }
    Ok(())
}

/// Points cargo at Debian's compiler (not at the pinned one that runs this program), the linker and the emulator.
fn with_env(command: &mut Command) -> &mut Command {
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "CARGO_BUILD_TARGET", "RUSTFLAGS", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command
        .current_dir(shell::root())
        .env("CARGO_TARGET_DIR", shell::target_dir().join("cross"))
        .env("RUSTC", "/usr/bin/rustc")
        .env("RUSTDOC", "/usr/bin/rustdoc")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("PROPTEST_CASES", N_PROPTEST_CASES)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu")
}

/// Installs what is missing of [`PACKAGES`], if this is Debian and we may.
fn install() -> Result<()> {
    let missing = missing(|path| Path::new(path).exists());
    if missing.is_empty() {
        return Ok(());
    }
    shell::apt_install(&missing)
}

/// Returns the packages of which the telling file is not there.
fn missing(exists: impl Fn(&str) -> bool) -> Vec<&'static str> {
    PACKAGES.iter().filter(|(_, path)| !exists(path)).map(|(name, _)| *name).collect()
}

/// Checks that a compiler which calls itself `version` is new enough.
fn check_version(version: &str) -> Result<()> {
    let minor = version.strip_prefix("rustc 1.").and_then(|rest| rest.split('.').next());
    let minor: u32 = minor.and_then(|minor| minor.parse().ok()).with_context(|| format!("cannot read '{version}'"))?;
    if minor < MINOR_MIN {
        bail!(
            "/usr/bin/rustc is {}, older than 1.{MINOR_MIN}; install rustc-web, cargo-web and rust-web-src",
            version.trim()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_packages_are_named() {
        assert_eq!(missing(|path| path != "/usr/bin/qemu-aarch64"), ["qemu-user"]);
        assert!(missing(|_| true).is_empty());
    }

    #[test]
    fn old_compilers_are_refused() {
        assert!(check_version("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n").is_ok());
        let error = check_version("rustc 1.63.0 (4b91a6ea7 2022-08-08)\n").expect_err("1.63 is too old");
        assert!(error.to_string().contains("older than 1.95"), "{error}");
        assert!(check_version("gcc 12.2.0").is_err());
    }
}
