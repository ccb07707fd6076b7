//! Quantising on the command line.

use ruvllm_gguf::{GgmlType, GgufFile};
use ruvllm_testkit::Golden;
use serde_json::{Value, json};

use crate::common::{Bench, error_line, json_of, text};

/// Path of a small model in F16.
fn model() -> String {
    let path = Golden::load("llama-a").model("f16");
    path.to_str().expect("a path of UTF-8").to_owned()
}

#[test]
fn a_model_is_quantised_and_runs() {
    let bench = Bench::new();
    let args = ["quantize", &model(), "q8.gguf", "--type", "q8_0", "--keep", "attn_v=F16", "--threads", "2", "--json"];
    let output = bench.run(args);
    let told: Value = serde_json::from_str(&text(&output.stdout)).expect("one JSON object");
    // Its rows are no whole blocks.
    let warning =
        "warning: 2 tensors have rows too odd for their type, such as blk.0.ffn_down.weight, which is F16 now";
    assert!(output.status.success() && text(&output.stderr).contains(warning), "{}", text(&output.stderr));
    assert_eq!(told["fallbacks"][0], json!({ "tensor": "blk.0.ffn_down.weight", "type": "F16" }));
    let n_bytes = std::fs::metadata(bench.path("q8.gguf")).expect("the output").len();
    assert_eq!(
        (&told["path"], &told["type"], &told["output_bytes"]),
        (&json!("q8.gguf"), &json!("Q8_0"), &json!(n_bytes))
    );
    assert!(told["bits_per_weight"].as_f64().is_some_and(|bits| bits > 8.0 && bits < 16.0), "{told}");
    let file = GgufFile::open(&bench.path("q8.gguf")).expect("a GGUF file");
    let ty = |name: &str| file.tensor(name).map(|tensor| tensor.ty);
    assert_eq!(ty("blk.0.attn_v.weight"), Some(GgmlType::F16));
    assert_eq!(ty("blk.0.attn_q.weight"), Some(GgmlType::Q8_0));

    let run =
        ["run", "--raw", "--prompt", "abc", "--temp", "0", "--max-tokens", "4", "--ignore-eos", "--json", "--model"];
    let answer = json_of(&bench.run([&run[..], &["q8.gguf"]].concat()));
    assert_eq!(answer["tokens"].as_array().map(Vec::len), Some(4));

    let output = bench.run(["quantize", &model(), "f16.gguf", "--type", "F16"]);
    let line = text(&output.stdout);
    assert!(line.starts_with("wrote f16.gguf: ") && line.contains(" bits per weight, "), "{line}");
}

#[test]
fn wrong_arguments_cost_one_line() {
    let bench = Bench::new();
    let error = |args: &[&str], code| error_line(&bench.run([&["quantize"], args].concat()), code);
    let model = model();
    let copy = bench.file("in.gguf", std::fs::read(&model).expect("the model"));
    let before = std::fs::read(&copy).expect("the copy");
    let line = error(&["in.gguf", "in.gguf", "--type", "Q8_0"], 2);
    assert!(line.contains("in.gguf: is the input; write to another file"), "{line}");
    assert_eq!(std::fs::read(&copy).expect("the copy"), before);

    assert!(error(&[&model, "o.gguf", "--type", "Q9"], 2).contains("no type 'Q9'; choose one of IQ1_S,"));
    assert!(error(&[&model, "o.gguf", "--type", "Q8_0", "--keep", "a"], 2).contains("is no PATTERN=TYPE"));
    assert!(error(&[&model, "none/o.gguf", "--type", "Q8_0"], 1).contains("none/o.gguf"));
    assert!(error(&[&model, "o.gguf", "--type", "Q8_0", "--imatrix", "none.dat"], 1).contains("none.dat"));
    bench.file("text.dat", "no matrix at all");
    let line = error(&[&model, "o.gguf", "--type", "Q8_0", "--imatrix", "text.dat"], 1);
    assert!(line.contains("text.dat: ") && line.contains("no importance matrix"), "{line}");

    assert!(bench.run(["quantize", &model, "q8.gguf", "--type", "Q8_0"]).status.success());
    assert!(error(&["q8.gguf", "o.gguf", "--type", "Q4_0"], 1).contains("pass --requantize"));
    assert!(!bench.path("o.gguf").exists() && !bench.path("o.gguf.part").exists());
}
