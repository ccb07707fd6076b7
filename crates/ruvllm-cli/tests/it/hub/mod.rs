//! Pulling from and pushing to a hub that lives on this machine.

mod alias;
mod folder;
mod guide;
mod header;
mod pull;
mod push;
mod server;

use std::process::Output;

use assert_cmd::Command;

use crate::common::{Bench, text};
use server::{Hub, SIGNATURE};

/// A token that must be shown nowhere.
const TOKEN: &str = "hf_SecretSecretSecret";

/// Returns the command, which knows this hub and no other source.
fn ruvllm(bench: &Bench, hub: &Hub) -> Command {
    let mut command = bench.ruvllm();
    command.env("HF_ENDPOINT", &hub.address).env("RUVLLM_SOURCES", "hub");
    command
}

/// Runs the command and checks that it shows no secret.
fn run(command: &mut Command, args: &[&str]) -> Output {
    let output = command.args(args).output().expect("the command starts");
    let shown = text(&output.stdout) + &text(&output.stderr);
    assert!(!shown.contains(TOKEN) && !shown.contains(SIGNATURE), "{shown}");
    output
}

/// Returns some kB that begin like a GGUF file.
fn model_bytes(seed: u32) -> Vec<u8> {
    b"GGUF".iter().copied().chain((0..150_000u32).map(|i| (i.wrapping_mul(seed) % 251) as u8)).collect()
}
