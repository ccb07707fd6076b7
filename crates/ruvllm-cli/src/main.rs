//! The program `ruvllm`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Gives back what is free, of every thread: a server that was flooded is as small afterwards as before.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ruvllm_cli::main()
}
