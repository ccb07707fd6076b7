//! The official clients, unmodified: what their users do is done by scripts that run in the Python of
//! `cargo xtask python`.

use std::path::{Path, PathBuf};
use std::process::Command;

use ruvllm_engine::LoadOptions;
use ruvllm_server::{KeyOptions, ServerOptions};
use ruvllm_testkit::real_model;

use crate::client::{Bench, load_options, options};

/// Returns the Python that `cargo xtask python` prepares: in `RUVLLM_PYTHON`, or beside the build.
fn python() -> PathBuf {
    if let Some(own) = std::env::var_os("RUVLLM_PYTHON") {
        return own.into();
    }
    // The test lies in target/PROFILE/deps.
    let exe = std::env::current_exe().expect("a test has a path");
    let target = exe.ancestors().nth(3).expect("it lies in a target folder");
    let python = target.join("python/bin/python");
    assert!(python.is_file(), "{} is missing: run `cargo xtask python`", python.display());
    python
}

/// Runs a script against SmolLM2 behind a key.
fn check(script: &str) {
    let lines = vec!["tests key-of-the-tests".to_owned(), "one one-at-a-time concurrent=1".to_owned()];
    let keys = KeyOptions { file: None, lines };
    let load = LoadOptions { n_ctx: Some(2048), n_seq_max: 8, ..load_options() };
    let (name, options) = ("smollm2:135m", ServerOptions { keys, ..options() });
    let bench = Bench::named(name, &real_model(name), &load, options);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    let output = Command::new(python()).arg(path).arg(format!("http://{}", bench.address)).output().expect("it runs");
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
}

#[test]
fn openai_for_python() {
    check("openai_sdk.py");
}

#[test]
fn anthropic_for_python() {
    check("anthropic_sdk.py");
}

#[test]
fn prometheus_reads_the_metrics() {
    check("prometheus.py");
}

#[test]
fn a_grpc_client_made_by_grpcio_tools() {
    check("grpc_client.py");
}

/// Issue "Serving", must show 2.
#[test]
fn schemathesis_finds_no_fault() {
    check("openapi.py");
}
