//! Headers of models on the hub: `show` and `detect` without a download.

use super::server::Hub;
use super::{run, ruvllm};
use crate::common::{Bench, error_line, json_of, text, tiny, tiny_with};

/// A model whose header is small and whose tensors are not.
fn hub() -> Hub {
    Hub::start(&[("owner/repo", "m.gguf", &std::fs::read(tiny()).expect("the small model"))])
}

const NAME: &str = "hf:owner/repo/m.gguf";

#[test]
fn a_header_is_shown_without_a_download() {
    let (bench, hub) = (Bench::new(), hub());
    let shown = json_of(&run(&mut ruvllm(&bench, &hub), &["show", NAME, "--json", "--tensors", "--metadata"]));
    let tiny = tiny();
    let local = json_of(&run(
        &mut ruvllm(&bench, &hub),
        &["show", &tiny.to_string_lossy(), "--json", "--tensors", "--metadata"],
    ));
    for key in ["architecture", "bytes", "parameters", "quantization", "types", "tensors", "metadata", "vocabulary"] {
        assert_eq!(shown[key], local[key], "{key}");
    }
    assert_eq!(shown["path"], "hf:owner/repo@main/m.gguf");
    assert_eq!(shown["remote"], true);
    assert!(!bench.path("home/models").exists() && !bench.path("hf").exists());
    let output = run(&mut ruvllm(&bench, &hub), &["show", NAME]);
    assert!(text(&output.stdout).contains("hf:owner/repo@main/m.gguf ("), "{}", text(&output.stdout));
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["show", "hf:owner/repo/none.gguf"]), 1);
    assert!(line.contains("none.gguf: no such file in the repository (404)"), "{line}");
}

#[test]
fn a_long_header_is_read_in_steps() {
    let bench = Bench::new();
    let path = bench.path("long.gguf");
    tiny_with(&path, |metadata| metadata.set("general.description", "x".repeat(1_500_000)));
    let hub = Hub::start(&[("owner/repo", "m.gguf", &std::fs::read(&path).expect("the model"))]);
    let shown = json_of(&run(&mut ruvllm(&bench, &hub), &["show", NAME, "--json"]));
    assert_eq!(shown["architecture"], "llama");
    let ranges: Vec<String> = hub.seen("/blob/").iter().map(|seen| seen.headers["range"].clone()).collect();
    assert_eq!(ranges, ["bytes=0-262143", "bytes=262144-1048575", "bytes=1048576-4194303"]);
}

#[test]
fn a_hostile_header_costs_bounded_memory_and_one_line() {
    let bench = Bench::new();
    // A key whose value says that it has 2^60 bytes.
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(b"k");
    bytes.extend(8u32.to_le_bytes());
    bytes.extend((1u64 << 60).to_le_bytes());
    bytes.resize(3_000_000, 0);
    let hub = Hub::start(&[("owner/repo", "m.gguf", &bytes), ("owner/repo", "h.gguf", &b"<html>".repeat(1000))]);
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["show", NAME]), 1);
    assert!(line.contains("truncated"), "{line}");
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["show", "hf:owner/repo/h.gguf"]), 1);
    assert!(line.contains("not a GGUF file"), "{line}");
}

#[test]
fn types_of_a_model_are_weighed_from_its_header() {
    let (bench, hub) = (Bench::new(), hub());
    let tiny = tiny();
    let remote = json_of(&run(&mut ruvllm(&bench, &hub), &["detect", "--model", NAME, "--json"]));
    let local = json_of(&run(&mut ruvllm(&bench, &hub), &["detect", "--model", &tiny.to_string_lossy(), "--json"]));
    for key in ["parameters", "context_trained", "context", "context_bytes", "quantization"] {
        assert_eq!(remote[key], local[key], "{key}");
    }
    let sizes = |object: &serde_json::Value| -> Vec<u64> {
        object["types"]
            .as_array()
            .expect("types")
            .iter()
            .map(|ty| ty["weight_bytes"].as_u64().expect("bytes"))
            .collect()
    };
    assert_eq!(sizes(&remote), sizes(&local));
    assert!(sizes(&remote).is_sorted_by(|a, b| a >= b) && sizes(&remote).len() == 8, "{remote}");
    assert!(remote["types"][0]["decode_tps"].as_f64().is_some_and(|tps| tps > 0.0));
    assert_eq!(remote["best"], "this file (F32)");
    let output = run(&mut ruvllm(&bench, &hub), &["detect", "--model", NAME, "--ctx", "16"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("best for 16 tokens here: this file (F32)") && shown.contains("docs/lab/"), "{shown}");
    let line = error_line(&run(&mut ruvllm(&bench, &hub), &["detect", "--ctx", "16"]), 2);
    assert!(line.contains("--model"), "{line}");
    assert!(!bench.path("home/models").exists());
}
