//! The official clients, unmodified, and the page in a browser: what their users do is done by scripts that run in the
//! Python of `cargo xtask python` and with the packages of `cargo xtask node`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use ruvllm_engine::LoadOptions;
use ruvllm_learning::LearningOptions;
use ruvllm_server::{BatchOptions, KeyOptions, ServerOptions, WitnessOptions};
use ruvllm_testkit::real_model;

use crate::client::{Bench, load_options, options};

/// Returns the folder beside the build that an `xtask` command prepares.
fn prepared(name: &str) -> PathBuf {
    // The test lies in target/PROFILE/deps.
    let exe = std::env::current_exe().expect("a test has a path");
    let target = exe.ancestors().nth(3).expect("it lies in a target folder");
    let folder = target.join(name);
    assert!(folder.is_dir(), "{} is missing: run `cargo xtask {name}`", folder.display());
    folder
}

/// Returns a call of a Python script, with the Python in `RUVLLM_PYTHON` or the one beside the build.
fn python(script: &Path) -> Command {
    let program = std::env::var_os("RUVLLM_PYTHON").map(PathBuf::from);
    let mut command = Command::new(program.unwrap_or_else(|| prepared("python").join("bin/python")));
    command.arg(script);
    command
}

/// Returns a call of a script for Node. It is copied to the packages, as Node looks for them where the script lies.
fn node(script: &Path) -> Command {
    copied(script, &prepared("node").join(script.file_name().expect("a file")))
}

/// Returns a call of a script for Node that is several files in a folder of their own; all are copied.
fn node_folder(script: &Path) -> Command {
    let (from, name) = (script.parent().expect("a folder"), script.file_name().expect("a file"));
    let to = prepared("node").join(from.file_name().expect("a folder has a name"));
    std::fs::create_dir_all(&to).expect("the folder beside the build is writable");
    for entry in from.read_dir().expect("it is there") {
        let path = entry.expect("it is readable").path();
        copied(&path, &to.join(path.file_name().expect("a file")));
    }
    copied(script, &to.join(name))
}

fn copied(script: &Path, copy: &Path) -> Command {
    std::fs::copy(script, copy).expect("the folder beside the build is writable");
    let mut command = Command::new("node");
    command.arg(copy);
    command
}

/// Serves SmolLM2 behind keys, or to everybody.
fn smollm2(keys: &[&str]) -> Bench {
    served("smollm2:135m", keys)
}

fn served(name: &str, keys: &[&str]) -> Bench {
    let keys = KeyOptions { file: None, lines: keys.iter().map(|line| line.to_string()).collect() };
    let load = LoadOptions { n_ctx: Some(2048), n_seq_max: 8, ..load_options() };
    Bench::named(name, &real_model(name), &load, ServerOptions { keys, ..options() })
}

/// Runs a script against a server.
fn check(program: fn(&Path) -> Command, script: &str, bench: &Bench, more: &[&OsStr]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let mut command = program(&path);
    // What a client writes where it runs is no part of the repository.
    command.current_dir(env!("CARGO_TARGET_TMPDIR"));
    let output = command.arg(format!("http://{}", bench.address)).args(more).output().expect("it runs");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
}

const KEYS: [&str; 2] = ["tests key-of-the-tests", "one one-at-a-time concurrent=1"];

#[test]
fn openai_for_python() {
    check(python, "openai_sdk.py", &smollm2(&KEYS), &[]);
}

#[test]
fn openai_for_node() {
    check(node, "openai_sdk.mjs", &smollm2(&KEYS), &[]);
}

#[test]
fn anthropic_for_python() {
    check(python, "anthropic_sdk.py", &smollm2(&KEYS), &[]);
}

#[test]
fn ollama_for_python() {
    check(python, "ollama_sdk.py", &served("qwen2.5-coder:0.5b", &KEYS), &[]);
}

#[test]
fn embeddings_and_reranking_for_python() {
    let (name, load) = ("minilm:l6", LoadOptions { n_ctx: None, ..load_options() });
    let bench = Bench::named(name, &real_model(name), &load, options());
    check(python, "embeddings_sdk.py", &bench, &[]);
}

#[test]
fn prometheus_reads_the_metrics() {
    check(python, "prometheus.py", &smollm2(&KEYS), &[]);
}

/// The page against a server that learns and keeps a log, and one behind a key file that does neither. The screenshots lie in
/// `target/page`.
#[test]
fn the_page_in_a_browser() {
    let folder = prepared("node").with_file_name("page");
    std::fs::create_dir_all(&folder).expect("the folder beside the build is writable");
    let kept = tempfile::tempdir().expect("a folder");
    let learning = LearningOptions { folder: Some(kept.path().join("learned")), ..LearningOptions::default() };
    let witness = WitnessOptions { folder: kept.path().join("log"), keeps_tokens: true, ..WitnessOptions::default() };
    let load = LoadOptions { n_ctx: Some(2048), n_seq_max: 8, ..load_options() };
    let kept = ServerOptions { learning: Some(learning), witness: Some(witness), ..options() };
    let teaching = Bench::named("smollm2:135m", &real_model("smollm2:135m"), &load, kept);
    let keys = tempfile::tempdir().expect("a folder");
    let file = keys.path().join("keys");
    std::fs::write(&file, format!("{}\nroot key-of-the-admin admin\n", KEYS.join("\n"))).expect("written");
    let options = ServerOptions { keys: KeyOptions { file: Some(file), lines: Vec::new() }, ..options() };
    let keyed = Bench::named("smollm2:135m", &real_model("smollm2:135m"), &load, options);
    let address = format!("http://{}", keyed.address);
    check(node_folder, "page/run.mjs", &teaching, &[OsStr::new(&address), folder.as_os_str()]);
}

#[test]
fn a_grpc_client_made_by_grpcio_tools() {
    check(python, "grpc_client.py", &smollm2(&KEYS), &[]);
}

/// Issue "Serving", must show 2.
#[test]
fn schemathesis_finds_no_fault() {
    let keys = KeyOptions { file: None, lines: vec![KEYS[0].to_owned()] };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let batches = Some(BatchOptions { folder: folder.path().to_owned(), tenant_bytes_max: 1 << 20 });
    check(python, "openapi.py", &Bench::tiny(ServerOptions { keys, batches, ..options() }), &[]);
}
