//! Habits of HTTP clients: slashes, packed bodies, keys that stand twice, and what metrics tell of the process.

use std::io::Write as _;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use ruvllm_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Bench, options, with};

const CHAT: &str = "/v1/chat/completions";

fn body() -> Value {
    json!({ "messages": [{ "role": "user", "content": "a" }], "max_tokens": 1, "temperature": 0 })
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory is written")
}

fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory is written")
}

#[test]
fn a_slash_at_the_end_changes_nothing() {
    let bench = Bench::tiny(options());
    for path in ["/v1/models", "/health", "/api/tags", "/v1/sessions"] {
        let (plain, slashed) = (bench.get(path), bench.get(&format!("{path}/")));
        assert_eq!((slashed.status, slashed.body), (plain.status, plain.body), "{path}");
    }
    assert_eq!(bench.post(&format!("{CHAT}/"), &body()).status, 200);
    assert_eq!(bench.get("/nothing/").refusal(), bench.get("/nothing").refusal());
    assert_eq!(bench.ask("DELETE", &format!("{CHAT}/"), &[]).status, 405);
    assert_eq!(bench.get("/").header("content-type"), Some("text/html; charset=utf-8"));
}

#[test]
fn packed_bodies_are_unpacked_within_the_limit() {
    let bench = Bench::tiny(ServerOptions { body_bytes_max: 1 << 20, ..options() });
    let (text, plain) = (body().to_string(), bench.post(CHAT, &body()).ok());
    for (encoding, packed) in [("gzip", gzip(text.as_bytes())), ("deflate", zlib(text.as_bytes()))] {
        let answer = bench.send(CHAT, &packed, &[("content-encoding", encoding)]).ok();
        assert_eq!(answer["choices"], plain["choices"], "{encoding}");
        // Cut, and none at all.
        let cut = bench.send(CHAT, &packed[..packed.len() / 2], &[("content-encoding", encoding)]).refusal();
        assert!(cut.starts_with("400 the body ended before its end"), "{cut}");
        let none = bench.send(CHAT, &text, &[("content-encoding", encoding)]).refusal();
        assert!(none.starts_with("400 the body ended before its end"), "{none}");
    }
    // Small packed, large unpacked.
    let bomb = gzip(&vec![b' '; 512 << 20]);
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    let refusal = bench.send(CHAT, &bomb, &[("content-encoding", "gzip")]).refusal();
    assert_eq!(refusal, "413 the body is larger than 1048576 bytes; send less");
    let refusal = bench.send(CHAT, &text, &[("content-encoding", "br")]).refusal();
    assert_eq!(refusal, "415 the body's encoding is 'br'; send it as it is, or packed with gzip or deflate");
    assert_eq!(bench.send(CHAT, &text, &[("content-encoding", "identity")]).status, 200);
}

#[test]
fn a_key_stands_once_in_an_object() {
    let bench = Bench::tiny(options());
    for text in [
        r#"{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "max_tokens": 2}"#,
        r#"{"messages": [{"role": "user", "content": "a", "r\u006fle": "system"}], "max_tokens": 1}"#,
    ] {
        let refusal = bench.send(CHAT, text, &[]).refusal();
        assert!(refusal.starts_with("400 the body is no JSON: the key '"), "{refusal}");
        assert!(refusal.contains("stands twice in one object; send it once"), "{refusal}");
    }
}

#[test]
fn answers_have_a_fewest_of_tokens_and_more_that_end_them() {
    let bench = Bench::tiny(options());
    let ask = |more: Value| {
        let body = json!({ "prompt": "a b c", "max_tokens": 8, "temperature": 0, "logprobs": 0 });
        bench.post("/v1/completions", &with(body, more))
    };
    let plain = ask(json!({})).ok();
    let id = bench.post("/tokenize", &json!({ "text": plain["choices"][0]["logprobs"]["tokens"][1] })).ok();
    let id = id["tokens"].as_array().and_then(|ids| ids.last().cloned()).expect("a token");
    let stopped = ask(json!({ "stop_token_ids": [id] })).ok();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop", "{stopped} {plain}");
    assert!(stopped["usage"]["completion_tokens"].as_u64() <= Some(2), "{stopped}");
    let held = ask(json!({ "stop_token_ids": [id], "min_tokens": 6 })).ok();
    assert!(held["usage"]["completion_tokens"].as_u64() >= Some(6), "{held}");
    assert_eq!(
        ask(json!({ "min_tokens": 9 })).refusal(),
        "400 'min_tokens' is 9, and the answer may have 8 tokens; ask for fewer"
    );
    let refusal = ask(json!({ "stop_token_ids": [1_000_000] })).refusal();
    assert!(refusal.starts_with("400 1000000 in 'stop_token_ids' is no token; ids go from 0 to "), "{refusal}");
}

#[test]
fn metrics_tell_of_the_build_and_the_process() {
    let bench = Bench::tiny(options());
    // Seconds of work are whole ones: asking is work enough to come to one.
    let start = Instant::now();
    while bench.metric("process_cpu_seconds_total") < 1.0 && start.elapsed() < Duration::from_secs(60) {}
    let text = bench.get("/metrics").body;
    assert!(text.contains(&format!("ruvllm_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))), "{text}");
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
        "process_threads",
    ] {
        assert!(bench.metric(name) > 0.0, "{name}: {text}");
    }
}

#[test]
fn old_names_of_fields_and_metrics_answer_and_tell_the_new_ones() {
    let bench = Bench::tiny(options());
    let body = |last: &str, breakers: &str| json!({ last: 8, breakers: ["x"] });
    let ask = |path: &str, body: Value| {
        let reply = bench.post(path, &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        reply.header("x-ruvllm-renamed").map(str::to_owned)
    };
    let completion = |mut body: Value| {
        (body["prompt"], body["max_tokens"]) = (json!("a b a b a b a b"), json!(24));
        ask("/v1/completions", body)
    };
    assert_eq!(completion(body("dry_penalty_last_n", "dry_sequence_breakers")), None);
    let told = "dry_last_n is now dry_penalty_last_n, dry_breakers is now dry_sequence_breakers";
    assert_eq!(completion(body("dry_last_n", "dry_breakers")).as_deref(), Some(told));
    let of_ollama =
        |options: Value| ask("/api/generate", json!({ "prompt": "a", "stream": false, "options": options }));
    assert_eq!(of_ollama(body("dry_penalty_last_n", "dry_sequence_breakers")), None);
    let told = "options.dry_last_n is now options.dry_penalty_last_n, options.dry_breakers is now options.dry_sequence_breakers";
    assert_eq!(of_ollama(body("dry_last_n", "dry_breakers")).as_deref(), Some(told));

    let schema = bench.get("/openapi.json").ok();
    let schema = &schema["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    for (old, new) in [("dry_last_n", "dry_penalty_last_n"), ("dry_breakers", "dry_sequence_breakers")] {
        let (was, is) = (&schema["properties"][old], &schema["properties"][new]);
        assert!(was["deprecated"] == true && is["deprecated"].is_null(), "{was} {is}");
        assert!(was["description"].as_str().is_some_and(|line| line.starts_with(&format!("is now {new}"))), "{was}");
    }

    let text = bench.get("/metrics").body;
    let help = "ruvllm_guessed_tokens_total deprecated: now ruvllm_spec_draft_tokens_total and ruvllm_spec_accepted_tokens_total";
    assert!(text.contains(help), "{text}");
    let of = |guess: &str| bench.metric(&format!("ruvllm_guessed_tokens_total{{model=\"tiny\",guess=\"{guess}\"}}"));
    let drafted = bench.metric("ruvllm_spec_draft_tokens_total{model=\"tiny\"}");
    let accepted = bench.metric("ruvllm_spec_accepted_tokens_total{model=\"tiny\"}");
    assert!(drafted > 0.0, "{text}");
    assert_eq!((accepted, drafted - accepted), (of("right"), of("wrong")));
}
