//! Adapters on the command line: applied, named, shown, merged and converted.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{Bench, error_line, text, told};
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
        let stderr = told(&output.stderr);
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
    assert!(line(&["lora", "merge", path, "--into-model", "--out", model], 2).contains("is read by this very command"));
    // Nothing that is read is replaced: neither the model by an adapter, nor an adapter by another or by a model.
    run(&bench, &["lora", "export", path, "--out", &out.replace("merged", "own")]);
    let (own, own_model) = (out.replace("merged", "own"), out.replace("merged", "model"));
    std::fs::copy(model, &own_model).expect("a temporary folder is writable");
    let copied = folder.path().join("peft");
    run(&bench, &["lora", "export", path, "--out", copied.to_str().expect("UTF-8")]);
    let copied = copied.to_str().expect("UTF-8");
    for args in [
        &["lora", "merge", path, path, "--out", &own_model, "--model", &own_model][..],
        &["lora", "export", path, "--out", &own_model, "--model", &own_model],
        &["lora", "merge", path, &own, "--out", &own, "--model", model],
        &["lora", "merge", copied, path, "--out", copied, "--model", model],
        &["lora", "merge", &own, "--into-model", "--out", &own, "--model", model],
    ] {
        let line = error_line(&bench.run(args), 2);
        assert!(line.contains("is read by this very command"), "{args:?}: {line}");
    }
    let gpt2 = adapter("gpt2");
    line(&["lora", "merge", gpt2.to_str().expect("UTF-8"), "--into-model", "--out", &out], 1);
}

#[test]
fn several_adapters_are_weighed_by_a_gate() {
    use ruvllm_lora::gate::{Gate, GateShape};
    let (bench, folder) = (Bench::new(), tempfile::tempdir().expect("a folder"));
    let file = ruvllm_gguf::GgufFile::open(&Golden::load("llama-a").model("f32")).expect("a golden model opens");
    let n_embd = file.metadata().u32("llama.embedding_length").expect("a number").expect("it is there") as usize;
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

/// Trains a tiny model to give one answer to everything: the held-back questions are asked before and after.
#[cfg(feature = "train")]
#[test]
fn training_counts_right_answers() {
    let bench = Bench::new();
    let line = |i: u8| format!("{{\"prompt\":\"{} {}\",\"completion\":\" ab\"}}\n", char::from(b'a' + i), i * 7);
    bench.file("data.jsonl", (0..24).map(line).collect::<String>());
    let line = "lora train --steps 150 --batch 4 --lr 2e-2 --rank 4 --val 0 --test 0.2 --answers 4 --out out --data data.jsonl";
    let report = run(&bench, &line.split(' ').collect::<Vec<_>>());
    let answers = |when: &str| report[when]["answers"].clone();
    assert_eq!(answers("before"), json!({ "right": 0, "of": 4 }));
    assert!(answers("after")["right"].as_u64() >= Some(2), "{report}");
}

/// Records that a tiny model can learn: what follows each letter.
#[cfg(feature = "train")]
fn lessons() -> String {
    let line = |i: usize| {
        let text: String = (0..8).map(|j| char::from(b'a' + ((i * 5 + j * 2) % 26) as u8)).collect();
        format!("{{\"text\":\"{text}\"}}\n")
    };
    (0..24).map(line).collect()
}

#[cfg(feature = "train")]
#[test]
fn training_writes_an_adapter_and_goes_on_after_ctrl_c() {
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    let bench = Bench::new();
    let data = bench.file("data.jsonl", lessons());
    let args = |out: &str| {
        let line = format!(
            "lora train --steps 300 --batch 4 --lr 1e-2 --rank 2 --targets qv --val 0.2 --max-tokens 32 --out {out}"
        );
        let mut args: Vec<String> = line.split(' ').map(str::to_owned).collect();
        args.extend(["--data".to_owned(), data.to_str().expect("a path of UTF-8").to_owned()]);
        args
    };
    let train = |out: &str| run(&bench, &args(out).iter().map(String::as_str).collect::<Vec<_>>());
    let report = train("whole");
    assert_eq!((&report["options"]["steps"], &report["records"]["val"]), (&Value::from(300), &Value::from(5)));
    let losses: Vec<f64> = report["losses"].as_array().expect("all").iter().filter_map(Value::as_f64).collect();
    assert!(losses.len() == 300 && losses[290..].iter().sum::<f64>() < 0.8 * losses[..10].iter().sum::<f64>());
    let weights = |out: &str| std::fs::read(bench.path(out).join("adapter_model.safetensors")).expect("it is written");
    let answer = |lora: &[&str]| {
        let args = ["run", "--raw", "--prompt", "ace", "--temp", "0", "--max-tokens", "6", "--ignore-eos"];
        run(&bench, &[&args, lora].concat())["tokens"].clone()
    };
    assert_ne!(answer(&[]), answer(&["--lora", bench.path("whole").to_str().expect("a path of UTF-8")]));

    let model = Golden::load("llama-a").model("f32");
    let mut command = Command::new(bench.ruvllm().get_program());
    command.args(args("part")).arg("--model").arg(&model).current_dir(bench.path(""));
    command.env("RUVLLM_HOME", bench.path("home")).env("RUVLLM_THREADS", "1");
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
    // Some steps in; should it be over by then, there is nothing to go on with and the bytes are equal all the same.
    while !bench.path("part").join("checkpoint.safetensors").exists() && child.try_wait().expect("a child").is_none() {
        std::thread::sleep(Duration::from_millis(2));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    let (status, mut stderr) = (child.wait().expect("it ends"), String::new());
    child.stderr.take().expect("a pipe").read_to_string(&mut stderr).expect("text");
    if status.code() == Some(130) {
        assert!(killed.is_ok() && stderr.contains("--resume goes on from there"), "{stderr}");
        let args = args("part");
        run(&bench, &args.iter().map(String::as_str).chain(["--resume"]).collect::<Vec<_>>());
    }
    assert_eq!(weights("part"), weights("whole"));
    assert!(!bench.path("part").join("checkpoint.safetensors").exists());
}

#[cfg(feature = "train")]
#[test]
fn data_that_cannot_be_learned_are_one_line() {
    let bench = Bench::new();
    let model = Golden::load("llama-a").model("f32");
    let model = model.to_str().expect("a path of UTF-8");
    let data = bench.file("data.jsonl", "{\"text\":\"abc\"}\n{\"txt\":\"abc\"}\n");
    let pairs = bench.file("pairs.jsonl", "{\"prompt\":\"a\",\"chosen\":\"b\",\"rejected\":\"c\"}\n");
    let (data, pairs) = (data.to_str().expect("a path of UTF-8"), pairs.to_str().expect("a path of UTF-8"));
    for (args, part) in [
        (vec!["--data", "nowhere.jsonl"], "cannot read nowhere.jsonl: no such file or directory"),
        (vec!["--data", data], "data.jsonl: line 2: fields 'txt'; a record has"),
        (vec!["--data", pairs], "pairs.jsonl: line 1: the loss next-token needs records with 'messages'"),
        (vec!["--data", pairs, "--loss", "dpo", "--rank", "5000"], "factors of rank 5000"),
        (vec!["--data", pairs, "--loss", "dpo", "--lr", "7"], "a rate of 7; use one from 1e-5 to 1e-2"),
        (vec!["--data", pairs, "--loss", "dpo", "--resume"], "checkpoint.safetensors: no such file"),
    ] {
        let output = bench.run([&["lora", "train", "--out", "out", "--model", model], &args[..]].concat());
        let stderr = told(&output.stderr).to_lowercase();
        assert!(!output.status.success() && stderr.contains(part) && stderr.trim().lines().count() == 1, "{stderr}");
    }
}
