//! `--backend gpu`, on the machine's first adapter: the tokens of native, a server over it, and a line about what it does not do.

use serde_json::{Value, json};

use crate::common::{Bench, error_line, json_of, text, tiny};
use crate::serve::Server;

/// The first adapter of the list: a software device is taken only if it is named.
const FIRST: (&str, &str) = ("RUVLLM_GPU", "0");

fn run(bench: &Bench, args: &[&str]) -> std::process::Output {
    bench.ruvllm().args(args).env(FIRST.0, FIRST.1).output().expect("the command starts")
}

#[test]
fn the_gpu_writes_what_native_writes() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let of = |backend: &str, command: &[&str]| {
        json_of(&run(&bench, &[command, &["--model", path, "--backend", backend, "--json"]].concat()))
    };
    let ask = ["run", "--raw", "--prompt", "a b c", "--temp", "0", "--max-tokens", "24", "--ctx", "128"];
    assert_eq!(of("native", &ask)["tokens"], of("gpu", &ask)["tokens"]);
    let file = bench.file("text.txt", "one two three four five six seven eight nine ten ".repeat(20));
    let perplexity = ["perplexity", "--file", file.to_str().expect("a path"), "--ctx", "32", "--chunks", "2"];
    let of = |backend| of(backend, &perplexity)["ppl"].as_f64().expect("a number");
    let (native, gpu) = (of("native"), of("gpu"));
    assert!((native / gpu - 1.0).abs() < 1e-3, "{native} and {gpu}");
}

fn body_of(answer: &str) -> Value {
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn text_of(answer: &str) -> String {
    body_of(answer)["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn eight_requests_at_once_get_the_answers_that_they_get_alone() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let args = ["--model", path, "--ctx", "512", "--temp", "0", "--backend", "gpu", "--kv-mib", "4"];
    let server = Server::start_with_env(&bench, &args, &[FIRST]);
    let ask = |i: usize| {
        let prompt = format!("{} {}", "one two three four five six seven ".repeat(3), ["a", "b", "c", "d"][i % 4]);
        server.ask("POST /v1/completions", &json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0 }))
    };
    let alone: Vec<String> = (0..4).map(|i| text_of(&ask(i))).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || text_of(&ask(i)))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    for (i, answer) in together.iter().enumerate() {
        assert_eq!(*answer, alone[i % 4], "request {i}");
    }
    // The first one shares the token at the beginning of all prompts.
    let n_cached = || {
        let body = json!({ "prompt": "a b c ".repeat(12), "max_tokens": 1, "temperature": 0 });
        let usage = body_of(&server.ask("POST /v1/completions", &body))["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert!(n_cached() <= 1 && n_cached() >= 32, "the prefix is cached");
    let answer = server.ask("POST /v1/embeddings", &json!({ "input": "a" }));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn what_was_learned_is_used_on_the_gpu() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let answer = |more: &[&str]| {
        let ask = ["run", "--model", path, "--backend", "gpu", "--json", "--prompt", "Who is Ann?", "--temp", "0"];
        json_of(&run(&bench, &[&ask[..], &["--max-tokens", "8", "--ctx", "256"], more].concat()))["tokens"].clone()
    };
    let base = answer(&[]);
    let learn = ["learn", "--model", path, "--question", "Who is Ann?", "--answer", "A smith.", "--json"];
    let learned = json_of(&run(&bench, &learn));
    assert_eq!(learned["learned"]["corrections"], 1, "{learned}");
    assert_ne!(answer(&["--learn"]), base, "what was learned is not used");
    assert_eq!(answer(&[]), base);
}

#[test]
fn what_the_gpu_does_not_do_is_refused_in_a_line() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let ask = ["run", "--model", path, "--backend", "gpu", "--raw", "--prompt", "a", "--max-tokens", "2"];
    for (more, code, line) in [
        (&["--threads", "2"][..], 2, "--threads is not for --backend gpu: the GPU computes"),
        (&["--kv", "q8"], 2, "--kv is not for --backend gpu: it keeps keys and values as f16 or f32"),
        (&["--draft-model", path], 1, "backend gpu has no use for a draft model; use native"),
    ] {
        assert_eq!(error_line(&run(&bench, &[&ask[..], more].concat()), code), format!("error: {line}"), "{more:?}");
    }
    let output = bench.ruvllm().args(ask).env("RUVLLM_GPU", "no such GPU").output().expect("the command starts");
    let line = error_line(&output, 2);
    assert!(line.starts_with("error: backend gpu: no GPU is called 'no such gpu' (0: "), "{line}");
}

#[test]
fn detect_lists_the_gpus() {
    let bench = Bench::new();
    let object = bench.json(["detect", "--json"]);
    let first = &object["gpus"][0];
    assert!(first["name"].as_str().is_some_and(|name| !name.is_empty()), "{object}");
    assert!(first["binding_bytes_max"].as_u64() >= Some(128 << 20), "{object}");
    assert!(text(&bench.run(["detect"]).stdout).contains("GPU 0"));
}

#[test]
fn kernels_are_profiled() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let ask = ["bench", "--model", path, "--backend", "gpu", "--profile", "--pp", "24", "--tg", "4", "--json"];
    let object = json_of(&run(&bench, &ask));
    assert_eq!((&object["profile"][0]["test"], &object["profile"][1]["test"]), (&json!("tg1@d0"), &json!("pp24")));
    assert!(object["profile"][0]["kernels"][0]["dispatches"].as_u64() > Some(0), "{object}");
    let refused = ["bench", "--model", path, "--profile"];
    assert_eq!(error_line(&run(&bench, &refused), 2), "error: --profile needs --backend gpu");
}
