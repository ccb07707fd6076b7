//! What is refused, and how: by name, with the numbers, in the shape that clients expect.

use ruvllm_server::KeyOptions;
use ruvllm_server::ServerOptions;
use serde_json::{Value, json};

use crate::client::{Bench, Reply, options};

#[test]
fn every_field_is_honoured_or_named() {
    let bench = Bench::tiny(options());
    let ask = |field: &str, value: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "x" }], "max_tokens": 1 });
        body[field] = value;
        let reply = bench.post("/v1/chat/completions", &body);
        if reply.status == 200 { "200".to_owned() } else { reply.refusal() }
    };
    for (field, value) in [
        ("user", json!("someone")),
        ("metadata", json!({ "k": "v" })),
        ("store", json!(false)),
        ("temperature", json!(0)),
        ("seed", json!(-5)),
        ("stop", json!([])),
        ("truncation", json!("auto")),
        ("service_tier", json!("auto")),
        ("store", json!(true)),
        ("verbosity", json!("low")),
        ("stream_options", json!({})),
        ("max_tokens", json!(-1)),
        ("top_k", json!(-1)),
        ("repetition_penalty", json!(1.1)),
        ("typ_p", json!(0.9)),
        ("guided_choice", json!(["a", "b"])),
        ("response_format", json!({ "type": "json_object", "schema": { "type": "object" } })),
        ("tools", json!([{ "type": "web_search" }])),
        ("colour", Value::Null),
        ("reasoning_effort", json!("high")),
        ("n", Value::Null),
        ("audio", Value::Null),
        ("modalities", json!(["text"])),
        ("verbosity", json!("medium")),
        ("prompt_cache_key", json!("conversation-7")),
        ("safety_identifier", json!("5f2a")),
        ("messages", json!([{ "role": "user", "content": "x", "name": "ann" }])),
    ] {
        assert_eq!(ask(field, value), "200", "{field}");
    }
    for (field, value, expected) in [
        ("temprature", json!(1), "'temprature' is no field of this request"),
        ("temperature", json!("hot"), "'temperature' is \"hot\"; it must be a number from -100 to 100"),
        ("temperature", json!(-101), "'temperature' is -101; it must be a number from -100 to 100"),
        ("top_logprobs", json!(2), "'top_logprobs' needs 'logprobs'; set that to true as well"),
        ("tools", json!([{}]), "'tools[0].type' is missing: functions are the only tools"),
        ("tool_choice", json!("required"), "'tool_choice' asks for a call and there are no 'tools'; name some"),
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "a b" } }]),
            "'a b' is no name of a function; use 1 to 128 letters, digits, underscores, dashes and dots",
        ),
        (
            "tools",
            json!([{ "type": "function", "function": { "name": "f", "strict": true, "parameters": { "not": {} } } }]),
            "the grammar cannot be used: it allows no text at all",
        ),
        ("response_format", json!({ "type": "xml" }), "'response_format.type' is \"xml\"; it must be one of"),
        ("response_format", json!({ "type": "json_schema" }), "the format json_schema has no schema"),
        ("structured_outputs", json!({ "regex": "a", "choice": ["b"] }), "'structured_outputs' asks for one form"),
        ("structured_outputs", json!({ "regex": "(" }), "the grammar cannot be used: "),
        ("audio", json!({}), "'audio' is not supported: the model writes text only"),
        ("functions", json!([]), "'functions' is not supported: use tools"),
        ("n", json!(0), "'n' is 0; it must be a whole number from 1 to 64"),
        ("max_completion_tokens", json!(2), "'max_completion_tokens' is 2 and 'max_tokens' is 1; send one of them"),
        ("stop", json!(""), "a text of 'stop' is empty"),
        ("n", json!(65), "'n' is 65; it must be a whole number from 1 to 64"),
        ("priority", json!(3), "'priority' is 3; it must be a whole number from -10 to 0"),
        ("messages", json!([]), "'messages' is a list; it must be a list of 1 to 4096, not of 0"),
        (
            "messages",
            json!([{ "role": "robot", "content": "x" }]),
            "'messages[0].role' is \"robot\"; it must be one of",
        ),
        ("messages", json!([{ "role": "user" }]), "'messages[0]' says nothing: 'content' is missing"),
        (
            "messages",
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]),
            "'messages[0].content[0]",
        ),
        ("modalities", json!(["text", "audio"]), "'modalities' is a list; only [\"text\"] is supported"),
        ("verbosity", json!("loud"), "'verbosity' is \"loud\"; it must be one of low, medium, high"),
    ] {
        let refusal = ask(field, value);
        assert!(refusal.starts_with(&format!("400 {expected}")), "{field}: {refusal}");
    }
    let refusal = bench.post("/v1/chat/completions", &json!({})).json();
    let expected = json!({ "error": {
        "message": "'messages' is missing: the conversation; one that ends with the assistant is gone on with",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "missing_field",
    } });
    assert_eq!(refusal, expected);
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_the_numbers() {
    let bench = Bench::tiny(options());
    let long = "river ".repeat(2000);
    let count =
        bench.post("/tokenize", &json!({ "text": long, "add_special": true })).ok()["count"].as_u64().expect("a count");
    let reply = bench.post("/v1/completions", &json!({ "prompt": long }));
    let n = count + 1;
    let line =
        format!("400 the request ({n} tokens) exceeds the available context size (1024 tokens); shorten the prompt");
    let error = &reply.json()["error"];
    assert_eq!((reply.refusal(), &error["code"]), (line, &json!("context_length_exceeded")));
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(count), &json!(1024)));
    let error = bench.post("/v1/embeddings", &json!({ "input": long })).json()["error"].take();
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(count), &json!(1024)));
    let answer = bench.post("/v1/completions", &json!({ "prompt": long, "truncation": "auto", "max_tokens": 24 })).ok();
    assert_eq!(answer["usage"]["prompt_tokens"], 1000);
    // Of a conversation the oldest messages go, and those of the system stay.
    let mut messages = vec![json!({ "role": "system", "content": "Be brief." })];
    messages.extend(
        (0..40)
            .map(|i| json!({ "role": if i % 2 == 0 { "user" } else { "assistant" }, "content": "river ".repeat(20) })),
    );
    let body = json!({ "messages": messages, "max_tokens": 4 });
    assert!(
        bench
            .post("/v1/chat/completions", &body)
            .refusal()
            .contains("exceeds the available context size (1024 tokens)")
    );
    let mut body = body;
    body["truncation"] = json!("auto");
    let n = bench.post("/v1/chat/completions", &body).ok()["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!((700..=1020).contains(&n), "{n}");
    let whole = json!({ "messages": [{ "role": "user", "content": long }], "truncation": "auto" });
    assert!(
        bench
            .post("/v1/chat/completions", &whole)
            .refusal()
            .contains("exceeds the available context size (1024 tokens)")
    );
}

#[test]
fn bodies_that_are_none_are_told_so() {
    let bench = Bench::tiny(ServerOptions { body_bytes_max: 1000, ..options() });
    let path = "/v1/completions";
    for (body, headers, expected) in [
        ("{", &[][..], "400 the body is no JSON"),
        ("[]", &[], "400 the body is a list; send a JSON object"),
        ("", &[], "400 the body is no JSON"),
        ("{}", &[("content-type", "text/plain")], "415 the body's content type is 'text/plain'; send application/json"),
        ("{}", &[("content-type", "application/x-www-form-urlencoded")], "400 'prompt' is missing"),
        (
            "{}",
            &[("content-type", "application/x-www-form-urlencoded"), ("origin", "http://elsewhere")],
            "415 the body's content type is 'application/x-www-form-urlencoded'; send application/json",
        ),
        (&" ".repeat(1001), &[], "413 the body is larger than 1000 bytes; send less"),
    ] {
        let refusal = bench.send(path, body, headers).refusal();
        assert!(refusal.starts_with(expected), "{refusal}");
    }
    // A body of no stated length.
    let chunks = format!("3E8\r\n{}\r\n3E8\r\n{}\r\n0\r\n\r\n", " ".repeat(1000), " ".repeat(1000));
    let head = "POST /tokenize HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
        transfer-encoding: chunked\r\n\r\n";
    assert_eq!(Reply::read(bench.write(format!("{head}{chunks}"))).status, 413);
    let deep = format!("{{\"prompt\":{}", "[".repeat(900));
    assert!(bench.send(path, &deep, &[]).refusal().starts_with("400 the body is no JSON"));
    assert_eq!(
        bench.get("/nothing").refusal(),
        "404 there is nothing at /nothing; /v1/capabilities lists what there is"
    );
    assert_eq!(bench.get(path).refusal(), "405 /v1/completions does not take GET");
    let refusal = bench.post(path, &json!({ "prompt": "x", "model": "gpt-5" }));
    assert_eq!(
        refusal.refusal(),
        "404 the model 'gpt-5' is not served here; 'tiny' is, and with --any-model-name it answers by any"
    );
    assert_eq!(refusal.json()["error"]["code"], "model_not_found");
}

#[test]
fn keys_open_doors_and_keep_caches_apart() {
    let lines = ["ann key-of-ann", "bob key-of-bob"].map(str::to_owned).to_vec();
    let bench = Bench::tiny(ServerOptions { keys: KeyOptions { file: None, lines }, ..options() });
    let body = json!({ "prompt": "river stone river stone river stone river stone", "max_tokens": 2 }).to_string();
    let ask = |headers: &[(&str, &str)]| bench.send("/v1/completions", &body, headers);
    let refusal = ask(&[]);
    assert_eq!(refusal.refusal(), "401 no API key; send one as 'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    assert_eq!(refusal.header("www-authenticate"), Some("Bearer"));
    assert_eq!(ask(&[("authorization", "Bearer wrong")]).refusal(), "401 the API key is not known to this server");
    let cached =
        |headers: &[(&str, &str)]| ask(headers).ok()["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    assert_eq!(cached(&[("authorization", "Bearer key-of-ann")]), Some(0));
    assert!(cached(&[("x-api-key", "key-of-ann")]) > Some(0));
    assert_eq!(cached(&[("authorization", "bearer key-of-bob")]), Some(0));
    assert_eq!(
        (bench.get("/health").status, bench.get("/metrics").status, bench.get("/v1/models").status),
        (200, 401, 401)
    );
}

#[test]
fn pages_of_named_origins_may_ask() {
    let bench = Bench::tiny(ServerOptions { cors_origins: vec!["https://ok.example".to_owned()], ..options() });
    let preflight = |origin: &str| {
        let head = format!(
            "OPTIONS /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\norigin: {origin}\r\n\
             access-control-request-method: POST\r\naccess-control-request-headers: content-type,x-stainless-os\r\n\r\n"
        );
        let reply = Reply::read(bench.write(&head));
        assert_eq!(reply.header("access-control-allow-headers"), Some("content-type,x-stainless-os"));
        reply.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(preflight("https://ok.example"), Some("https://ok.example".to_owned()));
    assert_eq!(preflight("https://evil.example"), None);
}
