//! Calls of functions through the three APIs: what a real model is made to call, whole and in pieces, and what becomes
//! of the results.

use ruvllm_engine::LoadOptions;
use ruvllm_testkit::real_model;
use serde_json::{Value, json};

use crate::client::{Bench, Reply, load_options, options};

fn bench(model: &str) -> Bench {
    let load = LoadOptions { n_ctx: Some(2048), ..load_options() };
    Bench::named(model, &real_model(model), &load, options())
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": { "type": "string", "enum": ["Paris", "Rome", "Oslo"] },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
        },
        "required": ["city", "days"],
    })
}

fn tools() -> Value {
    json!([
        { "type": "function", "function": {
            "name": "get_weather", "description": "Returns the weather of the next days in a city", "parameters": schema(),
        } },
        { "type": "function", "function": { "name": "get_time", "description": "Returns the time" } },
    ])
}

fn ask(bench: &Bench, more: &Value) -> Reply {
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What will the weather be like in Rome the next 3 days?" }],
        "tools": tools(),
        "max_tokens": 120,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    bench.post("/v1/chat/completions", &body)
}

/// Returns the arguments of a call, which must be valid by [`schema`].
#[track_caller]
fn arguments(text: &Value) -> Value {
    let value: Value = serde_json::from_str(text.as_str().expect("a text")).expect("JSON");
    assert!(["Paris", "Rome", "Oslo"].contains(&value["city"].as_str().expect("a city")), "{value}");
    assert!((1..=9).contains(&value["days"].as_i64().expect("days")), "{value}");
    assert_eq!(value.as_object().map(serde_json::Map::len), Some(2), "{value}");
    value
}

/// Puts the pieces of a stream's calls together.
fn streamed(events: &[Value]) -> (String, Vec<Value>, String) {
    let (mut text, mut calls, mut reason) = (String::new(), Vec::<Value>::new(), String::new());
    for choice in events.iter().map(|event| &event["choices"][0]) {
        text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        for piece in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = piece["index"].as_u64().expect("an index") as usize;
            let more = piece["function"]["arguments"].as_str().expect("arguments");
            if index == calls.len() {
                assert!(piece["id"].is_string() && piece["type"] == "function" && more.is_empty(), "{piece}");
                calls.push(json!({ "name": piece["function"]["name"], "arguments": "" }));
            }
            let all = calls[index]["arguments"].as_str().expect("a text").to_owned() + more;
            calls[index]["arguments"] = json!(all);
        }
        reason.push_str(choice["finish_reason"].as_str().unwrap_or_default());
    }
    (text, calls, reason)
}

fn forced_calls(model: &str) {
    let bench = bench(model);
    let named = json!({ "tool_choice": { "type": "function", "function": { "name": "get_weather" } } });
    let whole = ask(&bench, &named).ok();
    let (message, reason) = (&whole["choices"][0]["message"], &whole["choices"][0]["finish_reason"]);
    assert_eq!((reason, &message["content"]), (&json!("tool_calls"), &Value::Null), "{whole}");
    let call = &message["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("get_weather")));
    arguments(&call["function"]["arguments"]);

    let mut stream = named.clone();
    stream["stream"] = json!(true);
    let events = ask(&bench, &stream).events();
    let (text, calls, reason) = streamed(&events);
    assert_eq!((text.as_str(), calls.len(), reason.as_str()), ("", 1, "tool_calls"));
    assert_eq!(calls[0], json!({ "name": "get_weather", "arguments": call["function"]["arguments"] }));
    let n_pieces = events.iter().filter(|event| event["choices"][0]["delta"]["tool_calls"].is_array()).count();
    assert!(n_pieces > 3, "arguments come in pieces: {n_pieces}");

    // Several answers, hot: each is a call of one of the functions.
    let hot = json!({ "tool_choice": "required", "n": 3, "temperature": 1.5, "seed": 5, "parallel_tool_calls": false });
    for choice in ask(&bench, &hot).ok()["choices"].as_array().expect("choices") {
        let calls = choice["message"]["tool_calls"].as_array().unwrap_or_else(|| panic!("{choice}"));
        assert_eq!(calls.len(), 1);
        match calls[0]["function"]["name"].as_str() {
            Some("get_weather") => drop(arguments(&calls[0]["function"]["arguments"])),
            // Any object may be cut at the limit.
            name => assert_eq!(name, Some("get_time")),
        }
    }

    // The result goes back in, and the answer is text.
    let messages = json!([
        { "role": "user", "content": "What will the weather be like in Rome the next 3 days?" },
        message,
        { "role": "tool", "tool_call_id": call["id"], "content": "sunny, 31 degrees" },
        { "role": "user", "content": "So how will it be? Answer in a sentence." },
    ]);
    let body = json!({ "messages": messages, "tools": tools(), "tool_choice": "none", "max_tokens": 40 });
    let answer = bench.post("/v1/chat/completions", &body).ok();
    let text = answer["choices"][0]["message"]["content"].as_str().expect("text");
    assert!(text.to_lowercase().contains("sunny") || text.contains("31"), "{text}");
}

#[test]
fn smollm2_calls_by_a_prompt_of_ours() {
    forced_calls("smollm2:135m");
}

#[test]
fn qwen_calls_in_its_own_form() {
    forced_calls("qwen2.5-coder:0.5b");
}

#[test]
fn a_model_that_is_free_to_call_says_or_calls() {
    let bench = bench("qwen2.5-coder:0.5b");
    // Logits lead it to call: the token of its mark, or away from it.
    let mark = bench.post("/tokenize", &json!({ "text": "<tool_call>", "parse_special": true })).ok();
    let id = mark["tokens"][0].to_string();
    assert_eq!(mark["count"], 1);
    let says = ask(&bench, &json!({ "logit_bias": { &id: -100 }, "max_tokens": 8, "stop": ["zzz"] })).ok();
    let choice = &says["choices"][0];
    assert!(choice["message"]["tool_calls"].is_null(), "{choice}");
    let calls = ask(&bench, &json!({ "logit_bias": { &id: 100 }, "parallel_tool_calls": false })).ok();
    let choice = &calls["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    let function = &choice["message"]["tool_calls"][0]["function"];
    if function["name"] == "get_weather" {
        arguments(&function["arguments"]);
    }
    assert_eq!(bench.get("/v1/capabilities").ok()["tools"]["format"], "hermes");
    let rendered = json!({ "messages": [{ "role": "user", "content": "x" }], "tools": tools() });
    let prompt = bench.post("/apply-template", &rendered).ok()["prompt"].clone();
    assert!(
        prompt.as_str().is_some_and(|prompt| prompt.contains("<tools>") && prompt.contains("get_time")),
        "{prompt}"
    );
    // Without functions, and with some that may not be called, the prompt is the same.
    let n = |more: Value| ask(&bench, &more).ok()["usage"]["prompt_tokens"].clone();
    assert_eq!(n(json!({ "tools": null, "max_tokens": 1 })), n(json!({ "tool_choice": "none", "max_tokens": 1 })));
    // A call that is cut says so, and has what came of it.
    let named = json!({ "type": "function", "function": { "name": "get_weather" } });
    let cut = ask(&bench, &json!({ "tool_choice": named, "max_tokens": 20 })).ok();
    let choice = &cut["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let begun = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().expect("a text");
    assert!(begun.starts_with('{') && !begun.ends_with('}'), "{begun}");
}

#[test]
fn responses_have_calls_as_items() {
    let bench = bench("qwen2.5-coder:0.5b");
    let tool = json!({
        "type": "function", "name": "get_weather", "description": "Returns the weather", "parameters": schema(), "strict": true,
    });
    let mut body = json!({
        "input": "What will the weather be like in Rome the next 3 days?",
        "tools": [tool],
        "tool_choice": { "type": "function", "name": "get_weather" },
        "max_output_tokens": 100,
    });
    let whole = bench.post("/v1/responses", &body).ok();
    let item = &whole["output"][0];
    assert_eq!(
        (&item["type"], &item["status"], &item["name"]),
        (&json!("function_call"), &json!("completed"), &json!("get_weather"))
    );
    arguments(&item["arguments"]);
    assert_eq!(whole["tools"][0]["name"], "get_weather");

    body["stream"] = json!(true);
    let events = named_events(&bench.post("/v1/responses", &body));
    let of = |name: &str| events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    let deltas: String =
        of("response.function_call_arguments.delta").iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(json!(deltas), item["arguments"]);
    let done = of("response.function_call_arguments.done")[0];
    assert_eq!((&done["arguments"], &done["output_index"]), (&item["arguments"], &json!(0)));
    let last = &of("response.completed")[0]["response"]["output"];
    assert_eq!(last[0]["arguments"], item["arguments"]);
    assert_eq!(of("response.output_item.added")[0]["item"]["id"], done["item_id"]);

    let input = json!([
        { "role": "user", "content": "What will the weather be like in Rome the next 3 days?" },
        item,
        { "type": "function_call_output", "call_id": item["call_id"], "output": "sunny, 31 degrees" },
        { "role": "user", "content": "So how will it be? Answer in a sentence." },
    ]);
    let answer = bench.post("/v1/responses", &json!({ "input": input, "max_output_tokens": 40 })).ok();
    let text = answer["output"][0]["content"][0]["text"].as_str().expect("text");
    assert!(text.to_lowercase().contains("sunny") || text.contains("31"), "{text}");
    let bad = json!({ "input": [{ "type": "function_call", "call_id": "x", "name": "f" }] });
    let refusal = bench.post("/v1/responses", &bad).refusal();
    assert_eq!(refusal, "400 'input[0].arguments' is missing: its arguments, as JSON");
}

#[test]
fn anthropics_tools_are_used() {
    let bench = bench("qwen2.5-coder:0.5b");
    let mut body = json!({
        "messages": [{ "role": "user", "content": "What will the weather be like in Rome the next 3 days?" }],
        "tools": [{ "name": "get_weather", "description": "Returns the weather", "input_schema": schema() }],
        "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
        "max_tokens": 100,
        "temperature": 0,
    });
    let whole = bench.post("/v1/messages", &body).ok();
    assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
    let block = &whole["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("get_weather")));
    arguments(&json!(block["input"].to_string()));
    let mut count = body.clone();
    ["max_tokens", "temperature"].iter().for_each(|name| drop(count.as_object_mut().expect("an object").remove(*name)));
    let n = bench.post("/v1/messages/count_tokens", &count).ok();
    let usage = &whole["usage"];
    let n_read =
        usage["input_tokens"].as_u64().expect("a count") + usage["cache_read_input_tokens"].as_u64().expect("a count");
    assert_eq!(n["input_tokens"], json!(n_read));

    body["stream"] = json!(true);
    let events = named_events(&bench.post("/v1/messages", &body));
    let json: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&json).expect("JSON"), block["input"]);
    let types: Vec<&str> =
        events.iter().filter_map(|event| event["type"].as_str()).filter(|ty| *ty != "content_block_delta").collect();
    assert_eq!(types, ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]);

    (body["stream"], body["tool_choice"]) = (json!(false), json!({ "type": "none" }));
    body["messages"] = json!([
        body["messages"][0],
        { "role": "assistant", "content": [{ "type": "text", "text": "I look." }, block] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": block["id"], "content": [{ "type": "text", "text": "sunny, 31 degrees" }] },
            { "type": "text", "text": "So?" },
        ] },
    ]);
    let text = bench.post("/v1/messages", &body).ok()["content"][0]["text"].as_str().expect("text").to_owned();
    assert!(text.to_lowercase().contains("sunny") || text.contains("31"), "{text}");
    body["messages"] = json!([{ "role": "user", "content": [block] }]);
    let refusal = bench.post("/v1/messages", &body);
    let expected = "'messages[0].content[0]' is a tool_use, which is for messages of the assistant, not of the user";
    assert_eq!((refusal.status, &refusal.json()["error"]["message"]), (400, &json!(expected)));
}

#[test]
fn what_does_not_go_with_calls_is_refused() {
    let bench = Bench::tiny(options());
    for (more, expected) in [
        (
            json!({ "structured_outputs": { "grammar": "root ::= \"a\"" } }),
            "a grammar of rules does not go with functions that may be called",
        ),
        (json!({ "ignore_eos": true }), "'ignore_eos' does not go with 'tools'"),
        (
            json!({ "tool_choice": { "type": "function", "function": { "name": "rm" } } }),
            "the function 'rm' is chosen and not there; there is get_weather, get_time",
        ),
    ] {
        let refusal = ask(&bench, &more).refusal();
        assert!(refusal.starts_with(&format!("400 {expected}")), "{refusal}");
    }
    // None are called, so a form may be asked for.
    let more = json!({ "response_format": { "type": "json_object" }, "tool_choice": "none", "max_tokens": 2 });
    ask(&bench, &more).ok();
}

/// Returns the data of a stream's events, which name themselves.
fn named_events(reply: &Reply) -> Vec<Value> {
    let read = |event: &str| {
        let (name, data) = event.strip_prefix("event: ")?.split_once("\ndata: ")?;
        let data: Value = serde_json::from_str(data).expect("events are JSON");
        assert_eq!(data["type"], name);
        Some(data)
    };
    reply.body.split("\n\n").filter_map(read).collect()
}
