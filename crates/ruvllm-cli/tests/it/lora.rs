//! Adapters on the command line: applied, named, shown, merged and converted.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Bench, error_line, text};
use ruvllm_testkit::Golden;

fn adapter(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-lora/testdata").join(name)
}

fn run(bench: &Bench, args: &[&str]) -> Value {
    let model = Golden::load("llama-a").model("f32");
    let model = model.to_str().expect("a path of UTF-8");
    let output = bench.run([args, &["--json", "--model", model]].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_str(&text(&output.stdout)).expect("one JSON object")
}

#[test]
fn an_adapter_is_named_applied_merged_and_written() {
    let bench = Bench::new();
    let path = adapter("llama-qv");
    let path = path.to_str().expect("a path of UTF-8");
    let answer = |lora: &[&str]| {
        let args = ["run", "--raw", "--prompt", "abc", "--temp", "0", "--max-tokens", "12", "--ignore-eos"];
        run(&bench, &[&args, lora].concat())["tokens"].clone()
    };
    let base = answer(&[]);
    let with = answer(&["--lora", path]);
    assert_ne!(base, with);
    assert_eq!(answer(&["--lora", &format!("{path}:0")]), base);
    run(&bench, &["lora", "add", "poet", path]);
    assert_eq!(answer(&["--lora", "poet"]), with);

    let info = run(&bench, &["lora", "info", "poet"]);
    assert_eq!(info["targets"][0]["tensor"], "blk.0.attn_q");
    assert_eq!((&info["targets"][0]["rank"], &info["targets"][0]["scale"]), (&Value::from(4), &Value::from(2.0)));

    let folder = tempfile::tempdir().expect("a folder");
    let out = |name: &str| folder.path().join(name).to_str().expect("a path of UTF-8").to_owned();
    run(&bench, &["lora", "export", "poet", "--out", &out("poet.gguf")]);
    run(&bench, &["lora", "export", &out("poet.gguf"), "--out", &out("poet")]);
    assert_eq!(answer(&["--lora", &out("poet.gguf")]), with);
    assert_eq!(answer(&["--lora", &out("poet")]), with);
    let half = format!("{path}:0.5");
    let merged =
        run(&bench, &["lora", "merge", &half, &half, "--method", "sum", "--rank", "4", "--out", &out("m.gguf")]);
    assert_eq!(merged["rank"], 4);
    assert_ne!(answer(&["--lora", &out("m.gguf")]), base);

    let list = |bench: &Bench| text(&bench.run(["lora", "list"]).stdout);
    assert!(list(&bench).contains("poet"));
    assert!(bench.run(["lora", "rm", "poet"]).status.success());
    assert!(list(&bench).starts_with("no adapters"));
}

#[test]
fn what_is_wrong_is_one_line() {
    let bench = Bench::new();
    let model = Golden::load("llama-a").model("f32");
    let model = model.to_str().expect("a path of UTF-8");
    let phi = adapter("phi3");
    let phi = phi.to_str().expect("a path of UTF-8");
    for (args, part) in [
        (vec!["run", "--prompt", "x", "--lora", "nowhere", "--model", model], "nowhere"),
        (vec!["run", "--prompt", "x", "--lora", phi, "--model", model], "the adapter is for another model"),
        (vec!["lora", "add", "../x", phi, "--model", model], "an adapter cannot be called '../x'"),
        (vec!["lora", "rm", "nobody"], "there is no adapter 'nobody'; see 'ruvllm lora list'"),
        (vec!["lora", "rm", ".."], "an adapter cannot be called '..'"),
    ] {
        let output = bench.run(&args);
        let stderr = text(&output.stderr);
        assert!(!output.status.success() && stderr.contains(part) && stderr.trim().lines().count() == 1, "{stderr}");
    }
}

#[test]
fn a_model_is_written_with_adapters_in_it() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().expect("a folder"));
    let (model, path) = (Golden::load("llama-a").model("f32"), adapter("llama-qv"));
    let (model, path) = (model.to_str().expect("a path of UTF-8"), path.to_str().expect("a path of UTF-8"));
    let out = folder.path().join("merged.gguf").to_str().expect("a path of UTF-8").to_owned();
    let written = run(&bench, &["lora", "merge", path, "--into-model", "--tensors", "f32", "--out", &out]);
    assert!(written["bytes"].as_u64() > Some(1000), "{written}");
    let answer = |args: &[&str]| {
        let common = ["run", "--raw", "--prompt", "abc", "--temp", "0", "--max-tokens", "12", "--ignore-eos", "--json"];
        let output = bench.run([&common, args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let answer: Value = serde_json::from_str(&text(&output.stdout)).expect("one JSON object");
        answer["tokens"].clone()
    };
    assert_eq!(answer(&["--model", &out]), answer(&["--model", model, "--lora", path]));
    assert_ne!(answer(&["--model", &out]), answer(&["--model", model]));
    let line = |args: &[&str], code: i32| error_line(&bench.run([args, &["--model", model]].concat()), code);
    assert!(line(&["lora", "merge", path, "--into-model", "--out", model], 2).contains("is the model itself"));
    let gpt2 = adapter("gpt2");
    line(&["lora", "merge", gpt2.to_str().expect("UTF-8"), "--into-model", "--out", &out], 1);
}

#[test]
fn several_adapters_are_weighed_by_a_gate() {
    use ruvllm_lora::gate::{Gate, GateShape};
    let (bench, folder) = (Bench::new(), tempfile::tempdir().expect("a folder"));
    let n_embd = Golden::load("llama-a").hidden().len() / Golden::load("llama-a").tokens.len();
    let sizes = GateShape { n_embd, n_hidden: 4, n_adapters: 2, window: 8, temperature: 1.0 };
    Gate::seeded(sizes, 1).expect("a gate").write(&folder.path().join("gate.safetensors")).expect("written");
    for name in ["llama-qv", "llama-dora"] {
        std::fs::create_dir(folder.path().join(name)).expect("a folder");
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            std::fs::copy(adapter(name).join(file), folder.path().join(name).join(file)).expect("a copy");
        }
    }
    let config = r#"{"gate": "gate.safetensors", "adapters": ["llama-qv", {"path": "llama-dora", "scale": 0.5}]}"#;
    std::fs::write(folder.path().join("xlora.json"), config).expect("a file");
    let path = folder.path().to_str().expect("a path of UTF-8");
    let answer = |lora: &[&str]| {
        let args = ["run", "--raw", "--prompt", "abc", "--temp", "0", "--max-tokens", "12", "--ignore-eos"];
        run(&bench, &[&args, lora].concat())["tokens"].clone()
    };
    // A gate that prefers nothing yet gives each adapter half of its scale.
    let halves =
        [adapter("llama-qv").display().to_string() + ":0.5", adapter("llama-dora").display().to_string() + ":0.25"];
    assert_eq!(answer(&["--lora", path]), answer(&["--lora", &halves[0], "--lora", &halves[1]]));
    assert_ne!(answer(&["--lora", path]), answer(&[]));
    let model = Golden::load("llama-a").model("f32");
    let refused = |lora: &[&str]| {
        let args = [&["run", "--raw", "--prompt", "abc", "--model", model.to_str().expect("UTF-8")], lora].concat();
        error_line(&bench.run(args), 2)
    };
    assert!(refused(&["--lora", path, "--lora", &halves[0]]).contains("stands alone"));
}

#[test]
fn hostile_adapters_are_refused_in_a_line_each() {
    let (bench, folder) = (Bench::new(), tempfile::tempdir().expect("a folder"));
    let model = Golden::load("llama-a").model("f32");
    let model = model.to_str().expect("a path of UTF-8");
    let (config, weights) = ("adapter_config.json", "adapter_model.safetensors");
    let own = std::fs::read_to_string(adapter("llama-qv").join(config)).expect("test data");
    let bytes = std::fs::read(adapter("llama-qv").join(weights)).expect("test data");
    let nan = [&bytes[..bytes.len() - 4], &f32::NAN.to_le_bytes()].concat();
    let huge = [&(1u64 << 60).to_le_bytes()[..], &bytes[8..]].concat();
    let rank = r#"{"peft_type": "LORA", "r": 4000000000, "lora_alpha": 8}"#;
    let cases: [(&str, &str, &[u8]); 5] = [
        ("nan", &own, &nan),
        ("header", &own, &huge),
        ("cut", &own, &bytes[..100]),
        ("rank", rank, &bytes),
        ("json", "[[", &bytes),
    ];
    for (name, settings, weights_of) in cases {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).expect("a folder");
        std::fs::write(path.join(config), settings).expect("a file");
        std::fs::write(path.join(weights), weights_of).expect("a file");
        let path = path.to_str().expect("a path of UTF-8");
        for args in [
            &["lora", "info", path][..],
            &["lora", "add", "x", path],
            &["run", "--prompt", "a", "--raw", "--lora", path],
        ] {
            let line = error_line(&bench.run([args, &["--model", model]].concat()), 1);
            assert!(line.len() < 500, "{line}");
        }
    }
    let sound = adapter("llama-qv");
    for name in ["../x", "a/b", "", ".x", "x\n"] {
        let args = ["lora", "add", name, sound.to_str().expect("UTF-8"), "--model", model];
        assert!(error_line(&bench.run(args), 1).contains("cannot be called"));
    }
    assert!(text(&bench.run(["lora", "list"]).stdout).starts_with("no adapters"));
}
