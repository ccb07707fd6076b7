//! The tests of the simd128 kernels, as programs of WASI in Node.
//!
//! Browsers and Node run the same kernels in `wasm32-unknown-unknown`; WASI adds the arguments, clock and output that a
//! test program wants. There is one thread, and a panic ends the program.

use anyhow::Result;

use super::toolchain::{self, Package};
use super::{Args, test};
use crate::shell::{self, Totals};

const TARGET: &str = "wasm32-wasip1";

/// Folder of the C library that the standard library is linked with.
const LIBC: &str = "/usr/lib/wasm32-wasi";

/// Stack of a module: compilers of grammars descend.
pub(crate) const STACK_BYTES: usize = 8 << 20;

const PACKAGES: [Package; 2] = [("wasi-libc", "/usr/lib/wasm32-wasi/libc.a"), ("nodejs", "/usr/bin/node")];

/// Builds the tests and runs them.
///
/// # Errors
/// As [`super::run`].
pub(super) fn run(args: &Args, totals: &mut Totals) -> Result<()> {
    toolchain::install(&PACKAGES)?;
    let runner = shell::root().join("xtask/src/cross/run.mjs");
    let flags = format!(
        "-C target-feature=+simd128 -C link-self-contained=no -C link-arg=-L{LIBC} -C link-arg={LIBC}/crt1-command.o \
         -C link-arg=-lc -C link-arg=--allow-undefined -C link-arg=-zstack-size={STACK_BYTES}"
    );
    // Node's fast calls of WASI may move objects that the interpreter still holds, and then it crashes (nodejs/node#46777).
    let node = format!("node --no-warnings --no-turbo-fast-api-calls {}", runner.display());
    let mut command = toolchain::cargo("test", "std,panic_abort,test");
    command
        .env("CARGO_TARGET_WASM32_WASIP1_LINKER", toolchain::wasm_linker()?)
        .env("CARGO_TARGET_WASM32_WASIP1_RUNNER", node)
        .env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", flags);
    test(command, &["ruvllm-kernels"], TARGET, args, totals)
}
