//! `--backend candle`: the same tokens as native, and a line about what it does not do.

use crate::common::{Bench, error_line, tiny};
use crate::serve::Server;

#[test]
fn candle_writes_what_native_writes() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let of = |backend: &str, command: &[&str]| {
        let args = [command, &["--model", path, "--backend", backend, "--json"]].concat();
        bench.json(&args)
    };
    let run = ["run", "--raw", "--prompt", "a b c", "--temp", "0", "--max-tokens", "24"];
    assert_eq!(of("native", &run)["tokens"], of("candle", &run)["tokens"]);
    let text = bench.file("text.txt", "one two three four five six seven eight nine ten ".repeat(20));
    let perplexity = ["perplexity", "--file", text.to_str().expect("a path"), "--ctx", "32", "--chunks", "2"];
    let of = |backend| of(backend, &perplexity)["ppl"].as_f64().expect("a number");
    let (native, candle) = (of("native"), of("candle"));
    assert!((native / candle - 1.0).abs() < 1e-3, "{native} and {candle}");
}

#[test]
fn a_server_answers_over_candle_and_says_what_is_missing() {
    let (bench, path) = (Bench::new(), tiny());
    let server = Server::start_with(&bench, &path, &["--backend", "candle"]);
    let body = serde_json::json!({ "prompt": "a b c", "max_tokens": 4, "temperature": 0 });
    let answer = server.ask("POST /v1/completions", &body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let body = serde_json::json!({ "input": "a" });
    let answer = server.ask("POST /v1/embeddings", &body);
    assert!(answer.contains("backend candle has no embeddings"), "{answer}");
}

#[test]
fn what_candle_does_not_do_is_refused_in_a_line() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let run = ["run", "--model", path, "--backend", "candle", "--raw", "--prompt", "a", "--max-tokens", "2"];
    for (more, code, line) in [
        (&["--threads", "2"][..], 2, "--threads is not for --backend candle: set RAYON_NUM_THREADS"),
        (&["--kv", "q8"], 2, "--kv is not for --backend candle: it keeps keys and values as f32"),
        (&["--url", "http://127.0.0.1:9/v1"], 2, "--url is for --backend remote; add that, or leave it out"),
        (&["--draft-model", path], 1, "backend candle has no use for a draft model; use native"),
        (&["--learn"], 1, "backend candle has no hidden states; use native"),
    ] {
        let output = bench.run(run.iter().chain(more));
        assert_eq!(error_line(&output, code), format!("error: {line}"), "{more:?}");
    }
}
