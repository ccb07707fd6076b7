//! Learning on the command line: texts and corrections are kept for a tenant, used on demand, and forgotten.

use ruvllm_sona::bank::{BankConfig, Pattern, ReasoningBank, Select, SigningKey, Step, Verdict};
use ruvllm_sona::store::{self, OpenOptions};
use serde_json::Value;

use crate::common::{Bench, error_line, tiny};

fn json(bench: &Bench, args: &[&str]) -> Value {
    let model = tiny();
    bench.json([args, &["--json", "--model", model.to_str().expect("a path of UTF-8")]].concat())
}

/// A text of its own kind, longer than a request.
fn text(word: &str) -> String {
    (0..400).map(|i| format!("{word} {} {};\n", i * 37 % 101, i * i % 89)).collect()
}

#[test]
fn what_is_learned_is_used_and_forgotten() {
    let bench = Bench::new();
    let file = bench.file("manual.txt", text("alpha"));
    let file = file.to_str().expect("a path of UTF-8");
    let answer = |args: &[&str]| {
        let run = ["run", "--raw", "--prompt", "alpha 1", "--temp", "0", "--max-tokens", "16", "--ignore-eos"];
        json(&bench, &[&run, args].concat())["tokens"].clone()
    };
    let base = answer(&[]);
    assert_eq!(answer(&["--learn", "--tenant", "empty"]), base);
    let first = json(&bench, &["learn", "--file", file, "--file", file]);
    assert_eq!(first["files"].as_array().map(Vec::len), Some(2));
    let nll = |i: usize, name: &str| first["files"][i][name].as_f64().expect("a number");
    assert!(nll(1, "nll_learning") < 0.7 * nll(0, "nll_learning"), "{first}");
    assert!(nll(0, "nll_model") == nll(1, "nll_model") && first["change"].as_f64() < Some(0.0));
    let n = first["tokens"].as_u64().expect("a number");
    assert_eq!((&first["learned"]["tokens"], &first["tenant"]), (&Value::from(n), &Value::from("local")));
    assert_ne!(answer(&["--learn"]), base, "what was learned is not used");
    assert_eq!(answer(&[]), base);
    assert_eq!(answer(&["--learn", "--tenant", "other"]), base, "a tenant hears of another");
    // A prompt is learned too.
    let again = json(&bench, &["learn", "--question", "Who is Ann?", "--answer", "A smith."]);
    assert!(again["learned"]["tokens"].as_u64() > Some(n) && again["learned"]["corrections"] == 1, "{again}");
    let forgotten = json(&bench, &["learn", "--forget"]);
    assert_eq!((&forgotten["learned"]["entries"], &forgotten["learned"]["corrections"]), (&0.into(), &0.into()));
    assert_eq!(answer(&["--learn"]), base);
}

#[test]
fn what_was_learned_is_listed_undone_rolled_back_and_carried() {
    let bench = Bench::new();
    let status = || json(&bench, &["sona", "status"]);
    assert_eq!((&status()["generation"], &status()["tenants"]), (&0.into(), &Value::Array(Vec::new())));
    let tell = |answer: &str| json(&bench, &["learn", "--question", "Who is Ann?", "--answer", answer]);
    tell("A smith.");
    let digest = |args: &[&str]| json(&bench, args)["digest"].as_str().expect("a digest").to_owned();
    let exported = bench.path("first.ruv");
    let first = digest(&["sona", "export", exported.to_str().expect("a path")]);
    tell("A baker.");
    let log = json(&bench, &["sona", "log"]);
    let items = log["items"].as_array().expect("items");
    assert!(items.len() == 2 && items[0]["kind"] == "told" && items[0]["can_undo"] == true, "{log}");
    let newest = items[0]["item"].to_string();
    // As if the second had never been told.
    assert_eq!(digest(&["sona", "undo", &newest]), first);
    let file = bench.file("manual.txt", text("alpha"));
    let read = json(&bench, &["learn", "--file", file.to_str().expect("a path")]);
    let generations = status()["generations"].clone();
    let why = |i: usize| generations[i]["why"].as_str().expect("a text").to_owned();
    assert_eq!((why(0).as_str(), why(1).as_str()), ("before manual.txt", "read manual.txt"));
    assert!(
        generations[1]["figures"]["nats a token"].as_f64() < generations[1]["figures"]["nats a token alone"].as_f64()
    );
    assert_eq!(read["learned"]["generation"], 2);
    let before = generations[0]["number"].to_string();
    assert_eq!(digest(&["sona", "rollback", &before]), first);
    // Another tenant takes it over, from those it trusts only.
    let signed = json(&bench, &["sona", "export", exported.to_str().expect("a path")]);
    let key = signed["signed_by"].as_str().expect("a key");
    let import = ["sona", "import", exported.to_str().expect("a path"), "--tenant", "other", "--trust"];
    assert_eq!(digest(&[&import[..], &[key]].concat()), first);
    let model = tiny();
    let model = ["--model", model.to_str().expect("a path of UTF-8")];
    let line = error_line(&bench.run([&import[..], &[&"5a".repeat(32)], &model].concat()), 1);
    assert!(line.contains("not trusted"), "{line}");
    for (args, part, code) in [
        (vec!["sona", "undo", "99"], "there is no item 99", 1),
        (vec!["sona", "undo", &newest], "nothing that is left", 1),
        (vec!["sona", "rollback", "9"], "generation 9", 1),
        (vec!["sona", "import", "x", "--trust", "5a"], "64", 2),
    ] {
        let line = error_line(&bench.run([&args[..], &model].concat()), code);
        assert!(line.contains(part), "{args:?}: {line}");
    }
    // With a key nothing of it is readable without.
    let key = bench.file("key", "5a".repeat(32));
    let sealed = ["learn", "--question", "Who is Ann?", "--answer", "A smith.", "--learn-key"];
    let line = error_line(&bench.run([&sealed[..], &[key.to_str().expect("a path")], &model].concat()), 1);
    assert!(line.contains("not encrypted") || line.contains("key"), "{line}");
}

/// Patterns as another node of the same model signs them, whose embeddings have 64 values.
fn signed_patterns(bench: &Bench, key: &SigningKey, tasks: &[&str]) -> std::path::PathBuf {
    let folder = std::fs::read_dir(bench.path("home/learned")).expect("a folder").next().expect("a model");
    let space = format!("states of model {}", folder.expect("readable").file_name().to_string_lossy());
    let store = store::open(&bench.path("other.redb"), &OpenOptions::default()).expect("a store");
    let bank = ReasoningBank::open(store, "other", BankConfig::new(space, 64), &mut |_, _| {}).expect("a bank");
    for (i, task) in tasks.iter().enumerate() {
        let embedding = (0..64).map(|at| if at == i { 1.0 } else { 0.01 }).collect();
        let steps = vec![Step { action: format!("step of {task}"), outcome: String::new() }];
        bank.add(&Pattern::new(*task, embedding, steps, Verdict::Success, 0.9)).expect("room");
    }
    bench.file("tasks.ruv", bank.export(&Select::default(), key).expect("readable"))
}

#[test]
fn patterns_are_carried_listed_found_and_forgotten() {
    let bench = Bench::new();
    let listed = |args: &[&str]| json(&bench, &[&["sona", "patterns"], args].concat());
    assert_eq!(listed(&[])["count"], 0);
    let key = SigningKey::from_seed([9; 32]);
    let file = signed_patterns(&bench, &key, &["write a poem", "sort a list"]);
    let public = key.public().to_string();
    let import = ["sona", "import", "--patterns", file.to_str().expect("a path"), "--trust", &public];
    assert_eq!((&json(&bench, &import)["added"], &json(&bench, &import)["known"]), (&2.into(), &2.into()));
    assert_eq!(listed(&["--limit", "1"])["data"][0]["task"], "sort a list");
    let found = listed(&["sort a list"]);
    assert!(
        found["data"].as_array().is_some_and(|data| data.len() == 2 && data[0]["similarity"].is_number()),
        "{found}"
    );
    let exported = bench.path("mine.ruv");
    json(&bench, &["sona", "export", "--patterns", exported.to_str().expect("a path")]);
    assert_eq!(listed(&["--remove", "1"])["count"], 1);
    let model = tiny();
    let model = ["--model", model.to_str().expect("a path of UTF-8")];
    for (args, part, code) in [
        (vec!["sona", "patterns", "--remove", "1"], "no pattern 1", 1),
        (vec!["sona", "patterns", " "], "TASK is empty", 2),
        (vec!["sona", "import", exported.to_str().expect("a path"), "--trust", &public], "no file of", 1),
    ] {
        let line = error_line(&bench.run([&args[..], &model].concat()), code);
        assert!(line.contains(part), "{args:?}: {line}");
    }
}

#[test]
fn measurements_of_learning_have_their_controls() {
    let bench = Bench::new();
    let stream = format!(
        "letters={},{}",
        bench.file("a.txt", text("alpha")).display(),
        bench.file("b.txt", text("alpha beta")).display()
    );
    let control = bench.file("control.txt", text("Omega & Psi?"));
    let out = bench.path("figures.json");
    let paths = [control.to_str().expect("a path"), out.to_str().expect("a path")];
    let figures = json(
        &bench,
        &["eval", "learning", "--stream", &stream, "--tokens", "9000", "--control", paths[0], "--out", paths[1]],
    );
    let stream = &figures["streams"][0];
    let change = |from: &Value, variant: &str| from[variant]["change"].as_f64().expect("a number");
    assert!(change(&stream["second_half"], "all") < -0.1, "{stream}");
    let all = &stream["second_half"]["all"];
    assert!(all["low"].as_f64() < all["change"].as_f64() && all["change"].as_f64() < all["high"].as_f64());
    assert!(change(&stream["again"][0]["changes"], "memory") < change(&stream["second_half"], "memory"));
    assert_eq!((&stream["documents"], &stream["controls"][0]["name"]), (&2.into(), &"control".into()));
    assert!(change(&stream["controls"][0]["changes"], "all").is_finite());
    let written: Value = serde_json::from_slice(&std::fs::read(&out).expect("it was written")).expect("JSON");
    assert_eq!(written, figures);
    let plot = std::fs::read_to_string(out.with_extension("svg")).expect("it was written");
    assert_eq!(plot.matches("<polyline").count(), 7);

    let memory = json(&bench, &["eval", "memory", "--facts", "5", "--unrelated", "4"]);
    assert_eq!((&memory["facts"]["all"]["exact"]["of"], &memory["unrelated_unchanged"]["of"]), (&5.into(), &4.into()));
    assert!(memory["negative"]["log_p_change"].as_f64() < Some(0.0), "{memory}");
}

#[test]
fn what_is_wrong_is_one_line() {
    let bench = Bench::new();
    let model = tiny();
    let model = model.to_str().expect("a path of UTF-8");
    for (args, part, code) in [
        (vec!["learn", "--model", model], "--file", 2),
        (vec!["learn", "--question", "x", "--model", model], "--answer", 2),
        (vec!["learn", "--file", "nowhere.txt", "--model", model], "nowhere.txt", 1),
        (vec!["learn", "--forget", "--tenant", "a/b", "--model", model], "a/b", 2),
        (vec!["run", "--prompt", "x", "--tenant", "a", "--model", model], "--learn", 2),
        (vec!["run", "--prompt", "x", "--learn", "--lora", "y", "--model", model], "--lora", 2),
        (vec!["eval", "learning", "--stream", "x", "--control", "y", "--model", model], "NAME=", 2),
    ] {
        // The model is calibrated first where what is wrong shows behind that: none of these is.
        let line = error_line(&bench.run(args.clone()), code);
        assert!(line.contains(part), "{args:?}: {line}");
    }
}
