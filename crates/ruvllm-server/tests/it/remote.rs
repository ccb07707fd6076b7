//! Models that another server answers for: a server of ours in front of another one of ours, and of one that misbehaves.

mod scripted;

use std::io::{BufRead as _, BufReader};
use std::sync::Arc;
use std::time::Duration;

use ruvllm_backend::{BackendError, BackendErrorKind, CallPiece, CompletionEvent, Usage};
use ruvllm_remote::{RemoteBackend, RemoteOptions};
use ruvllm_server::{KeyOptions, ModelSource, ServerOptions, WitnessOptions};
use ruvllm_sona::witness::{Event, Query, search};
use ruvllm_witness::open_store;
use serde_json::{Value, json};

use crate::client::{Bench, Reply, options, with};
use scripted::{Act, Scripted};

/// Returns a server whose model `far` is the one of another server.
fn in_front_of(upstream: &Bench, options: ServerOptions) -> Bench {
    let url = format!("http://{}/v1", upstream.address);
    let backend = RemoteBackend::connect(RemoteOptions { n_retries: 0, ..RemoteOptions::new(url) });
    Bench::of(vec![ModelSource::remote("far", Arc::new(backend.expect("it answers")), 4)], options)
}

/// Returns a server whose model `far` does what a script says.
fn scripted(acts: impl IntoIterator<Item = Act>, options: ServerOptions) -> (Arc<Scripted>, Bench) {
    let backend = Arc::new(Scripted::new(acts));
    let bench = Bench::of(vec![ModelSource::remote("far", Arc::clone(&backend) as _, 1)], options);
    (backend, bench)
}

fn chat() -> Value {
    json!({ "messages": [{ "role": "user", "content": "Name three rivers." }], "max_tokens": 8, "temperature": 0 })
}

/// Returns the text of a stream of OpenAI's, and why it ended.
fn streamed(reply: &Reply, field: &str) -> (String, String) {
    let (mut text, mut reason) = (String::new(), String::new());
    for event in reply.events() {
        let choice = &event["choices"][0];
        text += choice.pointer(field).and_then(Value::as_str).unwrap_or_default();
        reason += choice["finish_reason"].as_str().unwrap_or_default();
    }
    (text, reason)
}

#[test]
fn openais_apis_answer_as_the_other_server_does() {
    let upstream = Bench::tiny(options());
    let bench = in_front_of(&upstream, options());
    let (own, far) =
        (upstream.post("/v1/chat/completions", &chat()).ok(), bench.post("/v1/chat/completions", &chat()).ok());
    assert_eq!(far["choices"][0]["message"], own["choices"][0]["message"]);
    assert_eq!((&far["usage"]["total_tokens"], &far["model"]), (&own["usage"]["total_tokens"], &json!("far")));
    assert_eq!((&far["choices"][0]["finish_reason"], &far["timings"]["predicted_n"]), (&json!("length"), &json!(8)));
    let stream = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let reply = bench.post("/v1/chat/completions", &with(chat(), stream));
    let text = own["choices"][0]["message"]["content"].as_str().expect("a text").to_owned();
    assert_eq!(streamed(&reply, "/delta/content"), (text.clone(), "length".to_owned()));
    assert_eq!(reply.events().last().expect("a usage")["usage"]["completion_tokens"], 8);
    // Several answers, log-probabilities, a stop.
    let several = json!({ "n": 2, "temperature": 1.5, "seed": 7, "logprobs": true, "top_logprobs": 2 });
    let [own, far] =
        [&upstream, &bench].map(|bench| bench.post("/v1/chat/completions", &with(chat(), several.clone())).ok());
    assert_eq!(far["choices"], own["choices"]);
    let stop: String = text.chars().skip(2).take(2).collect();
    let stopped = bench.post("/v1/chat/completions", &with(chat(), json!({ "stop": [stop] }))).ok();
    let said = stopped["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(text.starts_with(said) && said.len() < text.len(), "{said:?} of {text:?}");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    // Texts that go on.
    let body = json!({ "prompt": ["a b", "c"], "max_tokens": 4, "temperature": 0, "logprobs": 1 });
    let [own, far] = [&upstream, &bench].map(|bench| bench.post("/v1/completions", &body).ok());
    assert_eq!(far["choices"], own["choices"]);
    assert_eq!(far["usage"]["total_tokens"], own["usage"]["total_tokens"]);
    let echoed = json!({ "prompt": "a b", "max_tokens": 4, "temperature": 0, "echo": true, "stream": true });
    let reply = bench.post("/v1/completions", &echoed);
    let first = own["choices"][0]["text"].as_str().expect("a text");
    assert_eq!(streamed(&reply, "/text"), (format!("a b{first}"), "length".to_owned()));
    // Vectors.
    let body = json!({ "input": ["a", "b c"] });
    let [own, far] = [&upstream, &bench].map(|bench| bench.post("/v1/embeddings", &body).ok());
    assert_eq!(far["data"], own["data"]);
}

#[test]
fn other_apis_answer_in_their_shapes() {
    let upstream = Bench::tiny(options());
    let bench = in_front_of(&upstream, options());
    let text = upstream.post("/v1/chat/completions", &chat()).ok()["choices"][0]["message"]["content"].clone();
    let whole = bench.post("/v1/messages", &with(chat(), json!({ "model": "far" }))).ok();
    assert_eq!((&whole["content"][0]["text"], &whole["stop_reason"]), (&text, &json!("max_tokens")));
    assert_eq!(whole["usage"]["output_tokens"], 8);
    let pieces = bench.post("/v1/messages", &with(chat(), json!({ "model": "far", "stream": true }))).data();
    let said: String = pieces.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(
        (json!(said), pieces.last().map(|event| event["type"].clone())),
        (text.clone(), Some(json!("message_stop")))
    );

    let ollama =
        json!({ "model": "far", "messages": chat()["messages"], "options": { "num_predict": 8, "temperature": 0 } });
    let whole = bench.post("/api/chat", &with(ollama.clone(), json!({ "stream": false }))).ok();
    assert_eq!((&whole["message"]["content"], &whole["eval_count"]), (&text, &json!(8)));
    let lines = bench.post("/api/chat", &ollama).body;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let said: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    assert_eq!((json!(said), &lines.last().expect("lines")["done"]), (text.clone(), &json!(true)));
    let raw = json!({ "model": "far", "prompt": "a b", "raw": true, "stream": false, "options": { "num_predict": 4, "temperature": 0 } });
    let own = upstream.post("/v1/completions", &json!({ "prompt": "a b", "max_tokens": 4 })).ok();
    assert_eq!(bench.post("/api/generate", &raw).ok()["response"], own["choices"][0]["text"]);
    let shown = bench.post("/api/show", &json!({ "model": "far" })).ok();
    assert!(shown["capabilities"].as_array().is_some_and(|all| all.contains(&json!("completion"))), "{shown}");
    assert_eq!(
        bench.post("/api/embed", &json!({ "model": "far", "input": "a" })).ok()["embeddings"].as_array().map(Vec::len),
        Some(1)
    );

    let body = json!({ "input": "Name three rivers.", "max_output_tokens": 8, "temperature": 0 });
    let whole = bench.post("/v1/responses", &body).ok();
    assert_eq!((&whole["output"][0]["content"][0]["text"], &whole["status"]), (&text, &json!("incomplete")));
    let events = bench.post("/v1/responses", &with(body, json!({ "stream": true }))).data();
    assert_eq!(events.last().expect("events")["type"], "response.incomplete");
}

#[test]
fn forms_and_calls_are_those_of_the_other_server() {
    let upstream = Bench::tiny(options());
    let bench = in_front_of(&upstream, options());
    let schema = json!({ "type": "json_schema", "json_schema": { "schema": { "enum": ["one", "two"] } } });
    let body = with(chat(), json!({ "max_tokens": 64, "response_format": schema }));
    let formed = bench.post("/v1/chat/completions", &body).ok();
    let content = formed["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(["\"one\"", "\"two\""].contains(&content), "{content}");
    let city = json!({ "enum": ["Rome", "Oslo"] });
    let parameters = json!({
        "type": "object", "properties": { "city": city }, "required": ["city"], "additionalProperties": false,
    });
    let tools = json!([{ "type": "function", "function": { "name": "weather", "parameters": parameters } }]);
    // A model of random weights likes white space, which would go on for ever.
    let space = [" ", "  ", "    ", "\n", "\n\n", "\t", "\r"].map(|space| (space.to_owned(), json!(false)));
    let space = Value::Object(space.into_iter().collect());
    let body = with(chat(), json!({ "max_tokens": 128, "tools": tools, "logit_bias": space }));
    let body = with(body, json!({ "tool_choice": "required", "parallel_tool_calls": false }));
    let called = bench.post("/v1/chat/completions", &body).ok();
    let choice = &called["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &Value::Null),
        "{called}"
    );
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().expect("arguments");
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    assert!(["Rome", "Oslo"].contains(&arguments["city"].as_str().expect("a city")), "{arguments}");
    // What came of a call, on its way back through Anthropic's API.
    let block = json!({ "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "city": "Rome" } });
    let messages = json!([
        { "role": "user", "content": "Name three rivers." },
        { "role": "assistant", "content": [block] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": block["id"], "content": "rain" }] },
    ]);
    let body = json!({ "model": "far", "messages": messages, "max_tokens": 4 });
    assert_eq!(bench.post("/v1/messages", &body).ok()["usage"]["output_tokens"], 4);
}

/// Thoughts, text and calls that another server has told apart, as each API tells them.
#[test]
fn what_is_told_apart_stays_apart() {
    let call = |index, name: Option<&str>, arguments: &str| {
        let (name, arguments) = (name.map(str::to_owned), arguments.to_owned());
        CompletionEvent::Call(CallPiece { index, id: None, name, arguments })
    };
    let answer = || {
        let events = vec![
            CompletionEvent::Thought("hm".to_owned()),
            CompletionEvent::Text("so: ".to_owned()),
            call(3, Some("add"), ""),
            call(3, None, "{\"a\":"),
            call(3, None, "1}"),
            call(9, Some("sub"), "{}"),
        ];
        let usage = Usage { prompt_tokens: usize::MAX, cached_tokens: usize::MAX, completion_tokens: 5 };
        Act::Answer(events, "tool_calls", Some(usage))
    };
    let (_, bench) = scripted(std::iter::repeat_with(answer).take(5), options());
    let whole = bench.post("/v1/chat/completions", &chat()).ok();
    let message = &whole["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("so: ")));
    assert_eq!(message["tool_calls"][1]["function"], json!({ "name": "sub", "arguments": "{}" }));
    let events = bench.post("/v1/chat/completions", &with(chat(), json!({ "stream": true }))).events();
    let pieces = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"].as_str());
    assert_eq!(pieces.collect::<String>(), "{\"a\":1}{}");
    let whole = bench.post("/v1/messages", &with(chat(), json!({ "model": "far" }))).ok();
    let kinds: Vec<&Value> = whole["content"].as_array().into_iter().flatten().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
    let whole =
        bench.post("/api/chat", &json!({ "model": "far", "messages": chat()["messages"], "stream": false })).ok();
    assert_eq!(whole["message"]["tool_calls"][0]["function"]["arguments"], json!({ "a": 1 }));
    let whole = bench.post("/v1/responses", &json!({ "input": "a" })).ok();
    let kinds: Vec<&Value> = whole["output"].as_array().into_iter().flatten().map(|item| &item["type"]).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call", "function_call"]);
}

#[test]
fn failures_of_the_other_server_have_their_statuses() {
    let failed = |kind, line: &str| BackendError::new(kind, line);
    let busy = failed(BackendErrorKind::Busy, "http://u answered 429: wait").with_retry_after(Some(7));
    let cases = [
        (busy, 429, Some("7")),
        (failed(BackendErrorKind::Remote, "http://u cannot be reached"), 502, None),
        (failed(BackendErrorKind::Remote, "http://u answered 503").with_retry_after(Some(2)), 503, Some("2")),
        (failed(BackendErrorKind::Timeout, "http://u did not answer in time"), 504, None),
        (failed(BackendErrorKind::Key, "it does not take the key of RUVLLM_REMOTE_KEY"), 502, None),
        (failed(BackendErrorKind::ContextLength, "too long"), 400, None),
        (failed(BackendErrorKind::Prompt, "no such role"), 400, None),
    ];
    let expected: Vec<_> = cases.iter().map(|(error, status, retry)| (error.to_string(), *status, *retry)).collect();
    let (_, bench) = scripted(cases.map(|(error, ..)| Act::Fail(error)), options());
    for (line, status, retry) in expected {
        let reply = bench.post("/v1/chat/completions", &chat());
        assert_eq!((reply.status, reply.header("retry-after")), (status, retry), "{}", reply.body);
        assert_eq!(reply.refusal(), format!("{status} {line}"));
    }
    // In the other shapes, and within a stream.
    let gone = || Act::Fail(failed(BackendErrorKind::Remote, "gone"));
    let (_, bench) = scripted([gone(), gone(), gone()], options());
    let reply = bench.post("/v1/messages", &with(chat(), json!({ "model": "far" })));
    assert_eq!((reply.status, &reply.json()["error"]["type"]), (502, &json!("api_error")));
    let reply = bench.post("/api/chat", &json!({ "model": "far", "messages": chat()["messages"], "stream": false }));
    assert_eq!((reply.status, &reply.json()["error"]), (502, &json!("gone")));
    let reply = bench.post("/v1/chat/completions", &with(chat(), json!({ "stream": true })));
    assert!(reply.body.contains("\"backend_unavailable\""), "{}", reply.body);
    assert_eq!(bench.metric("ruvllm_finished_total{model=\"far\",reason=\"error\"}"), 3.0);
}

#[test]
fn a_client_that_leaves_and_a_time_that_is_over_end_the_request_there() {
    let (backend, bench) = scripted([Act::Wait, Act::Wait, Act::Wait], options());
    // Before anything came, and while it streams.
    let waiting = bench.open("/v1/chat/completions", &chat());
    backend.wait_until_asked(1);
    drop(waiting);
    backend.wait_until_given_up(1);
    let stream = bench.open("/v1/chat/completions", &with(chat(), json!({ "stream": true })));
    let mut lines = BufReader::new(stream).lines();
    assert!(lines.next().is_some_and(|line| line.expect("a status").contains("200")));
    drop(lines);
    backend.wait_until_given_up(2);
    let reply = bench.post("/v1/chat/completions", &with(chat(), json!({ "timeout_ms": 100 })));
    assert_eq!(reply.status, 504, "{}", reply.body);
    backend.wait_until_given_up(3);
    bench.wait_until_idle();
    assert_eq!(bench.metric("ruvllm_finished_total{model=\"far\",reason=\"cancelled\"}"), 2.0);
    assert_eq!(bench.metric("ruvllm_finished_total{model=\"far\",reason=\"deadline\"}"), 1.0);
}

/// A client that leaves ends the work of the server behind the one that it asked.
#[test]
fn leaving_reaches_the_server_behind() {
    let upstream = Bench::tiny(options());
    let bench = in_front_of(&upstream, options());
    let long = json!({ "prompt": "a b c", "max_tokens": 1000, "n": 4, "stream": true, "temperature": 2 });
    for _ in 0..20 {
        let mut lines = BufReader::new(bench.open("/v1/completions", &long)).lines();
        lines.by_ref().map_while(Result::ok).find(|line| line.starts_with("data: ")).expect("a piece");
        drop(lines);
        bench.wait_until_idle();
        upstream.wait_until_idle();
        if upstream.metric("ruvllm_finished_total{model=\"tiny\",reason=\"cancelled\"}") > 0.0 {
            return;
        }
    }
    panic!("no request was ended behind");
}

#[test]
fn what_is_missing_is_said_before_any_work() {
    let (backend, bench) = scripted([], options());
    let capabilities = bench.get("/v1/capabilities").ok();
    let model = &capabilities["model"];
    assert_eq!((&model["backend"], &model["makes"], &model["id"]), (&json!("remote"), &json!("text"), &json!("far")));
    for name in ["paged_kv", "hidden_states", "adapters", "logits", "tokens"] {
        assert!(model["missing"].as_array().is_some_and(|all| all.contains(&json!(name))), "{model}");
    }
    for (path, body) in [
        ("/v1/chat/completions", with(chat(), json!({ "mirostat": 2 }))),
        ("/v1/chat/completions", with(chat(), json!({ "adapter": "poet" }))),
        ("/v1/chat/completions", with(chat(), json!({ "guided_regex": "a+" }))),
        ("/v1/completions", json!({ "prompt": [1, 2] })),
        ("/v1/completions", json!({ "prompt": "a", "best_of": 2 })),
        ("/v1/completions", json!({ "prompt": "a", "suffix": "b" })),
        ("/v1/completions", json!({ "prompt": "a", "echo": true, "logprobs": 0 })),
        ("/v1/embeddings", json!({ "input": [1] })),
        ("/v1/embeddings", json!({ "input": "a", "dimensions": 4 })),
        ("/v1/rerank", json!({ "query": "a", "documents": ["b"] })),
        ("/v1/messages/count_tokens", json!({ "model": "far", "messages": chat()["messages"] })),
        ("/v1/responses/input_tokens", json!({ "input": "a" })),
        ("/completion", json!({ "prompt": "a" })),
        ("/tokenize", json!({ "text": "a" })),
        ("/detokenize", json!({ "tokens": [1] })),
        ("/apply-template", json!({ "messages": chat()["messages"] })),
        ("/v1/feedback", json!({ "id": "a", "score": 1 })),
    ] {
        let reply = bench.post(path, &body);
        assert_eq!(reply.status, 501, "{path} {body}: {}", reply.body);
        assert!(reply.body.contains("another server answers for 'far'"), "{path}: {}", reply.body);
    }
    let reply = bench.post("/v1/messages", &with(chat(), json!({ "model": "far", "patterns": 2 })));
    assert_eq!((reply.status, &reply.json()["type"]), (501, &json!("error")));
    assert_eq!(backend.n_asked(), 0);
}

#[test]
fn readiness_is_that_of_the_other_server() {
    let upstream = Bench::tiny(options());
    let bench = in_front_of(&upstream, options());
    assert_eq!(bench.get("/ready").status, 200);
    drop(upstream);
    let reply = bench.post("/v1/chat/completions", &chat());
    assert!(reply.refusal().starts_with("502 http://127.0.0.1:"), "{}", reply.body);
    // What was known a moment ago counts for two seconds.
    std::thread::sleep(Duration::from_millis(2100));
    let reply = bench.get("/ready");
    assert!(reply.refusal().starts_with("503 another server answers for 'far': http://127.0.0.1:"), "{}", reply.body);
    assert_eq!(bench.get("/health").status, 200);
}

#[test]
fn requests_wait_for_their_turn_and_beyond_the_queue_they_are_refused() {
    let keys = KeyOptions { lines: vec!["ann secret-of-ann concurrent=2".to_owned()], ..KeyOptions::default() };
    let (backend, bench) = scripted([Act::Wait, Act::Wait], ServerOptions { queue_max: 0, keys, ..options() });
    assert_eq!(bench.post("/v1/chat/completions", &chat()).status, 401);
    let ask = || bench.send("/v1/chat/completions", chat().to_string(), &[("authorization", "Bearer secret-of-ann")]);
    std::thread::scope(|scope| {
        let first = scope.spawn(ask);
        backend.wait_until_asked(1);
        let refused = ask();
        assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{}", refused.body);
        backend.go_on();
        assert_eq!(first.join().expect("no panic").status, 200);
    });
}

#[test]
fn answers_of_another_server_are_on_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let witness =
        WitnessOptions { folder: folder.path().join("log"), syncs_each_batch: true, ..WitnessOptions::default() };
    let usage = Usage { prompt_tokens: 9, cached_tokens: 2, completion_tokens: 3 };
    let said = Act::Answer(vec![CompletionEvent::Text("hi".to_owned())], "stop", Some(usage));
    let gone = Act::Fail(BackendError::new(BackendErrorKind::Remote, "gone"));
    let (_, bench) = scripted([said, gone], ServerOptions { witness: Some(witness.clone()), ..options() });
    assert_eq!(bench.post("/v1/chat/completions", &chat()).status, 200);
    assert_eq!(bench.post("/v1/chat/completions", &chat()).status, 502);
    drop(bench);
    let store = open_store(&witness).expect("a log");
    let found = search(store.as_ref(), ruvllm_witness::NOBODY, &Query::default()).expect("it is readable");
    let mut served: Vec<_> = found
        .into_iter()
        .filter_map(|recorded| match recorded.event {
            Event::Served(served) => Some(served),
            _ => None,
        })
        .collect();
    served.sort_by_key(|served| served.error.is_some());
    let [ok, failed] = &served[..] else { panic!("{} records", served.len()) };
    assert_eq!((ok.prompt.n_tokens, ok.completion.n_tokens, ok.n_cached_tokens), (9, 3, 2));
    assert_eq!(ok.completion.digest, ruvllm_witness::text_digest("hi"));
    assert_eq!((&*ok.finish, failed.error.as_deref()), ("stop", Some("gone")));
    assert!(ok.settings.contains("\"backend\":\"remote\"") && ok.completion.tokens.is_none(), "{}", ok.settings);
}
