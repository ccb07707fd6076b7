//! `ruvllm serve`: from the start to the signal that ends it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::{Bench, error_line, text, tiny};

/// A server that was started, and its address.
pub struct Server {
    process: Child,
    address: String,
    /// Reads what it writes to standard error: a pipe that nobody reads would stop it.
    log: Option<JoinHandle<Vec<u8>>>,
}

impl Server {
    pub fn start(bench: &Bench, args: &[&str]) -> Server {
        Server::start_with(bench, &tiny(), args)
    }

    /// Starts one that serves another model.
    pub fn start_with(bench: &Bench, model: &Path, args: &[&str]) -> Server {
        let model = model.to_string_lossy();
        Server::start_as(bench, &[&["--model", &model, "--ctx", "512", "--temp", "0"], args].concat())
    }

    /// Starts one with these options, and no others but for its port.
    pub fn start_as(bench: &Bench, args: &[&str]) -> Server {
        Server::start_with_env(bench, args, &[])
    }

    /// Starts one with these options and more variables of the environment.
    pub fn start_with_env(bench: &Bench, args: &[&str], variables: &[(&str, &str)]) -> Server {
        let all = [&["serve", "--port", "0"], args].concat();
        let mut process = Command::new(assert_cmd::cargo::cargo_bin("ruvllm"))
            .args(all)
            .env("RUVLLM_HOME", bench.path("home"))
            .env("RUVLLM_THREADS", "1")
            .env("XDG_CONFIG_HOME", bench.path("config"))
            .env_remove("RUVLLM_CONFIG")
            .env_remove("RUVLLM_API_KEYS")
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut line = String::new();
        let out = process.stdout.as_mut().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it listens");
        let mut stderr = process.stderr.take().expect("it is piped");
        let log = std::thread::spawn(move || {
            let mut log = Vec::new();
            stderr.read_to_end(&mut log).expect("a log");
            log
        });
        let address = line.split("http://").nth(1).unwrap_or_else(|| panic!("{line:?}"));
        Server {
            address: address.trim_end_matches(['\n', '}', '"']).split('"').next().expect("text").to_owned(),
            process,
            log: Some(log),
        }
    }

    /// Sends a request, and returns the stream to read the answer from.
    fn send(&self, head: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        let lines = "host: x\r\nconnection: close\r\ncontent-type: application/json";
        write!(stream, "{head} HTTP/1.1\r\n{lines}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).expect("sent");
        stream
    }

    /// Returns its host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn ask(&self, head: &str, body: &Value) -> String {
        let mut answer = String::new();
        self.send(head, &body.to_string()).read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Sends a signal, and returns what the process wrote to standard error when it has ended with success.
    pub fn end(mut self, signal: &str) -> String {
        let sent = Command::new("kill").arg(signal).arg(self.process.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()));
        let start = Instant::now();
        let status = loop {
            match self.process.try_wait().expect("it is a child") {
                Some(status) => break status,
                None if start.elapsed() > Duration::from_secs(30) => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let log = self.log.take().expect("it ends once").join().expect("no panic");
        assert!(status.success(), "{status}: {}", text(&log));
        text(&log)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.process.kill();
        // Until it is gone it has its files open.
        let _ = self.process.wait();
    }
}

#[test]
fn a_model_is_served_until_a_signal_comes() {
    for signal in ["-TERM", "-INT"] {
        let bench = Bench::new();
        let server = Server::start(&bench, &["--alias", "tiny", "--json"]);
        let answer = server.ask("POST /v1/completions", &json!({ "prompt": "Once", "max_tokens": 4, "model": "tiny" }));
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("text_completion"), "{answer}");
        // What has begun may end.
        let body = json!({ "prompt": "Once", "max_tokens": 400, "ignore_eos": true, "stream": true }).to_string();
        let mut stream = server.send("POST /v1/completions", &body);
        stream.read_exact(&mut [0; 16]).expect("it begins");
        let log = server.end(signal);
        let mut rest = String::new();
        stream.read_to_string(&mut rest).expect("it ends");
        assert!(rest.contains("data: [DONE]"), "{rest}");
        for line in log.lines() {
            let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            // The context of these tests is larger than what the tiny model was trained for.
            let is_of_context = event["message"].as_str().is_some_and(|line| line.contains("was trained with 256"));
            assert!(event["level"] == "INFO" || is_of_context, "{line}");
        }
        assert!(log.contains("\"status\":200") && log.contains("stopping"), "{log}");
    }
}

#[test]
#[cfg(unix)]
fn a_hangup_has_it_read_its_keys_again() {
    let bench = Bench::new();
    let file = bench.path("keys");
    std::fs::write(&file, "ann key-of-ann\n").expect("written");
    let server = Server::start(&bench, &["--api-key-file", &file.to_string_lossy()]);
    let status = |key: &str| {
        let answer = server
            .ask(&format!("GET /v1/models HTTP/1.1\r\nauthorization: Bearer {key}\r\nx-first-line:"), &Value::Null);
        answer.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    let answers = |key: &str, wanted: &str| {
        let start = Instant::now();
        while status(key) != wanted {
            assert!(start.elapsed() < Duration::from_secs(10), "{key} is not answered with {wanted}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    answers("key-of-ann", "200");
    // The same time of change as before: only the signal tells that there is something new.
    let modified = std::fs::metadata(&file).and_then(|metadata| metadata.modified()).expect("a time");
    std::fs::write(&file, "bob key-of-bob\n").expect("written");
    let open = std::fs::File::options().write(true).open(&file).expect("it is there");
    open.set_modified(modified).expect("a time is set");
    let sent = Command::new("kill").args(["-HUP", &server.id().to_string()]).status();
    assert!(sent.is_ok_and(|status| status.success()));
    answers("key-of-bob", "200");
    answers("key-of-ann", "401");
    let log = server.end("-TERM");
    assert!(log.contains("SIGHUP: the keys are read again") && log.contains("a key was revoked"), "{log}");
}

#[test]
fn prompts_are_known_after_a_restart() {
    let bench = Bench::new();
    let folder = bench.path("kv").to_string_lossy().into_owned();
    let body = json!({ "prompt": "river stone ".repeat(40), "max_tokens": 2 });
    let cached = || {
        let server = Server::start(&bench, &["--cache-dir", &folder]);
        let answer = server.ask("POST /v1/completions", &body);
        server.end("-TERM");
        let answer = answer.split("\"cached_tokens\":").nth(1).unwrap_or_else(|| panic!("{answer}")).to_owned();
        answer.split('}').next().and_then(|n| n.parse::<usize>().ok()).expect("a count")
    };
    assert_eq!(cached(), 0);
    assert!(cached() > 100);
}

#[test]
fn adapters_are_served_by_their_names() {
    let bench = Bench::new();
    let testdata = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../ruvllm-lora/testdata");
    let qv = testdata.join("llama-qv");
    let folder = testdata.to_string_lossy().into_owned();
    assert!(
        bench
            .run(["lora", "add", "kept", &qv.to_string_lossy(), "--model", &tiny().to_string_lossy()])
            .status
            .success()
    );
    let named = format!("poet={}", qv.display());
    let args = ["--alias", "tiny", "--adapter", &named, "--adapter", "tiny:kept", "--adapters", &folder];
    let server = Server::start(&bench, &args);
    let list = server.ask("GET /v1/adapters", &Value::Null);
    for name in ["\"poet\"", "\"kept\"", "\"llama-all\"", "\"gpt2\""] {
        assert!(list.contains(name), "{list}");
    }
    let said = |model: &str| {
        let answer = server.ask("POST /v1/completions", &json!({ "prompt": "Once", "max_tokens": 8, "model": model }));
        let text = answer.split("\"text\":").nth(1).and_then(|rest| rest.split("}],").next());
        text.unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    assert!(said("tiny:poet") == said("tiny:kept") && said("tiny:poet") == said("tiny:llama-qv"));
    assert_ne!(said("tiny"), said("tiny:poet"));
    let metrics = server.ask("GET /metrics", &Value::Null);
    assert!(metrics.contains("ruvllm_adapter_bytes_max{model=\"tiny\"} 268435456"), "{metrics}");
    server.end("-TERM");

    let model = tiny().to_string_lossy().into_owned();
    let run = |args: &[&str]| error_line(&bench.run([&["serve", "--port", "0", "--model", &model], args].concat()), 1);
    let gpt2 = format!("poet={}", testdata.join("gpt2").display());
    assert!(run(&["--adapter", &gpt2]).contains("adapter 'poet': "), "{}", run(&["--adapter", &gpt2]));
    assert!(run(&["--adapters", "/nowhere/at/all"]).contains("there is no folder /nowhere/at/all"));
    assert!(run(&["--adapter", "x=/nowhere"]).contains("/nowhere"));
}

#[test]
fn keys_are_asked_for() {
    let bench = Bench::new();
    let keys = bench.file("keys.txt", "ann key-of-ann\n").to_string_lossy().into_owned();
    let server = Server::start(&bench, &["--api-key-file", &keys]);
    assert!(server.ask("POST /tokenize", &json!({ "text": "x" })).starts_with("HTTP/1.1 401 "));
    let answer =
        server.ask("POST /tokenize HTTP/1.1\r\nauthorization: Bearer key-of-ann\r\nx-rest:", &json!({ "text": "x" }));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let log = server.end("-TERM");
    assert!(log.contains("tenant=\"ann\"") && !log.contains("key-of-ann"), "{log}");
}

#[test]
fn a_damaged_further_model_is_told_and_the_others_are_served() {
    let (bench, model) = (Bench::new(), tiny());
    let cut = bench.path("cut.gguf");
    std::fs::write(&cut, &std::fs::read(&model).expect("the model")[..1000]).expect("a file");
    let server = Server::start(&bench, &["--alias", "tiny", "--model", &cut.to_string_lossy(), "--alias", "cut"]);
    let ask =
        |model: &str| server.ask("POST /v1/completions", &json!({ "prompt": "Once", "max_tokens": 2, "model": model }));
    assert!(ask("tiny").starts_with("HTTP/1.1 200 OK\r\n"));
    let answer = ask("cut");
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("cut.gguf"), "{answer}");
    assert!(ask("tiny").starts_with("HTTP/1.1 200 OK\r\n"));
    let log = server.end("-TERM");
    assert!(log.contains("it cannot be used as it is") && log.contains("cut.gguf"), "{log}");
}

#[test]
fn what_cannot_be_served_is_told_in_a_line() {
    let bench = Bench::new();
    let model = tiny().to_string_lossy().into_owned();
    let run = |args: &[&str]| bench.run([&["serve", "--model", &model], args].concat());
    let line = error_line(&run(&["--api-key-file", "missing.txt"]), 1);
    assert!(line.starts_with("error: cannot read the key file missing.txt: "), "{line}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let line = error_line(&run(&["--port", &port]), 1);
    assert_eq!(line, format!("error: cannot listen on 127.0.0.1:{port}: address already in use"));
    assert!(error_line(&run(&["--host", "nowhere.invalid"]), 2).contains("--host nowhere.invalid is no address"));
    assert!(error_line(&run(&["--parallel", "0"]), 2).contains("use a number from 1 to 4096"));
}

/// Options of llama.cpp's server do here what they do there.
#[test]
fn options_of_llama_server_are_taken() {
    let bench = Bench::new();
    let args = [
        "--alias",
        "one,two",
        "--tags",
        "fim,small",
        "--no-slots",
        "--no-webui",
        "--verbose",
        "--api-key",
        "secret-key,other-key",
    ];
    let server = Server::start(&bench, &args);
    let models = server.ask("GET /models", &json!(null));
    assert!(models.contains(r#""aliases":["two"]"#) && models.contains(r#""tags":["fim","small"]"#), "{models}");
    assert!(server.ask("POST /completion", &json!({ "prompt": "a" })).starts_with("HTTP/1.1 401 "));
    for key in ["secret-key", "other-key"] {
        let head = |path: &str| format!("{path} HTTP/1.1\r\nx-api-key: {key}\r\nx-rest:");
        let slots = server.ask(&head("GET /slots"), &json!(null));
        assert!(slots.starts_with("HTTP/1.1 501 "), "{slots}");
        assert!(server.ask(&head("GET /"), &json!(null)).starts_with("HTTP/1.1 404 "));
        let answer =
            server.ask(&head("POST /v1/completions"), &json!({ "model": "two", "prompt": "a", "max_tokens": 1 }));
        assert!(answer.contains("__verbose") && answer.contains(r#""model":"one""#), "{answer}");
    }
    for (args, expected) in [
        (&["--api-key", "short"][..], "at least 8 characters"),
        (&["--models-dir", "/nowhere"], "--models-dir /nowhere: "),
        (&["--chat-template", "chatnl"], "the known templates are chatml, "),
    ] {
        let model = tiny().to_string_lossy().into_owned();
        let output = bench.run([&["serve", "--model", &model], args].concat());
        assert!(text(&output.stderr).contains(expected), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn models_of_a_folder_are_served_by_name() {
    let bench = Bench::new();
    let folder = bench.path("models");
    std::fs::create_dir_all(folder.join("b")).expect("a temporary folder is writable");
    for name in ["a.gguf", "b/weights.gguf"] {
        std::fs::copy(tiny(), folder.join(name)).expect("a temporary folder is writable");
    }
    let dir = folder.to_string_lossy().into_owned();
    let server = Server::start(&bench, &["--models-dir", &dir, "--no-models-autoload", "--context-shift"]);
    let models = server.ask("GET /v1/models", &json!(null));
    assert!([r#""id":"a""#, r#""id":"b""#].iter().all(|id| models.contains(id)), "{models}");
    let long = json!({ "model": "b", "prompt": "river ".repeat(900), "max_tokens": 2 });
    let refused = server.ask("POST /v1/completions", &long);
    assert!(refused.contains("the model 'b' is not loaded; POST /models/load loads it"), "{refused}");
    let loaded = server.ask("POST /models/load", &json!({ "model": "b" }));
    assert!(loaded.contains(r#""success":true"#), "{loaded}");
    let answer = server.ask("POST /v1/completions", &long);
    assert!(answer.contains(r#""model":"b""#), "{answer}");
}

#[test]
fn texts_for_drafts_are_kept_for_the_next_start_shown_and_removed() {
    let bench = Bench::new();
    let (kv, learned) = (bench.path("home/kv"), bench.path("home/learned"));
    let [folder, key] = [kv.to_str().expect("a plain path"), "key"];
    let key = bench.file(key, [7; 32]);
    let body =
        json!({ "prompt": "one two three four five six", "max_tokens": 24, "ignore_eos": true, "temperature": 0 });
    let accepted = |args: &[&str]| {
        let server = Server::start(&bench, args);
        server.ask("POST /v1/completions", &body);
        let metrics = server.ask("GET /metrics", &json!({}));
        let is_meant = |line: &&str| {
            line.starts_with("ruvllm_spec_source_accepted_tokens_total{") && line.contains("source=\"history\"")
        };
        let line = metrics.lines().find(is_meant).unwrap_or_else(|| panic!("{metrics}"));
        let n: f64 = line.rsplit(' ').next().and_then(|n| n.trim().parse().ok()).expect("a number");
        server.end("-TERM");
        n
    };
    assert_eq!(accepted(&["--cache-dir", folder]), 0.0);
    assert!(accepted(&["--cache-dir", folder]) >= 10.0);
    assert_eq!(accepted(&["--cache-dir", folder, "--draft-history", "0"]), 0.0);
    assert_eq!(accepted(&[]), 0.0, "nothing is kept without a folder");
    // Learning alone keeps them where it keeps what it learned, encrypted with its key.
    let key = key.to_str().expect("a plain path");
    assert_eq!(accepted(&["--learn", "--learn-key", key]), 0.0);
    // What was learned of the first answer changes some tokens of the second.
    assert!(accepted(&["--learn", "--learn-key", key]) >= 1.0);
    let stats = bench.json(["cache", "stats", "--json"]);
    let paths: Vec<&str> =
        stats["drafts"].as_array().expect("a list").iter().filter_map(|file| file["path"].as_str()).collect();
    assert!(paths.len() == 2 && paths[0].starts_with(folder), "{stats}");
    assert!(Path::new(paths[1]).starts_with(learned), "{stats}");
    assert!(
        stats["drafts"][0]["bytes"].as_u64() > Some(0)
            && stats["bytes"].as_u64() > stats["drafts"][0]["bytes"].as_u64()
    );
    let shown = bench.run(["cache", "stats"]);
    assert!(text(&shown.stdout).contains("are earlier texts that drafts are made of (2 models)"), "{shown:?}");
    // Those that only sessions are to be kept of stay.
    assert_eq!(bench.json(["cache", "clear", "--keep-sessions", "--json"])["drafts"], json!([]));
    let removed = bench.json(["cache", "clear", "--json"]);
    assert_eq!(removed["drafts"].as_array().map(Vec::len), Some(2), "{removed}");
    assert_eq!(bench.json(["cache", "stats", "--json"])["drafts"], json!([]));
    let wrong = bench.run(["serve", "--draft-history", "lots"]);
    assert!(error_line(&wrong, 2).contains("--draft-history"), "{wrong:?}");
}

#[cfg(unix)]
#[test]
fn signals_are_heard_as_soon_as_the_address_is_told() {
    let bench = Bench::new();
    for signal in ["-TERM", "-INT", "-TERM", "-INT"] {
        Server::start(&bench, &[]).end(signal);
    }
    // Without keys in a file there is nothing to read again; it does not end the program either.
    let server = Server::start(&bench, &[]);
    let sent = Command::new("kill").arg("-HUP").arg(server.id().to_string()).status();
    assert!(sent.is_ok_and(|status| status.success()));
    server.end("-TERM");
}
