//! The types of what runs on Macs alone: Apple's linker and libraries are not here.

use anyhow::Result;

use super::toolchain;
use crate::shell::{self, PROFILE};

/// Checks the types of the Metal host.
///
/// # Errors
/// As [`super::run`].
pub(super) fn run() -> Result<()> {
    toolchain::install(&[])?;
    let mut command = toolchain::cargo("check", "std");
    shell::run(command.args(["--package", "ruvllm-metal", "--target", "aarch64-apple-darwin", "--profile", PROFILE]))
}
