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

/// Runs a conversation with another server, line by line.
fn chat(bench: &Bench, url: &str, more: &[&str], lines: &str) -> std::process::Output {
    let mut command = bench.ruvllm();
    command.args(["chat", "--backend", "remote", "--url", url, "--temp", "0", "--max-tokens", "8"]).args(more);
    command.write_stdin(lines).output().expect("the command starts")
}

#[test]
fn a_conversation_goes_to_another_server() {
    let bench = Bench::new();
    let server = server(&bench, &[]);
    let url = url(&server);
    let args = ["run", "--backend", "remote", "--url", &url, "--prompt", "Name three rivers.", "--max-tokens", "8"];
    let expected = bench.json(args.iter().chain(&["--temp", "0", "--json"]));
    let output = chat(&bench, &url, &[], "Name three rivers.\n");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout).trim_end(), expected["text"].as_str().expect("text").trim_end());

    let saved = bench.path("talk.json");
    let lines = format!(
        "Name three rivers.\n/regen\nAnd two seas.\n/set temp 0.5\n/stats\n/save {}\n/clear\n/stats\n",
        saved.display()
    );
    let output = chat(&bench, &url, &["--json", "--system", "Be brief."], &lines);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    let told: Vec<serde_json::Value> = told.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(told.len(), 5, "three answers, two notes: {told:?}");
    assert_eq!(told[0]["text"], told[1]["text"]);
    assert!(told[0]["usage"]["prompt_tokens"].as_u64() < told[2]["usage"]["prompt_tokens"].as_u64(), "it grows");
    assert!(told[3]["note"].as_str().is_some_and(|line| line.contains("8 answer tokens of")), "{}", told[3]);
    assert_eq!(told[4]["note"], "nothing was answered yet");
    let saved: serde_json::Value = serde_json::from_slice(&std::fs::read(saved).expect("written")).expect("JSON");
    assert_eq!((saved["messages"].as_array().map(Vec::len), &saved["model"]), (Some(4), &told[0]["model"]));
}

#[test]
fn a_conversation_says_what_another_server_lacks() {
    let bench = Bench::new();
    for (more, line) in [
        (&["--learn"][..], "--learn needs --backend native"),
        (&["--session", "trip"], "--session needs --backend native"),
        (&["--ctx", "64"], "--ctx needs --backend native"),
        (&["--mirostat", "2"], "--backend remote takes --temp, --top-p,"),
    ] {
        let told = error_line(&chat(&bench, "http://127.0.0.1:9/v1", more, "a\n"), 2);
        assert!(told.contains(line), "{more:?}: {told}");
    }
    let server = server(&bench, &[]);
    for (line, expected) in [
        ("/good", "another server answers, and nothing is learned of it"),
        ("/correct no", "another server answers, and nothing is learned of it"),
        ("/set mirostat 2", "--backend remote takes --temp, --top-p,"),
    ] {
        let told = error_line(&chat(&bench, &url(&server), &["--json"], &format!("{line}\n")), 2);
        assert!(told.contains(expected), "{line}: {told}");
    }
}

#[test]
fn a_server_stands_in_front_of_another_one() {
    let bench = Bench::new();
    let keys = bench.file("keys.txt", "gate secret-key-of-gate\n");
    let behind = server(&bench, &["--api-key-file", &keys.to_string_lossy()]);
    let url = url(&behind);
    let args = ["--backend", "remote", "--url", &url, "--alias", "far,near"];
    // Its key is not taken without being given.
    let output = bench.run(["serve", "--port", "0"].iter().chain(&args));
    let told = error_line(&output, 2);
    assert!(told.ends_with("it asks for a key; set RUVLLM_REMOTE_KEY"), "{told}");
    let output =
        bench.ruvllm().args(["serve", "--port", "0"]).args(args).env("RUVLLM_REMOTE_KEY", "a-wrong-key").output();
    let told = error_line(&output.expect("it starts"), 2);
    assert!(told.contains("it does not take the key of RUVLLM_REMOTE_KEY") && !told.contains("a-wrong-key"), "{told}");

    let front = Server::start_with_env(&bench, &args, &[("RUVLLM_REMOTE_KEY", "secret-key-of-gate")]);
    let chat = json!({ "model": "near", "messages": [{ "role": "user", "content": "a" }], "max_tokens": 4 });
    let answer = front.ask("POST /v1/chat/completions", &chat);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"completion_tokens\":4"), "{answer}");
    let answer = front.ask("POST /tokenize", &json!({ "text": "a" }));
    assert!(answer.starts_with("HTTP/1.1 501"), "{answer}");
}

#[test]
fn a_server_in_front_refuses_what_needs_a_model_of_its_own() {
    let bench = Bench::new();
    let remote = ["serve", "--port", "0", "--backend", "remote", "--url", "http://127.0.0.1:9/v1"];
    for (more, line) in [
        (&["--learn"][..], "--learn needs --backend native"),
        (&["--adapter", "poet=x"], "--adapter needs --backend native"),
        (&["--cache-dir", "x"], "--cache-dir needs --backend native"),
        (&["--ctx", "64"], "--ctx needs --backend native"),
        (&["--temp", "0"], "options of samplers are not for --backend remote"),
        (&["--alias", "a", "--alias", "b"], "2 times --alias for 1 of --model"),
    ] {
        let told = error_line(&bench.run(remote.iter().chain(more)), 2);
        assert!(told.contains(line), "{more:?}: {told}");
    }
    let told = error_line(&bench.run(remote), 1);
    assert!(told.contains("http://127.0.0.1:9/v1 cannot be reached"), "{told}");
    let told = error_line(&bench.run(["serve", "--backend", "remote"]), 2);
    assert!(told.contains("--url"), "{told}");
}
