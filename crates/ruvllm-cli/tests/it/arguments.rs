//! Arguments are checked before anything slow is done, and mean what users of other programs expect.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ruvllm_testkit::real_model;
use serde_json::Value;

use crate::common::{Bench, error_line, json_of, text, tiny, tiny_with, told};

/// Runs the command where no model is there and none can be had; so each error that is not about that was found before.
#[track_caller]
fn check(bench: &Bench, args: &[&str], piece: &str) {
    let mut command = bench.ruvllm();
    command.args(args).env("RUVLLM_SOURCES", "pypi").env("PIP_INDEX_URL", "http://127.0.0.1:9");
    command.env("PIP_CONFIG_FILE", "/dev/null").env_remove("PIP_FIND_LINKS").write_stdin("hi");
    let start = Instant::now();
    let output = command.output().expect("the command starts");
    let stderr = told(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {stderr}");
    assert!(stderr.starts_with("error: ") && stderr.lines().count() == 1, "{args:?}: {stderr}");
    assert!(stderr.contains(piece), "{args:?}: '{piece}' in: {stderr}");
    assert!(!stderr.contains("cannot pull") && !stderr.contains("not on this machine"), "{args:?}: {stderr}");
    assert!(start.elapsed() < Duration::from_secs(10), "{args:?} took {:?}", start.elapsed());
}

#[test]
fn answers_begin_with_their_arguments() {
    let bench = Bench::new();
    bench.file("no-schema.json", "{\"type\": \"nonsense\"}");
    bench.file("no.json", "{");
    bench.file("short.key", "too short");
    bench.file("file", "");
    let cases: &[(&[&str], &str)] = &[
        (&["--json-schema", "no-schema.json"], "nonsense"),
        (&["--json-schema", "no.json"], "no JSON"),
        (&["--grammar", "missing.gbnf"], "missing.gbnf"),
        (&["--regex", "("], "regex"),
        (&["--choice", "a,"], "--choice"),
        (&["--stop", ""], "--stop"),
        (&["--dry-sequence-breaker", ""], "--dry-sequence-breaker"),
        (&["--seed", "-2"], "--seed"),
        (&["--max-tokens", "-2"], "--max-tokens"),
        (&["--mirostat-tau", "1e9"], "mirostat tau"),
        (&["--lora", "missing"], "missing"),
        (&["--learn", "--tenant", "a b"], "'a b'"),
        (&["--learn", "--learn-key", "short.key"], "short.key"),
        (&["--cache-dir", "file/below"], "file is no folder"),
        (&["--session", ""], "--session"),
        (&["--speculate", "draft"], "--draft-model"),
        (&["--draft-model", "missing.gguf"], "missing.gguf"),
        (&["--model", "missing.gguf"], "missing.gguf"),
    ];
    for (args, piece) in cases {
        check(&bench, &[&["run", "--prompt", "hi"], *args].concat(), piece);
    }
    let of_chat = |args: &[&str]| {
        !args[0].starts_with("--json-") && !["--grammar", "--regex", "--choice", "--stop", "--lora"].contains(&args[0])
    };
    for (args, piece) in cases.iter().filter(|(args, _)| of_chat(args)) {
        check(&bench, &[&["chat"], *args].concat(), piece);
    }
}

#[test]
fn servers_begin_with_their_arguments() {
    let bench = Bench::new();
    bench.file("file", "");
    bench.file("keys", "ann key-of-ann\n");
    bench.file("empty.pem", "");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("a bound socket has an address").port().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["--api-key-file", "missing"], "missing"),
        (&["--api-key-file", "keys", "--metrics-key", "bob"], "'bob'"),
        (&["--tls-cert", "empty.pem", "--tls-key", "empty.pem"], "empty.pem"),
        (&["--router", "missing"], "missing"),
        (&["--adapter", "poet=missing"], "missing"),
        (&["--adapter", "other:poet=file"], "'other'"),
        (&["--adapters", "missing"], "missing"),
        (&["--alias", "a", "--alias", "b"], "--alias"),
        (&["--model", "smollm2", "--model", "smollm2"], "two models"),
        (&["--model", "smollm2", "--model", "missing.gguf"], "missing.gguf"),
        (&["--witness", "file/below"], "file is no folder"),
        (&["--witness", "log", "--witness-key", "missing"], "missing"),
        (&["--learn", "--learn-key", "missing"], "missing"),
        (&["--cache-dir", "file/below"], "file is no folder"),
        (&["--cors-origin", "a\nb"], "origin"),
        (&["--port", &port], "cannot listen"),
    ];
    for (args, piece) in cases {
        check(&bench, &[&["serve"], *args].concat(), piece);
    }
    assert!(!bench.path("log").exists(), "nothing was made");
}

#[test]
fn measurements_begin_with_their_arguments() {
    let bench = Bench::new();
    bench.file("file", "some text");
    bench.file("texts.jsonl", "{\"text\": \"a\", \"label\": \"x\"}\n");
    bench.file("two.jsonl", "{\"embedding\": [1]}\n{\"embedding\": [1]}\n");
    bench.file("outcomes.jsonl", "{\"prompt\": \"a\", \"weak\": 0, \"strong\": 1}\n");
    let outcomes: String = (0..8).map(|i| format!("{{\"prompt\": \"p{i}\", \"weak\": 0, \"strong\": 1}}\n")).collect();
    bench.file("more.jsonl", outcomes);
    bench.file("tasks.jsonl", "{\"prompt\": \"a\", \"check\": {\"kind\": \"number\", \"of\": 1}}\n");
    let minilm = &["--embedder", "minilm:l6"][..];
    let cases: &[(&[&str], &str)] = &[
        (&["eval", "learning", "--stream", "x=/nonexistent", "--control", "file"], "/nonexistent"),
        (&["eval", "learning", "--stream", "x=file", "--control", "missing"], "missing"),
        (&["eval", "learning", "--stream", "x=file", "--control", "file", "--out", "missing/o.json"], "missing/o.json"),
        (
            &["eval", "learning", "--stream", "x=file", "--control", "file", "--out", "file"],
            "read by this very command",
        ),
        (&[&["eval", "embedding", "texts.jsonl", "--reference", "missing"], minilm].concat(), "missing"),
        (&[&["eval", "embedding", "texts.jsonl", "--reference", "two.jsonl"], minilm].concat(), "2 embeddings for 1"),
        (&[&["eval", "routing", "outcomes.jsonl"], minilm].concat(), "--folds"),
        (&[&["eval", "routing", "more.jsonl", "--plot", "missing/p.svg"], minilm].concat(), "missing/p.svg"),
        (&[&["eval", "roles", "missing"], minilm].concat(), "missing"),
        (&[&["route", "train", "--outcomes", "more.jsonl", "--routes", "missing"], minilm].concat(), "missing"),
        (
            &[&["route", "train", "--outcomes", "more.jsonl", "--router", "file/r"], minilm].concat(),
            "file is no folder",
        ),
        (&["route", "collect", "--tasks", "missing", "-m", "smollm2", "-m", "gemma3", "--out", "o"], "missing"),
        (&["route", "collect", "--tasks", "tasks.jsonl", "-m", "smollm2", "-m", "gemma3", "--out", "no/o"], "no/o"),
        (
            &["route", "collect", "--tasks", "tasks.jsonl", "-m", "smollm2", "-m", "smollm2", "--out", "o"],
            "two of --model",
        ),
        (&["route", "collect", "--tasks", "tasks.jsonl", "-m", "smollm2", "-m", "x.gguf", "--out", "o"], "x.gguf"),
        (&["perplexity", "--file", "missing"], "missing"),
        (&["logits", "--tokens", "missing", "--out", "o"], "missing"),
        (&["tokenize", "--file", "missing"], "missing"),
        (&["embed", "--file", "missing"], "missing"),
        (&["embed", "--file", "file"], "line 1"),
    ];
    for (args, piece) in cases {
        check(&bench, args, piece);
    }
    assert!(!bench.path("o").exists(), "nothing was made");
}

#[test]
fn learning_and_adapters_begin_with_their_arguments() {
    let bench = Bench::new();
    bench.file("file", "some text");
    bench.file("data.jsonl", "{\"text\": \"some text to learn from, long enough\"}\n");
    bench.file("a.gguf", "GGUF");
    let key = "0".repeat(64);
    let train = &["lora", "train", "--data", "data.jsonl", "--out", "o"][..];
    let cases: &[(&[&str], &str)] = &[
        (&["learn", "--file", "missing"], "missing"),
        (&["learn", "--file", "file", "--tenant", "a/b"], "'a/b'"),
        (&["learn", "--file", "file", "--learn-key", "missing"], "missing"),
        (&["sona", "undo", "1", "--tenant", "a b"], "'a b'"),
        (&["sona", "rollback", "1", "--learn-key", "missing"], "missing"),
        (&["sona", "log", "--tenant", "a b"], "'a b'"),
        (&["sona", "export", "missing/o"], "missing/o"),
        (&["sona", "import", "missing", "--trust", &key], "missing"),
        (&["sona", "import", "file", "--trust", &key], "this is no file of what was learned"),
        (&["sona", "import", "file", "--patterns", "--trust", &key], "this is no file of patterns"),
        (&["sona", "import", "file", "--trust", "12"], "--trust"),
        (&["sona", "patterns", " "], "TASK is empty"),
        (&["lora", "add", "a b", "file"], "cannot be called 'a b'"),
        (&["lora", "add", "poet", "missing"], "missing"),
        (&["lora", "info", "missing"], "missing"),
        (&["lora", "export", "missing", "--out", "o"], "missing"),
        (&["lora", "export", "a.gguf", "--out", "missing/o.gguf"], "missing/o.gguf"),
        (&["lora", "export", "a.gguf", "--out", "file/o"], "file is no folder"),
        (&["lora", "merge", "missing", "--out", "o"], "missing"),
        (&["lora", "merge", "a.gguf", "a.gguf", "--method", "ties", "--density", "2", "--out", "o"], "density of 2"),
        (&["lora", "merge", "a.gguf", "--method", "slerp", "--out", "o"], "slerp"),
        (&["lora", "merge", "a.gguf", "--rank", "0", "--out", "o"], "rank of 0"),
        (&["lora", "merge", "a.gguf", "--into-model", "--out", "missing/o.gguf"], "missing/o.gguf"),
        (&["lora", "train", "--data", "missing", "--out", "o"], "missing"),
        (&["lora", "train", "--data", "data.jsonl", "--out", "file"], "file is no folder"),
        (&[train, &["--val", "2"]].concat(), "--val"),
        (&[train, &["--lr", "7"]].concat(), "rate of 7"),
        (&[train, &["--epochs", "0"]].concat(), "--epochs"),
        (&[train, &["--resume"]].concat(), "checkpoint"),
        (&["witness", "search", "log", "--request", "nonsense"], "--request"),
        (&["witness", "verify", "log", "--anchor", "missing"], "missing"),
        (&["witness", "export", "log", "--out", "missing/o"], "missing/o"),
        (&["witness", "replay", "log", "--lora", "missing"], "missing"),
        (&["witness", "list", "log", "--key", "missing"], "missing"),
    ];
    for (args, piece) in cases {
        check(&bench, args, piece);
    }
    assert!(!bench.path("o").exists(), "nothing was made");
}

#[test]
fn ids_are_checked_before_the_model_is_loaded() {
    let bench = Bench::new();
    let ids = bench.file("ids.json", "[1, 2, 9999999]");
    let (model, ids) = (tiny(), ids.to_str().expect("plain"));
    let args = ["logits", "--model", model.to_str().expect("plain"), "--tokens", ids, "--out", "o"];
    assert!(error_line(&bench.run(args), 1).contains("token 9999999 is not in the vocabulary"));
    assert!(!bench.path("o").exists());
}

#[test]
fn long_work_is_told_off_a_terminal() {
    let bench = Bench::new();
    // Somebody who listens and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let endpoint = format!("http://{}", silent.local_addr().expect("a bound socket has an address"));
    let mut child = std::process::Command::new(bench.ruvllm().get_program())
        .args(["pull", "smollm2:135m"])
        .env("RUVLLM_HOME", bench.path("home"))
        .env("HF_HOME", bench.path("hf"))
        .env("HF_ENDPOINT", endpoint)
        .env("RUVLLM_SOURCES", "hub")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let (start, mut line) = (Instant::now(), String::new());
    BufReader::new(child.stderr.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let waited = start.elapsed();
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert_eq!(line, "note: asking the Hugging Face hub ...\n");
    assert!(waited >= Duration::from_millis(1900) && waited < Duration::from_secs(15), "{waited:?}");
}

fn run_tiny(bench: &Bench, more: &[&str]) -> Value {
    let model = tiny();
    let args = ["run", "--model", model.to_str().expect("plain"), "--raw", "--no-prefix-cache", "--json"];
    bench.json(args.iter().chain(more))
}

#[test]
fn minus_one_is_random_and_endless() {
    let bench = Bench::new();
    let all = run_tiny(&bench, &["--ctx", "48", "--prompt", "hello", "--ignore-eos", "--max-tokens", "-1"]);
    let n = |name: &str| all[name].as_array().expect("tokens").len();
    assert_eq!((n("prompt_tokens") + n("tokens"), all["finish_reason"].as_str()), (48, Some("length")));
    let draw = || {
        let args = ["--prompt", "hello", "--ignore-eos", "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0"];
        run_tiny(&bench, &[&args[..], &["--seed", "-1", "--max-tokens", "24"]].concat())["tokens"].clone()
    };
    assert_ne!(draw(), draw(), "another seed every time");
}

#[test]
fn a_context_beyond_training_is_told() {
    let bench = Bench::new();
    let model = bench.path("short.gguf");
    tiny_with(&model, |metadata| metadata.set("llama.context_length", 32u32));
    let run = |n_ctx: &str| {
        let model = model.to_str().expect("plain");
        let args = ["run", "--model", model, "--raw", "--no-prefix-cache", "--prompt", "hi", "--max-tokens", "1"];
        bench.run(args.iter().chain(&["--ctx", n_ctx]))
    };
    let output = run("64");
    assert!(output.status.success());
    let line = told(&output.stderr);
    assert!(line.starts_with("warning: a context of 64 tokens") && line.contains("trained with 32"), "{line}");
    assert_eq!(told(&run("32").stderr), "");
}

#[test]
fn escapes_are_read_where_that_is_asked_for() {
    let bench = Bench::new();
    let prompt = |args: &[&str], stdin: &str| {
        let model = tiny();
        let mut command = bench.ruvllm();
        command.args(["run", "--raw", "--no-prefix-cache", "--json", "--max-tokens", "1", "--model"]).arg(model);
        let output = command.args(args).write_stdin(stdin).output().expect("the command starts");
        json_of(&output)["prompt_tokens"].clone()
    };
    let lines = prompt(&[], "a\nb\t\\");
    assert_eq!(prompt(&["--escape", "--prompt", r"a\nb\t\\"], ""), lines);
    assert_eq!(prompt(&["-e", "--prompt", r"a\nb\t\\"], ""), lines);
    assert_ne!(prompt(&["--prompt", r"a\nb\t\\"], ""), lines);
    // What comes from a pipe is as it is.
    assert_ne!(prompt(&["--escape"], r"a\nb\t\\"), lines);
}

#[test]
fn choices_with_commas_are_whole() {
    let bench = Bench::new();
    let model = real_model("smollm2:135m");
    let answer = |choices: &[&str]| {
        let model = model.to_str().expect("plain");
        let args = ["run", "--model", model, "--no-prefix-cache", "--temp", "0", "--prompt", "Is it raining?"];
        let output = bench.run(args.iter().chain(choices));
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    };
    let whole = ["yes, a lot", "no, not at all"];
    assert!(whole.contains(&&*answer(&["--choice", whole[0], "--choice", whole[1]])));
    assert!(whole.contains(&&*answer(&["--choice", r#"["yes, a lot","no, not at all"]"#])));
    assert!(["yes", "no"].contains(&&*answer(&["--choice", "yes,no"])));
}

#[test]
fn old_names_of_options_are_taken_and_the_new_ones_told() {
    let bench = Bench::new();
    let path = tiny();
    let path = path.to_string_lossy();
    let cases: [(&[&str], &str); 3] = [
        (&["--no-screen"], "--no-screen is now --no-head-shortlist"),
        (&["--dry-last-n=8"], "--dry-last-n is now --dry-penalty-last-n"),
        (&["--dry-breaker", "x", "--dry-breaker", "y"], "--dry-breaker is now --dry-sequence-breaker"),
    ];
    for (args, line) in cases {
        let output = bench
            .run([&["run", "--model", &*path, "--raw", "--prompt", "a", "--max-tokens", "2", "--json"], args].concat());
        let stderr = told(&output.stderr);
        assert!(
            output.status.success() && stderr.lines().filter(|told| *told == line).count() == 1,
            "{args:?}: {stderr}"
        );
        let answer: Value = serde_json::from_slice(&output.stdout).expect("one object");
        let timings = &answer["timings"];
        for (old, new) in [("guessed_tokens", "draft_tokens"), ("right_tokens", "accepted_tokens")] {
            assert!(
                timings[old].is_u64() && timings[old] == timings[new] && timings["renamed"][old] == new,
                "{timings}"
            );
        }
    }
}

#[test]
fn outputs_are_none_of_the_files_that_are_read() {
    let bench = Bench::new();
    std::fs::copy(tiny(), bench.path("model.gguf")).expect("a temporary folder is writable");
    bench.file("text.txt", "a text\n".repeat(200));
    bench.file("tasks.jsonl", r#"{"prompt":"2 + 2","check":{"kind":"regex","of":""},"subject":"any"}"#);
    bench.json(["packs", "key", "secret", "--json"]);
    let read = || ["model.gguf", "secret"].map(|name| std::fs::read(bench.path(name)).expect("a file"));
    let before = read();
    let collect = ["route", "collect", "--tasks", "tasks.jsonl", "--model", "a=model.gguf", "--model", "b=model.gguf"];
    let learning = ["eval", "learning", "--stream", "a=text.txt", "--control", "text.txt", "--model", "model.gguf"];
    for (args, input) in [
        ([&collect[..], &["--out", "model.gguf"]].concat(), "model.gguf"),
        ([&learning[..], &["--out", "./model.gguf"]].concat(), "model.gguf"),
        (vec!["sona", "export", "secret", "--sign-key", "secret", "--model", "model.gguf"], "secret"),
        (vec!["witness", "export", "log", "--key", "secret", "--out", "secret"], "secret"),
    ] {
        let line = error_line(&bench.run(&args), 2);
        assert!(line.contains(&format!("{input} is read by this very command")), "{line}");
    }
    assert!(read() == before);
}
