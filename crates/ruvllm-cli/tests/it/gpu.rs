//! `--backend gpu`, on the machine's first adapter: the tokens of native, a server over it, adapters, drafts, and a line about what it does not do.

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
        (
            &["--threads", "2"][..],
            2,
            "--threads is not for --backend gpu: the GPU computes, unless --gpu-layers leaves some to the CPU",
        ),
        (
            &["--gpu-layers", "7"],
            2,
            "backend gpu: 7 layers on the GPU were asked for, and the model has 2; choose 1 to 2",
        ),
        (&["--kv", "q8"], 2, "--kv is not for --backend gpu: it keeps keys and values as f16 or f32"),
    ] {
        assert_eq!(error_line(&run(&bench, &[&ask[..], more].concat()), code), format!("error: {line}"), "{more:?}");
    }
    let output = bench.ruvllm().args(ask).env("RUVLLM_GPU", "no such GPU").output().expect("the command starts");
    let line = error_line(&output, 2);
    assert!(line.starts_with("error: backend gpu: no GPU is called 'no such gpu' (0: "), "{line}");
}

/// The first of two layers on the CPU.
#[test]
fn layers_are_divided_between_cpu_and_gpu() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let ask =
        ["run", "--model", path, "--raw", "--prompt", "a b c", "--temp", "0", "--max-tokens", "24", "--ctx", "128"];
    let tokens = |more: &[&str]| json_of(&run(&bench, &[&ask[..], &["--json"], more].concat()))["tokens"].clone();
    let native = tokens(&[]);
    assert_eq!(tokens(&["--backend", "gpu", "--gpu-layers", "1", "--threads", "1"]), native);
    assert_eq!(tokens(&["--backend", "gpu", "--gpu-layers", "2"]), native);
    for backend in ["native", "candle"] {
        let refused = [&ask[..], &["--backend", backend, "--gpu-layers", "1"]].concat();
        assert_eq!(error_line(&run(&bench, &refused), 2), "error: --gpu-layers needs --backend gpu");
    }
}

/// A machine without a driver: the loader of Vulkan is told of none.
#[test]
fn no_gpu_is_one_line() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let ask = ["run", "--model", path, "--backend", "gpu", "--raw", "--prompt", "a", "--max-tokens", "2"];
    let nowhere = bench.path("no such driver.json");
    let run = |ask: &[&str]| {
        let mut command = bench.ruvllm();
        let variables = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES"];
        for name in variables {
            command.env(name, &nowhere);
        }
        command.args(ask).output().expect("the command starts")
    };
    let line = "error: backend gpu: no GPU (there is none); use the native backend, or set RUVLLM_GPU to one of them";
    assert_eq!(error_line(&run(&ask), 2), line);
    assert_eq!(json_of(&run(&["detect", "--json"]))["gpus"], json!([]));
}

/// Both compute on the same GPU at once.
#[test]
fn two_processes_share_the_gpu() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let ask = ["run", "--model", path, "--backend", "gpu", "--raw", "--prompt", "a b c", "--temp", "0"];
    let ask = [&ask[..], &["--max-tokens", "16", "--ctx", "128", "--ignore-eos", "--json"]].concat();
    let both = std::thread::scope(|scope| {
        [(); 2].map(|()| scope.spawn(|| run(&bench, &ask))).map(|process| process.join().expect("it ends"))
    });
    let alone = json_of(&run(&bench, &ask))["tokens"].clone();
    for output in &both {
        assert_eq!(json_of(output)["tokens"], alone);
    }
}

/// Drafts change how many passes an answer takes, and no token of it.
#[test]
fn drafts_change_no_token() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let answer = |more: &[&str]| {
        let ask = ["run", "--model", path, "--backend", "gpu", "--raw", "--prompt", "a b c a b c a b c", "--temp", "0"];
        let ask = [&ask[..], &["--max-tokens", "40", "--ctx", "128", "--ignore-eos", "--json"], more].concat();
        json_of(&run(&bench, &ask))
    };
    let plain = answer(&["--speculate", "off"]);
    assert_eq!(plain["timings"]["draft_tokens"], 0, "{plain}");
    for more in [&["--speculate", "ngram"][..], &["--speculate", "draft", "--draft-model", path]] {
        let drafted = answer(more);
        assert_eq!(drafted["tokens"], plain["tokens"], "{more:?}");
        assert!(drafted["timings"]["accepted_tokens"].as_u64() > Some(0), "{more:?}: {}", drafted["timings"]);
    }
}

/// A seed draws the same tokens from the largest logits alone as from whole rows, which log-probabilities need.
#[test]
fn a_seed_draws_the_same_from_the_largest_logits() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let tokens = |seed: &str, more: &[&str]| {
        let ask = ["run", "--model", path, "--backend", "gpu", "--raw", "--prompt", "a b c", "--temp", "1.5"];
        let rest = ["--max-tokens", "40", "--ctx", "128", "--ignore-eos", "--json", "--seed", seed];
        json_of(&run(&bench, &[&ask[..], &rest, more].concat()))["tokens"].clone()
    };
    for seed in ["1", "2", "3"] {
        let more = ["--top-p", "1", "--min-p", "0", "--top-k", "100"];
        assert_eq!(tokens(seed, &[]), tokens(seed, &["--logprobs", "1"]), "seed {seed}");
        assert_eq!(tokens(seed, &more), tokens(seed, &[&more[..], &["--logprobs", "1"]].concat()), "seed {seed}");
    }
    assert_ne!(tokens("1", &[]), tokens("2", &[]));
}

/// Requests with adapters of their own, at once and alone, and what native answers with them.
#[test]
fn adapters_are_applied_row_by_row() {
    let (bench, path) = (Bench::new(), tiny());
    let path = path.to_str().expect("a path");
    let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-lora/testdata");
    let folder = |name: &str| testdata.join(name).to_string_lossy().into_owned();
    let tokens = |backend: &str, lora: &[&str]| {
        let ask = ["run", "--model", path, "--backend", backend, "--raw", "--prompt", "a b c", "--temp", "0", "--json"];
        let more = ["--max-tokens", "16", "--ctx", "128", "--ignore-eos"];
        json_of(&run(&bench, &[&ask[..], &more, lora].concat()))["tokens"].clone()
    };
    for lora in [&["--lora", &folder("llama-qv")][..], &["--lora", &folder("llama-dora")]] {
        assert_eq!(tokens("gpu", lora), tokens("native", lora), "{lora:?}");
        assert_ne!(tokens("gpu", lora), tokens("gpu", &[]), "{lora:?} changes nothing");
    }
    let testdata = testdata.to_string_lossy();
    let args = ["--model", path, "--alias", "tiny", "--ctx", "256", "--temp", "0", "--backend", "gpu", "--kv-mib", "4"];
    let server = Server::start_with_env(&bench, &[&args[..], &["--adapters", &testdata]].concat(), &[FIRST]);
    let models = ["tiny", "tiny:llama-qv", "tiny:llama-all", "tiny:llama-dora"];
    let ask = |i: usize| {
        let body =
            json!({ "prompt": "one two three four", "max_tokens": 12, "temperature": 0, "model": models[i % 4] });
        text_of(&server.ask("POST /v1/completions", &body))
    };
    let alone: Vec<String> = (0..4).map(ask).collect();
    assert!((1..4).all(|i| alone[i] != alone[0]), "{alone:?}");
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|i| scope.spawn(move || ask(i))).collect();
        threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    for (i, answer) in together.iter().enumerate() {
        assert_eq!(*answer, alone[i % 4], "request {i}");
    }
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
