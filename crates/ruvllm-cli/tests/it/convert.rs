//! Converting on the command line.

use std::path::Path;

use ruvllm_gguf::{GgmlType, GgufFile};
use serde_json::{Value, json};

use crate::common::{Bench, error_line, json_of, text};

/// Returns the files of a tiny model with its tokenizer.
pub(crate) fn model_files(model: &str) -> Vec<(String, Vec<u8>)> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-convert/testdata/hf");
    let expected = std::fs::read_to_string(testdata.join(model).join("expected.txt")).expect("the model");
    let tokenizer = expected.lines().next().expect("its tokenizer");
    let folders = [testdata.join(model), testdata.join("tokenizers").join(tokenizer)];
    let entries = folders.iter().flat_map(|from| std::fs::read_dir(from).expect("a folder"));
    let file = |entry: std::fs::DirEntry| {
        (entry.file_name().to_string_lossy().into_owned(), std::fs::read(entry.path()).expect("a file"))
    };
    entries.map(|entry| file(entry.expect("an entry"))).filter(|(name, _)| name != "expected.txt").collect()
}

/// Puts the folder of a tiny model with its tokenizer.
fn folder(bench: &Bench, model: &str) -> String {
    std::fs::create_dir(bench.path(model)).expect("a temporary folder is writable");
    for (name, bytes) in model_files(model) {
        bench.file(&format!("{model}/{name}"), bytes);
    }
    model.to_owned()
}

#[test]
fn a_folder_becomes_a_file_that_runs() {
    let bench = Bench::new();
    let model = folder(&bench, "llama");
    let output = bench.run(["convert", &model, "model.gguf", "--json"]);
    let told: Value = serde_json::from_str(&text(&output.stdout)).expect("one JSON object");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        (&told["architecture"], &told["type"], &told["pre"]),
        (&json!("llama"), &json!("F16"), &json!("llama-bpe"))
    );
    let n_bytes = std::fs::metadata(bench.path("model.gguf")).expect("the output").len();
    assert_eq!(told["output_bytes"], json!(n_bytes));
    let run = [
        "run",
        "--raw",
        "--prompt",
        "the fox",
        "--temp",
        "0",
        "--max-tokens",
        "4",
        "--ignore-eos",
        "--json",
        "--model",
    ];
    let answer = json_of(&bench.run([&run[..], &["model.gguf"]].concat()));
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(4));

    let output = bench.run(["convert", &model, "small.gguf", "--type", "q8_0", "--name", "Small one"]);
    let line = text(&output.stdout);
    assert!(line.starts_with("wrote small.gguf: llama, ") && line.contains(" in Q8_0, "), "{line}");
    let file = GgufFile::open(&bench.path("small.gguf")).expect("a GGUF file");
    assert_eq!(file.metadata().str("general.name").expect("text"), Some("Small one"));
    assert!(file.tensors().all(|tensor| matches!(tensor.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::Q8_0)));
    assert!(!bench.path("small.gguf.unquantised.part").exists());
}

#[test]
fn wrong_arguments_cost_one_line() {
    let bench = Bench::new();
    let model = folder(&bench, "qwen2");
    let error = |args: &[&str], code| error_line(&bench.run([&["convert"], args].concat()), code);
    bench.file("there.gguf", "precious");
    assert!(error(&[&model, "there.gguf"], 2).contains("there.gguf is there already; pass --force to replace it"));
    assert_eq!(std::fs::read(bench.path("there.gguf")).expect("the file"), b"precious");
    assert!(bench.run(["convert", &model, "there.gguf", "--force"]).status.success());
    for name in ["config.json", "model.safetensors"] {
        let line = error(&[&model, &format!("{model}/{name}"), "--force"], 2);
        assert!(line.contains(&format!("{name} is read by this very command; write to another file")), "{line}");
    }
    // A file of an earlier run may lie in the folder.
    for force in [&[][..], &["--force"]] {
        assert!(bench.run([&["convert", &model, "qwen2/own.gguf"], force].concat()).status.success());
    }
    assert!(error(&["none", "o.gguf", "--type", "IQ1_S"], 2).contains("IQ1_S needs an importance matrix"));
    assert!(error(&[&model, "o.gguf", "--type", "Q9"], 2).contains("no type 'Q9'"));
    assert!(error(&["none", "o.gguf"], 1).contains("none: cannot open: "));
    assert!(error(&["there.gguf", "o.gguf"], 2).contains("there.gguf: is no folder; name the folder with config.json"));
    std::fs::create_dir(bench.path("empty")).expect("a temporary folder is writable");
    assert!(error(&["empty", "o.gguf"], 1).contains("empty: has no config.json; is it a model?"));
    assert!(!bench.path("o.gguf").exists());
}
