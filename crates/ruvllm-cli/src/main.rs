//! The `ruvllm` command.
fn main() {}
