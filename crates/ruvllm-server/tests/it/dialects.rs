//! What clients of other servers send: taken where it asks for nothing, named where it changes nothing, and done where it
//! can be.

use ruvllm_engine::LoadOptions;
use ruvllm_testkit::real_model;
use serde_json::{Value, json};

use crate::client::{Bench, load_options, options};

const CHAT: &str = "/v1/chat/completions";

fn bench(model: &str) -> Bench {
    let load = LoadOptions { n_ctx: Some(2048), ..load_options() };
    Bench::named(model, &real_model(model), &load, options())
}

fn weather() -> Value {
    let city = json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    json!([{ "type": "function", "function": { "name": "weather", "description": "The weather in a city", "parameters": city } }])
}

fn person() -> Value {
    json!({ "type": "object", "properties": { "name": { "type": "string", "maxLength": 12 }, "age": { "type": "integer" } },
        "required": ["name", "age"], "additionalProperties": false })
}

#[test]
fn what_changes_nothing_is_taken_and_named() {
    let bench = Bench::tiny(options());
    let mark = json!({ "type": "ephemeral" });
    let says = |text: &str| json!([{ "role": "user", "content": text }]);
    for (path, body, unheeded) in [
        (
            CHAT,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a", "cache_control": mark }] }],
                "keep_alive": "5m" }),
            "messages.content.cache_control, keep_alive",
        ),
        (
            "/v1/messages",
            json!({ "messages": says("a"), "context_management": { "edits": [] }, "thinking": { "type": "adaptive" },
                "tools": [{ "name": "f", "input_schema": { "type": "object" }, "eager_input_streaming": true }],
                "output_config": { "effort": "high" }, "system": [{ "type": "text", "text": "b", "cache_control": mark }] }),
            "context_management, tools.eager_input_streaming, system.cache_control",
        ),
        (
            "/v1/responses",
            json!({ "input": "a", "include": ["reasoning.encrypted_content"], "client_metadata": { "session": "x" },
                "reasoning": { "summary": "auto" }, "tools": [{ "type": "namespace", "name": "n", "tools": [] }] }),
            "include, client_metadata, reasoning.summary, tools.namespace",
        ),
        (CHAT, json!({ "messages": says("a"), "unknown": null }), ""),
    ] {
        let mut body = body;
        body[if path == "/v1/responses" { "max_output_tokens" } else { "max_tokens" }] = json!(1);
        let reply = bench.post(path, &body);
        assert_eq!(
            (reply.status, reply.header("x-ruvllm-unheeded").unwrap_or_default()),
            (200, unheeded),
            "{}",
            reply.body
        );
        assert!(path != "/v1/messages" || reply.header("request-id").is_some());
    }
    let thinks =
        json!({ "messages": says("a"), "max_tokens": 1, "thinking": { "type": "enabled", "budget_tokens": 1024 } });
    let reply = bench.post("/v1/messages", &thinks);
    assert_eq!((reply.status, reply.header("x-ruvllm-unheeded")), (200, Some("thinking")));
}

#[test]
fn what_was_answered_can_be_sent_back() {
    let bench = Bench::tiny(options());
    let call =
        json!({ "id": "c1", "type": "function", "index": 0, "function": { "name": "weather", "arguments": "{}" } });
    let user = json!({ "role": "user", "content": "a" });
    for turn in [
        json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
        json!({ "role": "assistant", "content": "b", "reasoning_content": "hm", "reasoning_details": [{}] }),
        json!({ "role": "assistant", "content": null }),
        json!({ "role": "assistant", "content": "" }),
        json!({ "role": "assistant", "content": [] }),
        json!({ "role": "assistant" }),
    ] {
        let messages = json!([user, turn, user]);
        bench.post(CHAT, &json!({ "messages": messages, "max_tokens": 1 })).ok();
    }
    let thought = json!([{ "type": "thinking", "thinking": "hm", "signature": "s" }, { "type": "text", "text": "b", "citations": null }]);
    let messages =
        json!([user, { "role": "assistant", "content": thought }, user, { "role": "system", "content": "c" }]);
    bench.post("/v1/messages", &json!({ "messages": messages, "max_tokens": 1 })).ok();
    let items = json!([{ "role": "user", "content": "a" }, { "type": "reasoning", "id": "r", "summary": [] },
        { "type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "caller": null, "namespace": null },
        { "type": "function_call_output", "call_id": "c", "output": "d" }]);
    bench.post("/v1/responses", &json!({ "input": items, "max_output_tokens": 1 })).ok();
    // Parts are lines of their own.
    let parts = json!([{ "role": "user", "content": [{ "type": "text", "text": "What is" }, { "type": "text", "text": "the best book" }] }]);
    let prompt = bench.post("/apply-template", &json!({ "messages": parts })).ok()["prompt"].to_string();
    assert!(prompt.contains("What is\\nthe best book"), "{prompt}");
}

/// Returns the message of an answer, and why it ended.
fn ask(bench: &Bench, body: &Value) -> (Value, String) {
    let answer = bench.post(CHAT, body).ok();
    let choice = &answer["choices"][0];
    (choice["message"].clone(), choice["finish_reason"].as_str().expect("a reason").to_owned())
}

#[test]
fn functions_and_a_form_give_one_or_the_other() {
    let bench = bench("qwen2.5-coder:0.5b");
    let format = json!({ "type": "json_schema", "json_schema": { "name": "person", "schema": person() } });
    let body = |text: &str, choice: &str| {
        json!({ "messages": [{ "role": "user", "content": text }], "tools": weather(), "response_format": format,
            "tool_choice": choice, "stop": ["Observation:"], "temperature": 0, "max_tokens": 60 })
    };
    let (message, reason) = ask(&bench, &body("Bob is 3 years old. Give me the person as JSON.", "auto"));
    match message["tool_calls"].as_array() {
        Some(calls) => assert_eq!((reason.as_str(), &calls[0]["function"]["name"]), ("tool_calls", &json!("weather"))),
        None => {
            let value: Value = serde_json::from_str(message["content"].as_str().expect("a text")).expect("JSON");
            assert!(value["name"].is_string() && value["age"].is_i64(), "{value}");
        }
    }
    let (message, reason) = ask(&bench, &body("Weather in Rome?", "required"));
    assert_eq!((reason.as_str(), &message["content"]), ("tool_calls", &Value::Null), "{message}");
    let format = json!({ "format": { "type": "json_schema", "schema": person() } });
    let body =
        json!({ "messages": [{ "role": "user", "content": "Bob is 3" }], "max_tokens": 60, "output_config": format });
    let answer = bench.post("/v1/messages", &body).ok();
    let value: Value = serde_json::from_str(answer["content"][0]["text"].as_str().expect("a text")).expect("JSON");
    assert!(value["name"].is_string() && value["age"].is_i64(), "{value}");
}

#[test]
fn a_call_without_marks_is_one_and_a_cut_one_is_no_text() {
    let bench = bench("qwen2.5-coder:0.5b");
    let question = json!([{ "role": "user", "content": "What is the weather like in Paris? Use the function." }]);
    let body = json!({ "messages": question, "tools": weather(), "temperature": 0, "max_tokens": 80 });
    let (message, reason) = ask(&bench, &body);
    let function = &message["tool_calls"][0]["function"];
    assert_eq!(
        (reason.as_str(), &function["name"], &message["content"]),
        ("tool_calls", &json!("weather"), &Value::Null)
    );
    let arguments: Value = serde_json::from_str(function["arguments"].as_str().expect("a text")).expect("JSON");
    assert_eq!(arguments, json!({ "city": "Paris" }));
    // Cut in the middle of a call's beginning: nothing was said.
    for n in 3..8 {
        let body = json!({ "messages": question, "tools": weather(), "tool_choice": "required", "temperature": 0, "max_tokens": n });
        let (message, reason) = ask(&bench, &body);
        assert_eq!((reason.as_str(), &message["content"]), ("length", &Value::Null), "{message}");
    }
}

#[test]
fn a_prompt_is_echoed_with_what_the_model_thinks_of_it() {
    let bench = bench("smollm2:135m");
    let prompt = "The step of boiling water is called boiling.";
    let ask = |more: Value| {
        let mut body = json!({ "prompt": prompt, "echo": true, "logprobs": 2, "max_tokens": 0, "temperature": 0 });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        bench.post("/v1/completions", &body).ok()
    };
    let answer = ask(json!({}));
    let (choice, n) = (&answer["choices"][0], answer["usage"]["prompt_tokens"].as_u64().expect("a count") as usize);
    let list = |name: &str| choice["logprobs"][name].as_array().expect("a list").clone();
    assert_eq!((choice["text"].as_str(), list("tokens").len(), list("token_logprobs").len()), (Some(prompt), n, n));
    assert_eq!(
        (&list("token_logprobs")[0], &list("top_logprobs")[0], &list("text_offset")[0]),
        (&Value::Null, &Value::Null, &json!(0))
    );
    // Each offset is where its token stands in the text.
    for (token, offset) in list("tokens").iter().zip(list("text_offset")) {
        let offset = offset.as_u64().expect("a number") as usize;
        assert!(prompt[offset..].starts_with(token.as_str().expect("a text")), "{token} at {offset}");
    }
    // The same as where the model writes the tokens itself: it is told the log-probability of its own.
    let written = bench
        .post("/v1/completions", &json!({ "prompt": prompt, "logprobs": 2, "max_tokens": 6, "temperature": 0 }))
        .ok();
    let text = written["choices"][0]["text"].as_str().expect("a text");
    let again = ask(json!({ "prompt": format!("{prompt}{text}") }));
    let told: Vec<f64> = again["choices"][0]["logprobs"]["token_logprobs"].as_array().expect("a list")[n..]
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let own: Vec<f64> = written["choices"][0]["logprobs"]["token_logprobs"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    assert!(told.len() >= 4 && told.iter().zip(&own).all(|(a, b)| (a - b).abs() < 1e-3), "{told:?} {own:?}");
    let with_answer = ask(json!({ "max_tokens": 3 }));
    assert_eq!(with_answer["choices"][0]["logprobs"]["tokens"].as_array().map(Vec::len), Some(n + 3));
}

#[test]
fn a_gap_is_filled() {
    let bench = bench("qwen2.5-coder:0.5b");
    let (before, behind) = ("def add(a, b):\n    return ", "\n\nprint(add(1, 2))\n");
    let body = json!({ "prompt": before, "suffix": behind, "max_tokens": 8, "temperature": 0, "stop": ["\n"] });
    let filled = bench.post("/v1/completions", &body).ok();
    assert_eq!(filled["choices"][0]["text"], "a + b");
    let both = bench.post("/v1/completions", &json!({ "prompt": [before, before], "suffix": behind })).refusal();
    assert!(both.starts_with("400 'suffix' goes with one prompt of text"), "{both}");
    let tiny = Bench::tiny(options());
    let none = tiny.post("/v1/completions", &json!({ "prompt": before, "suffix": behind })).refusal();
    assert!(none.starts_with("400 the model has no tokens for a gap"), "{none}");
}
