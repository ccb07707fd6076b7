//! `cargo xtask cross`: code for other machines than this one, built and as far as possible run.
//!
//! | file | what |
//! |---|---|
//! | `aarch64.rs` | the tests of the NEON kernels, on an emulated machine |
//! | `wasm.rs` | the tests of the simd128 kernels, in Node |
//! | `pack.rs` | the sample of a kernel pack, for `cargo xtask pack` |
//! | `apple.rs` | the types of what runs on Macs alone |
//! | `miscompiled.rs` | what the compiler gets wrong, found in modules |
//! | `toolchain.rs` | the compiler for all of them |

mod aarch64;
mod apple;
pub(crate) mod miscompiled;
pub(crate) mod pack;
pub(crate) mod toolchain;
pub(crate) mod wasm;

use std::process::Command;

use anyhow::{Result, bail};

use crate::shell::{self, Totals};

/// What `cargo xtask cross` is asked to run.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only the tests whose path contains this
    filter: Option<String>,
}

/// Runs all parts, adding what their tests report to `totals`.
///
/// # Errors
/// A tool is missing and cannot be installed, something does not build, or a test fails.
pub(crate) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    aarch64::run(args, totals)?;
    wasm::run(args, totals)?;
    apple::run()
}

/// Runs the tests of the libraries of `packages` for `target`, as `command` builds them.
fn test(mut command: Command, packages: &[&str], target: &str, args: &Args, totals: &mut Totals) -> Result<()> {
    command.args(packages.iter().flat_map(|name| ["--package", name])).arg("--lib");
    command.args(["--target", target, "--profile", shell::PROFILE]).args(&args.filter);
    let (found, result) = shell::test(&mut command);
    totals.add(found);
    result?;
    if found.n_passed == 0 {
        bail!("no test ran on {target}");
    }
    Ok(())
}
