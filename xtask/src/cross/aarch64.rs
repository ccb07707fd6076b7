//! The tests of the NEON kernels, on a machine that `qemu-aarch64` emulates.

use anyhow::Result;

use super::toolchain::{self, Package};
use super::{Args, test};
use crate::shell::Totals;

const TARGET: &str = "aarch64-unknown-linux-gnu";

const PACKAGES: [Package; 3] = [
    ("qemu-user", "/usr/bin/qemu-aarch64"),
    ("gcc-aarch64-linux-gnu", "/usr/bin/aarch64-linux-gnu-gcc"),
    ("libc6-dev-arm64-cross", "/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1"),
];

/// Builds the tests and runs them.
///
/// # Errors
/// As [`super::run`].
pub(super) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    toolchain::install(&PACKAGES)?;
    let mut command = toolchain::cargo("test", "std,proc_macro,panic_unwind,test");
    command
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu");
    test(command, &["ruvllm-cpu", "ruvllm-kernels"], TARGET, args, totals)
}
