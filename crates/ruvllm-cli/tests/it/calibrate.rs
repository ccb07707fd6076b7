//! Importance matrices, budgets and comparisons on the command line.

use std::path::Path;
use std::time::Duration;

use ruvllm_gguf::{GgufFile, TensorInfo};
use ruvllm_testkit::Golden;
use serde_json::{Value, json};

use crate::common::{Bench, error_line, text};

/// Text that the matrices of the tests are computed on.
const TEXT: &str = include_str!("../../testdata/imatrix/text.txt");

fn model(name: &str, dtype: &str) -> String {
    Golden::load(name).model(dtype).to_str().expect("a path of UTF-8").to_owned()
}

fn floats(file: &GgufFile, tensor: &TensorInfo) -> Vec<f32> {
    file.data(tensor).as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()
}

/// Runs `imatrix` on the text.
fn imatrix(bench: &Bench, args: &[&str]) -> Value {
    bench.file("text.txt", TEXT);
    let output = bench.run([&["imatrix", "--file", "text.txt", "--ctx", "64", "--json"], args].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_str(&text(&output.stdout)).expect("one JSON object")
}

/// Matrices are those of llama.cpp (`testdata/imatrix/make.py`), tensor by tensor.
#[test]
fn importance_is_that_of_llama_cpp() {
    let bench = Bench::new();
    for name in ["llama-a", "gemma3-a", "phi3-a", "qwen3moe-a", "mamba2-a"] {
        let told = imatrix(&bench, &["--model", &model(name, "f32"), "--out", "m.gguf", "--chunks", "3"]);
        assert_eq!((&told["chunks"], &told["chunk_size"]), (&json!(3), &json!(64)), "{name}");
        let theirs = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/imatrix").join(format!("{name}.gguf"));
        let (own, theirs) = [bench.path("m.gguf"), theirs].map(|path| GgufFile::open(&path).expect("a matrix")).into();
        assert_eq!(own.metadata().str("general.type").ok().flatten(), Some("imatrix"));
        let names = |file: &GgufFile| {
            let mut names: Vec<String> = file.tensors().map(|tensor| tensor.name.clone()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&own), names(&theirs), "{name}");
        for expected in theirs.tensors() {
            let got = own.tensor(&expected.name).expect("names are the same");
            assert_eq!(got.shape, expected.shape, "{name}: {}", got.name);
            let (got, want) = (floats(&own, got), floats(&theirs, expected));
            let scale = want.iter().copied().fold(0.0, f32::max);
            for (got, want) in got.iter().zip(&want) {
                let bound = 2e-3 * want.abs() + 2e-4 * scale;
                assert!((got - want).abs() <= bound, "{name}: {}: {got}, llama.cpp has {want}", expected.name);
            }
        }
    }
}

#[test]
fn a_run_that_was_killed_goes_on_to_the_same_bits() {
    let bench = Bench::new();
    let path = model("llama-a", "f32");
    let args = ["--model", &path, "--sensitivity", "64", "--process-output", "--out"];
    let told = imatrix(&bench, &[&args[..], &["whole.gguf"]].concat());
    // Rows of 176 values are no whole blocks of anything, and are exact in F16: nothing to measure.
    assert!(told["chunks"].as_u64().is_some_and(|n| n > 10) && told["sensitivities"] == json!(14), "{told}");
    let whole = std::fs::read(bench.path("whole.gguf")).expect("a file");
    for wait_ms in [1, 20, 60, 90, 130, 170, 220, 300, 400, 600] {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ruvllm"));
        let mut child = command
            .args(["imatrix", "--file", "text.txt", "--ctx", "64", "--resume", "--out", "killed.gguf"])
            .args(&args[..5])
            .current_dir(bench.path(""))
            .env("RUVLLM_HOME", bench.path("home"))
            .env("RUVLLM_THREADS", "1")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("the command starts");
        std::thread::sleep(Duration::from_millis(wait_ms));
        child.kill().expect("to be killed");
        child.wait().expect("its end");
        if let Ok(bytes) = std::fs::read(bench.path("killed.gguf")) {
            assert_eq!(bytes.len(), whole.len(), "a file under its name is whole");
        }
    }
    imatrix(&bench, &[&args[..], &["killed.gguf", "--resume"]].concat());
    assert_eq!(std::fs::read(bench.path("killed.gguf")).expect("a file"), whole);
    assert!(!bench.path("killed.gguf.resume").exists());
}

/// Copies the small model with one value of one tensor changed.
fn fine_tuned(bench: &Bench, name: &str) -> String {
    let file = GgufFile::open(&Golden::load("llama-a").model("f32")).expect("the small model is sound");
    let mut bytes = std::fs::read(file.paths().next().expect("its path")).expect("its bytes");
    let data = file.data(file.tensor("blk.1.ffn_down.weight").expect("a tensor"));
    let start = bytes.windows(64).position(|window| *window == data[..64]).expect("the tensor");
    bytes[start] ^= 1;
    bench.file(name, bytes).to_str().expect("a path of UTF-8").to_owned()
}

#[test]
fn a_run_goes_on_with_the_same_model_alone() {
    let bench = Bench::new();
    bench.file("text.txt", TEXT);
    let path = model("llama-a", "f32");
    let args = ["imatrix", "--file", "text.txt", "--ctx", "64", "--sensitivity", "4096", "--out", "m.gguf", "--model"];
    let (kept, out) = (bench.path("m.gguf.resume"), bench.path("m.gguf"));
    let break_off = || {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ruvllm"));
        command.args(args).arg(&path).current_dir(bench.path("")).env("RUVLLM_HOME", bench.path("home"));
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut child = command.spawn().expect("the command starts");
        // It is there when the text was read, and sensitivities are measured.
        while !kept.exists() && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill().expect("to be killed");
        child.wait().expect("its end");
    };
    // On a busy machine a run may be over before it is killed.
    while !kept.exists() || out.exists() {
        drop(std::fs::remove_file(&out));
        break_off();
    }
    let resume = |model: &str| bench.run([&args[..], &[model, "--resume", "--json"]].concat());
    let line = error_line(&resume(&fine_tuned(&bench, "tuned.gguf")), 2);
    assert!(line.contains("m.gguf.resume: it is of another model"), "{line}");
    assert!(resume(&path).status.success());
}

/// A file that a command reads is never replaced by one that it writes.
#[test]
fn inputs_are_not_replaced() {
    let bench = Bench::new();
    bench.file("text.txt", TEXT);
    std::fs::copy(model("llama-a", "f32"), bench.path("model.gguf")).expect("a temporary folder is writable");
    imatrix(&bench, &["--model", "model.gguf", "--out", "m.gguf", "--chunks", "1"]);
    std::fs::copy(bench.path("m.gguf"), bench.path("m2.gguf.resume")).expect("a temporary folder is writable");
    let read =
        || ["model.gguf", "m.gguf", "m2.gguf.resume"].map(|name| std::fs::read(bench.path(name)).expect("a file"));
    let before = read();
    let imatrix = ["imatrix", "--file", "text.txt", "--ctx", "64", "--model", "model.gguf", "--out"];
    for (args, input) in [
        ([&imatrix[..], &["./model.gguf"]].concat(), "model.gguf"),
        (vec!["imatrix", "--merge", "m.gguf", "--merge", "m2.gguf.resume", "--out", "m2.gguf"], "m2.gguf.resume"),
        (vec!["quantize", "model.gguf", "m.gguf", "--type", "Q8_0", "--imatrix", "m.gguf"], "m.gguf"),
        (vec!["logits", "--model", "model.gguf", "--tokens", "tokens.json", "--out", "model.gguf"], "model.gguf"),
    ] {
        bench.file("tokens.json", "[1, 2]");
        let line = error_line(&bench.run(&args), 2);
        assert!(line.contains(&format!("{input} is read by this very command")), "{line}");
    }
    assert!(read() == before);
}

#[test]
fn matrices_are_merged_and_wrong_ones_refused() {
    let bench = Bench::new();
    let path = model("qwen3moe-a", "f32");
    imatrix(&bench, &["--model", &path, "--out", "a.gguf", "--chunks", "1"]);
    let told = imatrix(&bench, &["--model", &path, "--out", "b.gguf", "--chunks", "2", "--merge", "a.gguf"]);
    assert_eq!((&told["chunks"], &told["datasets"]), (&json!(3), &json!(["text.txt", "text.txt"])));
    let told = bench.json(["imatrix", "--out", "c.gguf", "--merge", "b.gguf", "--merge", "a.gguf", "--json"]);
    assert_eq!(told["chunks"], json!(4));
    let sums = |name: &str| {
        let file = GgufFile::open(&bench.path(name)).expect("a matrix");
        let tensor = file.tensor("blk.0.attn_q.weight.in_sum2").expect("its sums");
        floats(&file, tensor)
    };
    let expected = sums("a.gguf").into_iter().zip(sums("b.gguf")).map(|(a, b)| b + a).collect::<Vec<_>>();
    assert_eq!(sums("c.gguf"), expected);

    let error = |args: &[&str], code| error_line(&bench.run([&["imatrix"], args].concat()), code);
    imatrix(&bench, &["--model", &model("llama-a", "f32"), "--out", "other.gguf", "--chunks", "1"]);
    let line = error(&["--out", "d.gguf", "--merge", "a.gguf", "--merge", "other.gguf"], 1);
    assert!(line.contains("other.gguf: tensor") && line.contains("are both of this model?"), "{line}");
    assert!(!bench.path("d.gguf").exists());
    assert!(error(&["--out", "d.gguf"], 2).contains("--file"));
    assert!(error(&["--out", "a.gguf", "--merge", "a.gguf"], 2).contains("a.gguf"));
    bench.file("no.gguf", "no matrix");
    assert!(error(&["--out", "d.gguf", "--merge", "no.gguf"], 1).contains("no.gguf"));
    bench.file("short.txt", "too short");
    let line = error(&["--out", "d.gguf", "--file", "short.txt", "--ctx", "64", "--model", &path], 2);
    assert!(line.contains("no window of 64"), "{line}");
}

#[test]
fn a_budget_is_kept_and_measured() {
    let bench = Bench::new();
    let path = model("gemma3-a", "f16");
    imatrix(&bench, &["--model", &path, "--out", "m.gguf", "--sensitivity", "64", "--process-output"]);
    let quantize = |out: &str, args: &[&str]| {
        let all = [&["quantize", &path, out, "--imatrix", "m.gguf", "--json"], args].concat();
        let output = bench.run(all);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_str::<Value>(&text(&output.stdout)).expect("one JSON object")
    };
    let n_bytes = std::fs::metadata(&path).expect("the model").len() * 45 / 100;
    let told = quantize("small.gguf", &["--budget", &format!("{n_bytes}B")]);
    assert!(told["output_bytes"].as_u64().is_some_and(|n| n <= n_bytes && n > n_bytes * 9 / 10), "{told}");
    assert!(told["expected_kl"].as_f64().is_some_and(|kl| kl > 0.0) && told["type"] == json!("budget"), "{told}");
    let bits = quantize("bits.gguf", &["--budget-bpw", "6.5", "--threads", "2"]);
    assert!(bits["bits_per_weight"].as_f64().is_some_and(|bits| bits <= 6.5 && bits > 6.0), "{bits}");
    quantize("again.gguf", &["--budget-bpw", "6.5", "--threads", "1"]);
    let read = |name: &str| std::fs::read(bench.path(name)).expect("a file");
    assert!(read("bits.gguf") == read("again.gguf"), "the number of threads changes nothing");
    quantize("q8.gguf", &["--type", "Q8_0"]);

    let compare = ["compare", &path, "q8.gguf", "bits.gguf", "--file", "text.txt", "--ctx", "64", "--chunks", "4"];
    let told = bench.json([&compare[..], &["--reps", "1", "--svg", "c.svg", "--json"]].concat());
    let models = told["models"].as_array().expect("models");
    assert_eq!((models.len(), &told["n_tokens"]), (3, &json!(4 * 31)));
    assert!(models[0].get("kl").is_none() && models[0]["tg32_tps"].as_f64().is_some_and(|rate| rate > 0.0), "{told}");
    let kl = |i: usize, what: &str| models[i]["kl"][what].as_f64().expect("a number");
    assert!(kl(1, "mean") < kl(2, "mean") && kl(2, "p50") <= kl(2, "p90") && kl(2, "p99") <= kl(2, "max"), "{told}");
    assert!(models[1]["same_top1"].as_f64().is_some_and(|share| share > 0.9), "{told}");
    let svg = std::fs::read_to_string(bench.path("c.svg")).expect("a picture");
    assert_eq!(svg.matches("<circle").count(), 2);
    let table = text(&bench.run([&compare[..], &["--reps", "0"]].concat()).stdout);
    assert!(table.starts_with("MODEL") && table.contains("MEAN KL") && table.contains("bits.gguf"), "{table}");
}

#[test]
fn wrong_budgets_and_comparisons_cost_one_line() {
    let bench = Bench::new();
    let path = model("llama-a", "f16");
    bench.file("text.txt", TEXT);
    let error = |args: &[&str], code| error_line(&bench.run(args), code);
    let quantize = |args: &[&str], code| error(&[&["quantize", &path, "o.gguf"], args].concat(), code);
    let line = quantize(&["--budget", "10kB"], 2);
    assert!(line.contains("the budget is too small: the smallest file of this model has"), "{line}");
    assert!(quantize(&["--budget", "much"], 2).contains("is no size"));
    assert!(quantize(&["--budget-bpw", "99"], 2).contains("from 1 to 32"));
    assert!(quantize(&["--budget", "1GB", "--type", "Q8_0"], 2).contains("cannot be used with"));
    assert!(quantize(&[], 2).contains("--type"));
    assert!(!bench.path("o.gguf").exists() && !bench.path("o.gguf.part").exists());
    let other = model("qwen2-a", "f32");
    let line = error(&["compare", &path, &other, "--file", "text.txt", "--ctx", "64", "--reps", "0"], 1);
    assert!(line.contains("has other tokens than the first model"), "{line}");
    assert!(error(&["compare", &path, "--file", "text.txt"], 2).contains("2 values required"));
}

/// Quantising that is killed leaves no file under the output's name that is not whole.
#[test]
fn quantising_that_is_killed_leaves_no_half_model() {
    let bench = Bench::new();
    let model = ruvllm_testkit::real_model("smollm2:135m");
    let quantize = |out: &str| {
        let mut command = std::process::Command::new(assert_cmd::cargo::cargo_bin("ruvllm"));
        command.arg("quantize").arg(&model).args([out, "--type", "Q8_0", "--requantize"]);
        command.current_dir(bench.path("")).env("RUVLLM_HOME", bench.path("home"));
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        command
    };
    let start = std::time::Instant::now();
    assert!(quantize("whole.gguf").status().expect("the command starts").success());
    let (whole, all) = (std::fs::read(bench.path("whole.gguf")).expect("a file"), start.elapsed());
    for i in 0..10 {
        drop(std::fs::remove_file(bench.path("out.gguf")));
        let mut child = quantize("out.gguf").spawn().expect("the command starts");
        std::thread::sleep(all * (2 * i + 1) / 20);
        child.kill().expect("to be killed");
        child.wait().expect("its end");
        if bench.path("out.gguf").exists() {
            assert!(std::fs::read(bench.path("out.gguf")).expect("a file") == whole, "killed at {i}0 %: not whole");
        }
    }
    // What a killed run left is no hindrance.
    assert!(quantize("out.gguf").status().expect("the command starts").success());
    assert!(std::fs::read(bench.path("out.gguf")).expect("a file") == whole && !bench.path("out.gguf.part").exists());
}
