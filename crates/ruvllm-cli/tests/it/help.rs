//! What the help says.

use crate::common::{Bench, text};

fn help(args: &[&str]) -> String {
    let output = Bench::new().run(args);
    assert!(output.status.success() && output.stderr.is_empty());
    text(&output.stdout)
}

#[test]
fn short_help() {
    insta::assert_snapshot!(help(&["-h"]));
}

#[test]
fn long_help_lists_the_environment() {
    let help = help(&["--help"]);
    for piece in [
        "Environment:",
        "RUVLLM_HOME",
        "RUVLLM_SOURCES",
        "RUVLLM_ISA",
        "RUVLLM_THREADS",
        "RUVLLM_API_KEYS",
        "HF_HOME",
        "NO_COLOR",
    ] {
        assert!(help.contains(piece), "'{piece}' in: {help}");
    }
}

#[test]
fn help_of_every_command() {
    let commands = [
        "run",
        "chat",
        "serve",
        "pull",
        "push",
        "alias",
        "list",
        "show",
        "rm",
        "cache",
        "convert",
        "quantize",
        "imatrix",
        "compare",
        "lora",
        "learn",
        "eval",
        "route",
        "policy",
        "session",
        "witness",
        "tokenize",
        "embed",
        "logits",
        "perplexity",
        "bench",
        "detect",
        "doctor",
        "config",
        "completions",
    ];
    let all: Vec<_> =
        commands.iter().map(|command| format!("$ ruvllm {command} -h\n{}", help(&[command, "-h"]))).collect();
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn version() {
    assert_eq!(help(&["--version"]), format!("ruvllm {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn no_command_shows_the_help() {
    let output = Bench::new().run(Vec::<&str>::new());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("Usage: ruvllm"));
}
