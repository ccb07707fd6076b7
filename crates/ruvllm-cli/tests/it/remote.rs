//! `--backend remote` against a server of our own in another process.

use serde_json::json;

use crate::common::{Bench, error_line, json_of, text, tiny};
use crate::serve::Server;

/// Starts a server of a tiny model with a chat template.
fn server(bench: &Bench, args: &[&str]) -> Server {
    let file = ruvllm_gguf::GgufFile::open(&tiny()).expect("a golden file");
    let mut writer = ruvllm_gguf::GgufWriter::from_file(&file);
    writer.metadata_mut().set("tokenizer.chat_template", "{% for m in messages %}{{ m.content }}\n{% endfor %}");
    let path = bench.path("chat.gguf");
    writer.write_file(&path).expect("a temporary folder is writable");
    Server::start_with(bench, &path, args)
}

/// The address of a server's API.
fn url(server: &Server) -> String {
    format!("http://{}/v1", server.address())
}

#[test]
fn another_server_answers_as_it_would_itself() {
    let bench = Bench::new();
    let server = server(&bench, &[]);
    let (url, prompt) = (url(&server), "Name three rivers.");
    let args = ["run", "--backend", "remote", "--url", &url, "--prompt", prompt, "--max-tokens", "8", "--temp", "0"];
    let object = bench.json(args.iter().chain(&["--json", "--logprobs", "1"]));
    let body = json!({
        "model": object["model"], "messages": [{ "role": "user", "content": prompt }], "max_tokens": 8, "temperature": 0,
    });
    let answer = server.ask("POST /v1/chat/completions", &body);
    let answer: serde_json::Value =
        serde_json::from_str(answer.split("\r\n\r\n").nth(1).expect("a body")).expect("JSON");
    assert_eq!(object["text"], answer["choices"][0]["message"]["content"]);
    assert_eq!(object["finish_reason"], "length");
    assert_eq!(object["usage"]["completion_tokens"], 8);
    assert_eq!(object["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens"]);
    assert_eq!(object["logprobs"].as_array().map(Vec::len), Some(8));
    // The same as text, as it comes.
    let output = bench.run(args);
    assert_eq!(text(&output.stdout).trim_end(), object["text"].as_str().expect("text").trim_end());
}

#[test]
fn what_only_tokens_can_do_is_refused_before_anybody_is_asked() {
    let bench = Bench::new();
    let remote = ["run", "--backend", "remote", "--url", "http://127.0.0.1:9/v1", "--prompt", "a"];
    for (more, line) in [
        (&["--raw"][..], "--raw needs --backend native: another server gives no tokens"),
        (&["--session", "trip"], "--session needs --backend native: another server gives no tokens"),
        (&["--regex", "a+"], "--regex needs --backend native: another server gives no tokens"),
        (&["--mirostat", "2"], "--backend remote takes --temp, --top-p,"),
    ] {
        let output = bench.run(remote.iter().chain(more));
        let told = error_line(&output, 2);
        assert!(told.contains(line), "{more:?}: {told}");
    }
    let output = bench.run(["run", "--url", "http://127.0.0.1:9/v1", "--prompt", "a"]);
    let told = error_line(&output, 2);
    assert!(told.contains("--url is for --backend remote"), "{told}");
    let output = bench.run(["run", "--backend", "remote", "--url", "localhost:80", "--prompt", "a"]);
    let told = error_line(&output, 2);
    assert!(told.contains("write http://HOST:PORT/v1"), "{told}");
}

#[test]
fn a_key_goes_along_and_a_wrong_one_is_told() {
    let bench = Bench::new();
    let keys = bench.file("keys.txt", "ann secret-key-of-ann\n");
    let server = server(&bench, &["--api-key-file", &keys.to_string_lossy()]);
    let url = url(&server);
    let args = ["run", "--backend", "remote", "--url", &url, "--prompt", "a", "--max-tokens", "2", "--json"];
    let object =
        json_of(&bench.ruvllm().args(args).env("RUVLLM_REMOTE_KEY", "secret-key-of-ann").output().expect("it starts"));
    assert_eq!(object["usage"]["completion_tokens"], 2);
    let output = bench.run(args);
    let told = error_line(&output, 2);
    assert!(told.contains("answered 401"), "{told}");
}
