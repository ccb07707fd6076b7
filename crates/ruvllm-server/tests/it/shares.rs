//! Two tenants: whatever one of them does, the other is answered.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ruvllm_engine::LoadOptions;
use ruvllm_server::{KeyOptions, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Bench, load_options, options, tiny_chat};

const ANN: (&str, &str) = ("authorization", "Bearer key-of-ann");
const BOB: (&str, &str) = ("authorization", "Bearer key-of-bob");

/// A server for two keys, with four places and a context of hours.
fn two(more: ServerOptions) -> Bench {
    let (folder, path) = tiny_chat();
    let load = LoadOptions { n_seq_max: 4, n_ctx: Some(60_000), n_threads: 1, ..load_options() };
    let lines = vec!["ann key-of-ann".to_owned(), "bob key-of-bob".to_owned()];
    let bench = Bench::new(&path, &load, ServerOptions { keys: KeyOptions { file: None, lines }, ..more });
    drop(folder);
    bench
}

/// Sends a request of ann's and leaves its answer.
fn open(bench: &Bench, path: &str, body: &str) -> TcpStream {
    bench.write(format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\n{}: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        ANN.0,
        ANN.1,
        body.len()
    ))
}

/// Returns the longest of a few times that bob waits for four tokens.
#[track_caller]
fn bob_waits(bench: &Bench) -> Duration {
    let ask = |i| {
        let start = Instant::now();
        let body = json!({ "prompt": format!("Once {i}"), "max_tokens": 4, "ignore_eos": true });
        let reply = bench.send("/v1/completions", body.to_string(), &[BOB]);
        assert_eq!(reply.ok()["usage"]["completion_tokens"], 4);
        start.elapsed()
    };
    (0..4).map(ask).max().unwrap_or_default()
}

/// Far more than it takes in company, and far less than one of ann's answers.
const SOON: Duration = Duration::from_secs(5);

/// What a flood is called, where it goes, and its requests.
type Form<'a> = (&'a str, &'a str, &'a dyn Fn(usize) -> Value);

fn endless(prompt: &str) -> Value {
    json!({ "prompt": prompt, "max_tokens": 50_000, "ignore_eos": true, "stream": true })
}

#[test]
fn whatever_one_tenant_asks_the_other_is_answered() {
    let bench = two(options());
    let long = "river stone ".repeat(9_000);
    let texts: Vec<Value> = (0..64).map(|i| json!(format!("{i} river stone"))).collect();
    let forms: [Form<'_>; 10] = [
        ("answers without end", "/v1/completions", &|i| endless(&format!("Once {i}"))),
        ("the same answer", "/v1/completions", &|_| endless("Once")),
        ("long prompts", "/v1/completions", &|i| json!({ "prompt": format!("{i} {long}"), "max_tokens": 1 })),
        ("one prefix", "/v1/completions", &|i| json!({ "prompt": format!("{long} {i}"), "max_tokens": 1 })),
        (
            "many answers each",
            "/v1/completions",
            &|i| json!({ "prompt": format!("Twice {i}"), "max_tokens": 50_000, "ignore_eos": true, "n": 4, "stream": true }),
        ),
        ("lists of prompts", "/v1/completions", &|_| json!({ "prompt": texts, "max_tokens": 500, "ignore_eos": true })),
        ("embeddings", "/v1/embeddings", &|_| json!({ "input": texts })),
        ("chats", "/v1/chat/completions", &|i| {
            let messages = json!([{ "role": "user", "content": format!("{i} {long}") }]);
            json!({ "messages": messages, "max_tokens": 50_000, "ignore_eos": true, "stream": true })
        }),
        ("forms", "/v1/completions", &|i| {
            let regex = json!({ "regex": format!("[a-z]{{{}}}", 900 + i) });
            json!({ "prompt": "Once", "max_tokens": 50_000, "structured_outputs": regex })
        }),
        ("texts to count", "/tokenize", &|i| json!({ "text": format!("{i} {}", long.repeat(20)) })),
    ];
    for (what, path, body) in forms {
        let opened: Vec<TcpStream> = (0..24).map(|i| open(&bench, path, &body(i).to_string())).collect();
        std::thread::sleep(Duration::from_millis(200));
        let waited = bob_waits(&bench);
        assert!(waited < SOON, "{what}: bob waited {waited:?}");
        drop(opened);
    }
    // Nothing of it is left.
    let start = Instant::now();
    let idle = || {
        let metrics = bench.ask("GET", "/metrics", &[BOB]).body;
        let is_zero = |name: &str| {
            let mut lines = metrics.lines().filter(|line| line.starts_with(name));
            lines.all(|line| line.ends_with(" 0"))
        };
        is_zero("ruvllm_requests_running") && is_zero("ruvllm_requests_waiting")
    };
    while !idle() {
        assert!(start.elapsed() < Duration::from_secs(30), "requests of clients that left are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn idle_connections_make_room_for_others() {
    let bench = Bench::tiny(ServerOptions { connections_max: 4, ..options() });
    let mut idle: Vec<TcpStream> = (0..12).map(|_| bench.write("")).collect();
    idle.extend((0..12).map(|_| bench.write("POST /v1/completions HTTP/1.1\r\nhost: x\r\n")));
    for _ in 0..3 {
        let start = Instant::now();
        assert_eq!(bench.get("/health").status, 200);
        assert!(start.elapsed() < Duration::from_secs(2), "it took {:?}", start.elapsed());
    }
    // A connection on which an answer is on its way is none of them.
    let mut at_work = bench
        .open("/v1/completions", &json!({ "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true }));
    let mut begin = [0; 32];
    at_work.read_exact(&mut begin).expect("it begins");
    idle.extend((0..12).map(|_| bench.write("")));
    let mut answer = String::new();
    at_work.read_to_string(&mut answer).expect("an answer");
    assert!(begin.starts_with(b"HTTP/1.1 200") && answer.contains("data: [DONE]"), "{answer}");
}

#[test]
fn bodies_share_a_memory_that_none_fills() {
    let bench = two(ServerOptions { body_bytes_max: 128 << 20, ..options() });
    let values = format!("[{}0]", "0,".repeat(4 << 20));
    let reply = bench.send("/v1/completions", format!("{{\"prompt\": {values}}}"), &[ANN]);
    assert!(reply.refusal().starts_with("413 the values of the body would take"), "{}", reply.body);
    // Ann's bodies are on their way and never come whole: she has her share of their memory, and bob has his.
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\n{}: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        ANN.0,
        ANN.1,
        100 << 20
    );
    let part = vec![b' '; 90 << 20];
    let mut opened: Vec<TcpStream> = (0..3).map(|_| bench.write(&head)).collect();
    opened.iter_mut().for_each(|stream| stream.write_all(&part).expect("it is read"));
    let mut more: Vec<TcpStream> = (0..3).map(|_| bench.write(&head)).collect();
    let refused = more.iter_mut().any(|stream| {
        // What is refused in the middle may be closed before all of it is written.
        let _ = stream.write_all(&part);
        let mut answer = [0; 12];
        stream.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        stream.read_exact(&mut answer).is_ok() && answer.ends_with(b"503")
    });
    assert!(refused, "the bodies of one tenant have all the memory");
    assert!(bob_waits(&bench) < SOON);
}

#[test]
fn metrics_can_be_for_one_key_alone() {
    let bench = two(ServerOptions { metrics_key: Some("bob".to_owned()), ..options() });
    assert_eq!(bench.ask("GET", "/metrics", &[BOB]).status, 200);
    let reply = bench.ask("GET", "/metrics", &[ANN]);
    assert_eq!(reply.refusal(), "403 this key may not read the metrics; they show what all keys do");
}

#[test]
fn long_forms_and_long_texts_do_not_wait_for_each_other() {
    let bench = two(options());
    let literal = format!("root ::= \"{}\"", "a".repeat(60_000));
    let messages = json!([{ "role": "user", "content": "river stone ".repeat(600) }]);
    for (grammar, status) in [(literal.clone(), 200), (literal.repeat(2), 400)] {
        let body = json!({ "messages": messages, "max_tokens": 1, "structured_outputs": { "grammar": grammar } });
        let start = Instant::now();
        let reply = bench.send("/v1/chat/completions", body.to_string(), &[ANN]);
        assert_eq!(reply.status, status, "{}", reply.body);
        assert!(start.elapsed() < 6 * SOON, "it took {:?}", start.elapsed());
    }
}
