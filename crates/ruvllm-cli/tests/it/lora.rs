//! Adapters on the command line: applied, named, shown, merged and converted.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Bench, text};
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
