//! Too much, too slow, gone, and the end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use ruvllm_engine::LoadOptions;
use ruvllm_server::{KeyOptions, ServerOptions};
use serde_json::{Value, json};

use crate::client::{Bench, Reply, load_options, options, tiny_chat};

/// A request that writes for a long time.
fn long() -> Value {
    json!({ "prompt": "Once", "max_tokens": 1_000_000, "ignore_eos": true, "stream": true })
}

/// A server whose requests take seconds: one at a time, of a long context.
fn slow(options: ServerOptions) -> Bench {
    let (folder, path) = tiny_chat();
    let load = LoadOptions { n_seq_max: 1, n_ctx: Some(60_000), n_threads: 1, ..load_options() };
    let bench = Bench::new(&path, &load, options);
    drop(folder);
    bench
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let bench = slow(ServerOptions { queue_max: 2, ..options() });
    let open: Vec<_> = (0..3).map(|_| bench.open("/v1/completions", &long())).collect();
    while bench.metric("ruvllm_requests_running") + bench.metric("ruvllm_requests_waiting") < 3.0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let reply = bench.post("/v1/completions", &json!({ "prompt": "Once" }));
    assert!(reply.refusal().starts_with("429 the queue is full: 2 requests wait; try again in"), "{}", reply.body);
    assert!(reply.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok()) >= Some(1));
    drop(open);
    bench.wait_until_idle();
    bench.post("/v1/completions", &json!({ "prompt": "Once" })).ok();
}

#[test]
fn a_key_has_its_share() {
    let lines = vec!["ann key-of-ann concurrent=1".to_owned(), "bob key-of-bob".to_owned()];
    let bench = slow(ServerOptions { keys: KeyOptions { file: None, lines }, ..options() });
    let key = ("authorization", "Bearer key-of-ann");
    let body = long().to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{}: {}\r\ncontent-length: {}\r\n\r\n{body}",
        key.0,
        key.1,
        body.len()
    );
    let mut first = bench.write(&head);
    assert!(first.read(&mut [0; 16]).expect("it begins") > 0);
    let second = bench.send("/v1/completions", json!({ "prompt": "x" }).to_string(), &[key]);
    assert_eq!(second.refusal(), "429 this key may have 1 requests at once; wait for one to end");
    assert_eq!(second.header("retry-after"), Some("1"));
    drop(first);
    let again = Instant::now();
    while bench.send("/v1/completions", json!({ "prompt": "x" }).to_string(), &[key]).status == 429 {
        assert!(again.elapsed() < Duration::from_secs(10));
    }
}

/// Issue "Serving", 5.
#[test]
fn whoever_goes_leaves_nothing_behind() {
    let bench = slow(options());
    let prompt = "river stone ".repeat(2000);
    for i in 0..30 {
        let body = match i % 3 {
            0 => long(),
            // Gone in the prompt, and without a stream.
            1 => json!({ "prompt": prompt, "max_tokens": 5 }),
            _ => json!({ "prompt": "Once", "max_tokens": 1_000_000, "ignore_eos": true, "n": 3 }),
        };
        let mut stream = bench.open("/v1/completions", &body);
        match i % 4 {
            0 if i % 3 == 0 => drop(stream.read(&mut [0; 300])),
            1 => std::thread::sleep(Duration::from_millis(20)),
            2 => drop(stream.shutdown(Shutdown::Both)),
            _ => {}
        }
    }
    bench.wait_until_idle();
    let engine = bench.join();
    assert_eq!(engine.kv_usage().in_use, 0);
}

/// Returns the process's resident bytes and threads.
#[cfg(target_os = "linux")]
fn held() -> (usize, usize) {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().find_map(|word| word.parse::<usize>().ok()).expect("a number")
    };
    (number("VmRSS:") << 10, number("Threads:"))
}

/// Issue "Serving", must show 5: a thousand go in the middle of their prompt or answer.
#[cfg(target_os = "linux")]
#[test]
fn a_thousand_who_go_leave_nothing_behind() {
    let (folder, path) = tiny_chat();
    let load = LoadOptions { n_ctx: Some(4096), n_threads: 1, kv_bytes: Some(8 << 20), ..load_options() };
    let bench = Bench::new(&path, &load, options());
    drop(folder);
    let prompt = "river stone ".repeat(1500);
    let mut leave = |i: usize| {
        // A prompt of its own, so that it is computed and not found.
        let body = match i % 2 {
            0 => json!({ "prompt": format!("{i} {prompt}"), "max_tokens": 5 }),
            _ => json!({ "prompt": format!("Once {i}"), "max_tokens": 4000, "ignore_eos": true, "stream": true }),
        };
        let mut stream = bench.open("/v1/completions", &body);
        match i % 2 {
            0 => std::thread::sleep(Duration::from_millis(i as u64 % 7)),
            _ => drop(stream.read(&mut [0; 300])),
        }
        if i.is_multiple_of(3) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    };
    (0..200).for_each(&mut leave);
    bench.wait_until_idle();
    let before = held();
    (200..1200).for_each(&mut leave);
    bench.wait_until_idle();
    let start = Instant::now();
    // What is told of blocks is up to a quarter of a second old.
    let in_use = "ruvllm_kv_blocks{model=\"tiny\",state=\"in_use\"}";
    while bench.metric(in_use) > 0.0 || bench.metric("ruvllm_connections") > 1.0 {
        assert!(start.elapsed() < Duration::from_secs(5), "blocks or connections are held");
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = held();
    // Other tests run in this process at the same time: what counts is that nothing grew by the thousand.
    assert!(after.0 < before.0 + (96 << 20), "{before:?} bytes and threads before, {after:?} after");
    assert_eq!(bench.join().kv_usage().in_use, 0);
}

#[test]
fn what_runs_by_a_key_ends_when_it_is_revoked() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("keys");
    std::fs::write(&file, "ann key-of-ann\nbob key-of-bob\n").expect("written");
    let bench = slow(ServerOptions { keys: KeyOptions { file: Some(file.clone()), lines: Vec::new() }, ..options() });
    let body = long().to_string();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
        x-api-key: key-of-ann\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = bench.write(&head);
    stream.read_exact(&mut [0; 32]).expect("it begins");
    std::fs::write(&file, "bob key-of-bob\n").expect("written");
    let start = Instant::now();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("it ends");
    assert!(
        rest.contains("the API key was revoked while the request ran"),
        "{}",
        &rest[rest.len().saturating_sub(300)..]
    );
    assert!(start.elapsed() < Duration::from_secs(5));
    let ask = |key| bench.send("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 }).to_string(), &[key]).status;
    assert_eq!((ask(("x-api-key", "key-of-ann")), ask(("x-api-key", "key-of-bob"))), (401, 200));
}

#[test]
fn time_is_limited_where_it_was_asked_for() {
    let bench = slow(options());
    let mut body = long();
    (body["stream"], body["timeout_ms"]) = (json!(false), json!(200));
    let start = Instant::now();
    let reply = bench.post("/v1/completions", &body);
    assert!(reply.refusal().starts_with("504 the request's time was over after"), "{}", reply.body);
    assert!((150..5000).contains(&start.elapsed().as_millis()));
    // In a stream the error comes as an event, and no end of success.
    body["stream"] = json!(true);
    let reply = bench.post("/v1/completions", &body);
    let last = reply.body.trim_end().rsplit("\n\n").next().and_then(|event| event.strip_prefix("data: "));
    let error: Value = serde_json::from_str(last.expect("an event")).expect("JSON");
    assert_eq!((reply.status, &error["error"]["type"]), (200, &json!("timeout_error")));
}

#[test]
fn slow_clients_are_not_waited_for() {
    let limits = ServerOptions {
        header_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        write_timeout: Duration::from_millis(500),
        ..options()
    };
    let bench = slow(limits);
    let mut silent = bench.write("POST /v1/comp");
    let mut rest = String::new();
    // Closed, with an answer or without.
    let _ = silent.read_to_string(&mut rest);
    let head = "POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
        content-length: 100\r\n\r\n{";
    assert_eq!(Reply::read(bench.write(head)).refusal(), "408 the body did not come within 0 s");
    // One that asks for much and reads nothing: its request ends, and others are answered.
    let many = json!({ "prompt": "Once", "max_tokens": 59_000, "ignore_eos": true, "stream": true, "n": 8 });
    let mut deaf = bench.open("/v1/completions", &many);
    deaf.flush().expect("sent");
    bench.wait_until_idle();
    drop(deaf);
}

#[test]
fn a_stop_lets_the_work_end_within_its_time() {
    let mut bench = slow(ServerOptions { drain_timeout: Duration::from_secs(20), ..options() });
    let mut body = long();
    body["max_tokens"] = json!(300);
    let mut stream = bench.open("/v1/completions", &body);
    let mut first = [0; 32];
    stream.read_exact(&mut first).expect("it begins");
    bench.stop();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("it ends");
    assert!(rest.contains("data: [DONE]"), "{rest}");
    assert_eq!(bench.join().kv_usage().in_use, 0);

    let mut bench = slow(ServerOptions { drain_timeout: Duration::from_millis(100), ..options() });
    let mut stream = bench.open("/v1/completions", &long());
    stream.read_exact(&mut first).expect("it begins");
    let start = Instant::now();
    bench.stop();
    rest.clear();
    stream.read_to_string(&mut rest).expect("it ends");
    assert!(rest.contains("the server stopped after"), "{}", &rest[rest.len().saturating_sub(300)..]);
    bench.join();
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn health_is_answered_where_all_connections_are_at_work() {
    let bench = Bench::tiny(ServerOptions { connections_max: 2, ..options() });
    // Their heads are there and their bodies are not: neither is idle.
    let begin = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n";
    let busy = [bench.write(begin), bench.write(begin)];
    std::thread::sleep(Duration::from_millis(200));
    for _ in 0..3 {
        assert_eq!(bench.get("/health").status, 200);
    }
    let refused = bench.get("/version");
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("too_many_connections")));
    drop(busy);
    let start = std::time::Instant::now();
    while bench.get("/version").status != 200 {
        assert!(start.elapsed() < Duration::from_secs(10), "places come back");
        std::thread::sleep(Duration::from_millis(50));
    }
}
