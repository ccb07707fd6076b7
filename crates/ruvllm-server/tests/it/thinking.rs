//! What a model thinks, apart from what it says, in each API.

use std::path::Path;

use ruvllm_engine::LoadOptions;
use ruvllm_testkit::real_model;
use serde_json::{Value, json};

use crate::client::{Bench, Reply, load_options, options, with};

const CHAT: &str = "/v1/chat/completions";
const BUDGET: usize = 6;

/// A model whose template has it think in any case: SmolLM2 with another template.
fn thinker(folder: &Path) -> Bench {
    let path = folder.join("thinker.gguf");
    let file = ruvllm_gguf::GgufFile::open(&real_model("smollm2:135m")).expect("a model");
    let mut writer = ruvllm_gguf::GgufWriter::from_file(&file);
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\
        {{ m.reasoning_content }}</think>{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n\
        {% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}";
    writer.metadata_mut().set("tokenizer.chat_template", template);
    writer.write_file(&path).expect("a temporary folder is writable");
    Bench::new(&path, &LoadOptions { n_ctx: Some(1024), ..load_options() }, options())
}

fn says() -> Value {
    json!([{ "role": "user", "content": "Tell me a story about a dog." }])
}

/// Returns the texts at a place of the events of a stream, joined.
fn joined(reply: &Reply, pointer: &str) -> String {
    reply.data().iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

#[test]
fn chats_have_it_beside_the_content() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = thinker(folder.path());
    let body = json!({ "messages": says(), "max_tokens": 40, "temperature": 0, "thinking_budget_tokens": BUDGET });
    let whole = bench.post(CHAT, &body).ok();
    let message = &whole["choices"][0]["message"];
    let (thought, said) = (message["reasoning_content"].as_str(), message["content"].as_str());
    let (thought, said) = (thought.expect("a thought"), said.expect("an answer"));
    assert!(!thought.is_empty() && !said.is_empty() && !whole.to_string().contains("think>"), "{message}");
    let n_thought = whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().expect("a count");
    assert!(n_thought > BUDGET as u64 && n_thought < BUDGET as u64 + 6, "{n_thought}");
    let streamed = bench.post(CHAT, &with(body.clone(), json!({ "stream": true })));
    assert_eq!(joined(&streamed, "/choices/0/delta/reasoning_content"), thought);
    assert_eq!(joined(&streamed, "/choices/0/delta/content"), said);
    // Without, within the content, and not at all.
    for field in [json!({ "include_reasoning": false }), json!({ "reasoning": { "exclude": true } })] {
        let message = bench.post(CHAT, &with(body.clone(), field)).ok()["choices"][0]["message"].take();
        assert_eq!((message.get("reasoning_content"), message["content"].as_str()), (None, Some(said)));
    }
    let plain = bench.post(CHAT, &with(body.clone(), json!({ "reasoning_format": "none" }))).ok();
    let plain = &plain["choices"][0]["message"];
    assert!(plain.get("reasoning_content").is_none() && plain["content"].as_str().is_some_and(|text| text.len() > 20));
    let off = bench.post(CHAT, &with(body, json!({ "reasoning_effort": "none" }))).ok();
    assert!(off["choices"][0]["message"].get("reasoning_content").is_none(), "{off}");
}

#[test]
fn every_name_of_a_budget_is_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = thinker(folder.path());
    let n_thought = |reply: Reply, pointer: &str| reply.ok().pointer(pointer).and_then(Value::as_u64).expect("a count");
    let body = json!({ "messages": says(), "max_tokens": 40, "temperature": 0 });
    let of_chat = |field| {
        let reply = bench.post(CHAT, &with(body.clone(), field));
        n_thought(reply, "/usage/completion_tokens_details/reasoning_tokens")
    };
    let n = of_chat(json!({ "thinking_budget_tokens": 3 }));
    for field in [
        json!({ "thinking_token_budget": 3 }),
        json!({ "reasoning_budget": 3 }),
        json!({ "reasoning": { "max_tokens": 3 } }),
    ] {
        assert_eq!(of_chat(field.clone()), n, "{field}");
    }
    assert_eq!(of_chat(json!({ "thinking_budget_tokens": -1 })), of_chat(json!({})));
    let body = json!({ "input": "Tell me a story about a dog.", "max_output_tokens": 40, "temperature": 0, "reasoning": { "max_tokens": 3 } });
    let pointer = "/usage/output_tokens_details/reasoning_tokens";
    assert_eq!(n_thought(bench.post("/v1/responses", &body), pointer), n);
}

#[test]
fn a_form_begins_behind_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = thinker(folder.path());
    let schema = json!({ "type": "object", "properties": { "blue": { "type": "boolean" } }, "required": ["blue"],
        "additionalProperties": false });
    let word = json!({ "enum": ["yes", "no"] });
    let form = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": word } });
    let body = json!({ "messages": says(), "max_tokens": 60, "temperature": 0, "thinking_budget_tokens": BUDGET,
        "response_format": form });
    let whole = bench.post(CHAT, &body).ok();
    let message = &whole["choices"][0]["message"];
    let value: Value = serde_json::from_str(message["content"].as_str().expect("an answer")).expect("JSON");
    assert!(
        ["yes", "no"].contains(&value.as_str().unwrap_or_default()) && message["reasoning_content"].is_string(),
        "{message}"
    );
    let tool = json!([{ "type": "function", "function": { "name": "look", "parameters": schema } }]);
    let body = json!({ "messages": says(), "max_tokens": 60, "temperature": 0, "thinking_budget_tokens": BUDGET,
        "tools": tool, "tool_choice": "required", "parallel_tool_calls": false });
    for stream in [false, true] {
        let reply = bench.post(CHAT, &with(body.clone(), json!({ "stream": stream })));
        let (thought, name) = match stream {
            true => {
                let name = "/choices/0/delta/tool_calls/0/function/name";
                (joined(&reply, "/choices/0/delta/reasoning_content"), joined(&reply, name))
            }
            false => {
                let message = reply.ok()["choices"][0]["message"].take();
                let text = |value: &Value| value.as_str().expect("a text").to_owned();
                (text(&message["reasoning_content"]), text(&message["tool_calls"][0]["function"]["name"]))
            }
        };
        assert!(!thought.is_empty() && name == "look", "{thought:?} {name:?}");
    }
}

#[test]
fn responses_have_an_item_of_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = thinker(folder.path());
    let body = json!({ "input": "Tell me a story about a dog.", "max_output_tokens": 40, "temperature": 0,
        "reasoning": { "max_tokens": BUDGET } });
    let whole = bench.post("/v1/responses", &body).ok();
    let types = |output: &Value| -> Vec<String> {
        let items = output.as_array().expect("a list");
        items.iter().map(|item| item["type"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(types(&whole["output"]), ["reasoning", "message"]);
    let (thought, said) = (&whole["output"][0]["content"][0], &whole["output"][1]["content"][0]);
    assert_eq!(thought["type"], "reasoning_text");
    let streamed = bench.post("/v1/responses", &with(body.clone(), json!({ "stream": true })));
    let deltas = |name: &str| -> String {
        streamed
            .data()
            .iter()
            .filter(|event| event["type"] == name)
            .filter_map(|event| event["delta"].as_str())
            .collect()
    };
    assert_eq!(json!(deltas("response.reasoning_text.delta")), thought["text"]);
    assert_eq!(json!(deltas("response.output_text.delta")), said["text"]);
    let last = streamed.data().pop().expect("an event");
    assert_eq!(types(&last["response"]["output"]), ["reasoning", "message"]);
    assert_eq!(last["response"]["output"][0]["content"], whole["output"][0]["content"]);
    // It is sent back as it came.
    let user = json!({ "role": "user", "content": "Tell me a story about a dog." });
    let items = json!([user, whole["output"][0], whole["output"][1], { "role": "user", "content": "Why?" }]);
    let next = bench.post("/v1/responses", &with(body, json!({ "input": items }))).ok();
    let n = |answer: &Value| answer["usage"]["input_tokens"].as_u64().expect("a count");
    assert!(n(&next) > n(&whole) + 40, "{} {}", n(&next), n(&whole));
}

#[test]
fn messages_have_a_block_of_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bench = thinker(folder.path());
    let body = json!({ "messages": says(), "max_tokens": 40, "temperature": 0,
        "thinking": { "type": "enabled", "budget_tokens": BUDGET } });
    let whole = bench.post("/v1/messages", &body).ok();
    let (thought, said) = (&whole["content"][0], &whole["content"][1]);
    assert_eq!(
        (&thought["type"], &thought["signature"], &said["type"]),
        (&json!("thinking"), &json!(""), &json!("text"))
    );
    let streamed = bench.post("/v1/messages", &with(body.clone(), json!({ "stream": true })));
    assert_eq!(json!(joined(&streamed, "/delta/thinking")), thought["thinking"]);
    assert_eq!(json!(joined(&streamed, "/delta/text")), said["text"]);
    let kinds: Vec<Value> =
        streamed.data().iter().filter_map(|event| event.pointer("/content_block/type").cloned()).collect();
    assert_eq!(kinds, ["thinking", "text"]);
    let history =
        json!([says()[0], { "role": "assistant", "content": whole["content"] }, { "role": "user", "content": "Why?" }]);
    bench.post("/v1/messages", &with(body.clone(), json!({ "messages": history }))).ok();
    let off = bench.post("/v1/messages", &with(body, json!({ "thinking": { "type": "disabled" } }))).ok();
    assert_eq!(off["content"][0]["type"], "text", "{off}");
}
