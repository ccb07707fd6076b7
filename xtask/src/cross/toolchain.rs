//! The compiler for other machines.
//!
//! The pinned toolchain comes with the standard library of one target. Debian's `rustc-web` comes with the library's
//! source, so cargo's `-Zbuild-std` builds it for the others. The build has a target folder of its own, because its compiler is
//! another one.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;

/// A Debian package, and a file that shows it is there.
pub(crate) type Package = (&'static str, &'static str);

/// The packages of the compiler.
const PACKAGES: [Package; 3] = [
    ("rustc-web", "/usr/bin/rustc"),
    ("cargo-web", "/usr/bin/cargo"),
    ("rust-web-src", "/usr/lib/rustlib/src/rust/library/Cargo.toml"),
];

/// The oldest compiler that builds the kernels, by its minor version.
const MINOR_MIN: u32 = 95;

/// How many cases each property runs: an emulated machine is some 20 times slower than the real one.
const N_PROPTEST_CASES: &str = "16";

/// Crates of the standard library that are optimised. The profile of CI does not optimise what no member of the workspace is.
const FAST: [&str; 4] = ["alloc", "compiler_builtins", "core", "std"];

/// Installs the compiler and `more`, as far as they are missing, if this is Debian and we may.
///
/// # Errors
/// Something is missing and cannot be installed, or the compiler is too old.
pub(crate) fn install(more: &[Package]) -> Result<()> {
    let missing = missing(more, |path| Path::new(path).exists());
    if !missing.is_empty() {
        shell::apt_install(&missing)?;
    }
    let version = shell::output(Command::new("/usr/bin/rustc").arg("--version"))?;
    check_version(&version)?;
    println!("{}", version.trim());
    Ok(())
}

/// Returns a call of Debian's cargo (not of the pinned one that runs this program), in the root, that builds `std` (its crates with
/// commas between them) as well.
pub(crate) fn cargo(subcommand: &str, std: &str) -> Command {
    let mut command = Command::new("/usr/bin/cargo");
    for name in ["RUSTUP_TOOLCHAIN", "CARGO", "CARGO_BUILD_TARGET", "RUSTFLAGS", "LD_LIBRARY_PATH"] {
        command.env_remove(name);
    }
    command
        .args([subcommand, "--locked", &format!("-Zbuild-std={std}")])
        .args(FAST.map(|name| format!("--config=profile.{}.package.{name}.opt-level=3", shell::PROFILE)))
        .current_dir(shell::root())
        .env("CARGO_TARGET_DIR", shell::target_dir().join("cross"))
        .env("RUSTC", "/usr/bin/rustc")
        .env("RUSTDOC", "/usr/bin/rustdoc")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("PROPTEST_CASES", N_PROPTEST_CASES);
    command
}

/// Returns the path of the linker for WebAssembly, which is the pinned toolchain's.
///
/// # Errors
/// There is no pinned toolchain.
pub(crate) fn wasm_linker() -> Result<String> {
    let sysroot = shell::output(Command::new("rustc").args(["--print", "sysroot"]).current_dir(shell::root()))
        .context("the linker for WebAssembly is the pinned toolchain's")?;
    Ok(format!("{}/lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld", sysroot.trim()))
}

/// Returns the packages of which the telling file is not there.
fn missing(more: &[Package], exists: impl Fn(&str) -> bool) -> Vec<&'static str> {
    PACKAGES.iter().chain(more).filter(|(_, path)| !exists(path)).map(|(name, _)| *name).collect()
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
        let qemu = [("qemu-user", "/usr/bin/qemu-aarch64")];
        assert_eq!(missing(&qemu, |path| path != "/usr/bin/qemu-aarch64"), ["qemu-user"]);
        assert!(missing(&qemu, |_| true).is_empty());
    }

    #[test]
    fn old_compilers_are_refused() {
        assert!(check_version("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)\n").is_ok());
        let error = check_version("rustc 1.63.0 (4b91a6ea7 2022-08-08)\n").expect_err("1.63 is too old");
        assert!(error.to_string().contains("older than 1.95"), "{error}");
        assert!(check_version("gcc 12.2.0").is_err());
    }
}
