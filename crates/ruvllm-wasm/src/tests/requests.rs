//! Requests by the bodies of the server's API.

use serde_json::{Value, json};

use super::{finish, line, load, options, source};
use crate::WebEngine;
use crate::engine::check_size;

fn started(engine: &mut WebEngine, body: Value) -> u32 {
    engine.chat(&body.to_string()).expect("the request is sound")
}

fn question(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

/// Returns the text of the first choice's chunks.
fn text_of(chunks: &[Value], pointer: &str) -> String {
    chunks.iter().filter_map(|chunk| chunk.pointer(pointer)?.as_str()).collect()
}

#[test]
fn chunks_and_the_whole_answer_say_the_same() {
    let mut engine = load("llama-a", &options(false));
    let body = json!({ "messages": question("Hi."), "max_tokens": 12, "temperature": 0, "stream": true,
        "stream_options": { "include_usage": true } });
    let id = started(&mut engine, body);
    let (chunks, end) = finish(&mut engine, id);
    let whole = &end["result"];
    assert_eq!((whole["object"].as_str(), whole["model"].as_str()), (Some("chat.completion"), Some("tiny")));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == whole["id"]));
    let content = whole["choices"][0]["message"]["content"].as_str().expect("a text");
    assert_eq!(text_of(&chunks, "/choices/0/delta/content"), content);
    let usage = chunks.last().expect("there are some");
    assert_eq!((&usage["usage"], usage["choices"].as_array().map(Vec::len)), (&whole["usage"], Some(0)));
    assert_eq!(whole["usage"]["completion_tokens"], 12);
    // The same again: the prompt is cached, and the answer is the same.
    let id = started(&mut engine, json!({ "messages": question("Hi."), "max_tokens": 12, "temperature": 0 }));
    let again = finish(&mut engine, id).1["result"].take();
    assert_eq!(again["choices"], whole["choices"]);
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0), "{again}");
}

#[test]
fn several_requests_run_at_once_and_one_is_ended() {
    let mut engine = load("llama-a", &options(false));
    let body =
        |text: &str| json!({ "prompt": text, "max_tokens": 20, "temperature": 0, "ignore_eos": true }).to_string();
    let [a, b] = ["one", "two"].map(|text| engine.complete(&body(text)).expect("it is sound"));
    assert!(engine.step());
    engine.cancel(a);
    assert!(engine.take(a).is_none());
    let (chunks, end) = finish(&mut engine, b);
    assert_eq!(text_of(&chunks, "/choices/0/text"), end["result"]["choices"][0]["text"].as_str().expect("a text"));
    assert_eq!(end["result"]["choices"][0]["finish_reason"], "length");
    // What was ended is gone with the next step.
    assert!(!engine.step(), "nothing is left to do");
}

#[test]
fn answers_keep_to_a_schema_and_calls_are_told_apart() {
    let mut engine = load("llama-a", &options(false).replace("256", "1024"));
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "minimum": 0, "maximum": 9 } },
        "required": ["n"], "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "schema": schema } });
    let id = started(
        &mut engine,
        json!({ "messages": question("?"), "response_format": format, "max_tokens": 60, "temperature": 0 }),
    );
    let content = finish(&mut engine, id).1["result"]["choices"][0]["message"]["content"].take();
    let value: Value = serde_json::from_str(content.as_str().expect("a text")).expect("it is JSON");
    assert!(value["n"].as_u64().is_some_and(|n| n < 10), "{value}");

    let tool = json!({ "type": "function", "function": { "name": "look", "parameters": schema } });
    let body = json!({ "messages": question("?"), "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false, "max_tokens": 400, "temperature": 0 });
    let id = started(&mut engine, body);
    let end = finish(&mut engine, id).1;
    let choice = &end["result"]["choices"][0];
    assert_eq!((choice["finish_reason"].as_str(), choice["message"]["content"].is_null()), (Some("tool_calls"), true));
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "look");
    serde_json::from_str::<Value>(call["arguments"].as_str().expect("a text")).expect("arguments are JSON");
}

#[test]
fn texts_become_tokens_and_vectors() {
    let mut engine = load("bert-a", r#"{ "name": "encoder" }"#);
    let tokens = engine.tokenize(r#"{ "text": "a cat sat" }"#).expect("a text");
    let back = engine.detokenize(&json!({ "tokens": tokens["tokens"] }).to_string()).expect("tokens");
    assert!(back["text"].as_str().is_some_and(|text| text.contains("cat")), "{back}");
    let id = engine.embed(r#"{ "input": ["a cat sat", "a cat sat", "dogs"] }"#).expect("texts");
    let answer = finish(&mut engine, id).1["result"].take();
    let data = answer["data"].as_array().expect("a list");
    assert_eq!((data.len(), &data[0]["embedding"]), (3, &data[1]["embedding"]));
    assert_ne!(data[0]["embedding"], data[2]["embedding"]);
    assert_eq!(
        line(engine.chat(&json!({ "messages": question("?") }).to_string())),
        "model 'encoder' makes embeddings, not text; ask it for those"
    );
}

#[test]
fn wrong_requests_are_refused_with_the_servers_lines() {
    let mut engine = load("llama-a", &options(false));
    for (body, expected) in [
        ("{", "the body is no JSON: EOF while parsing an object at line 1 column 1"),
        (r#"{ "prompt": "a", "promt": "b" }"#, "'promt' is no field of this request; is 'prompt' meant?"),
        (
            r#"{ "max_tokens": 3 }"#,
            "'prompt' is missing: a text, or its tokens; or several of them, each of which is continued n times",
        ),
        (
            r#"{ "prompt": "a", "temperature": "hot" }"#,
            "'temperature' is \"hot\"; it must be a number from -100 to 100",
        ),
        (r#"{ "prompt": "a", "model": "gpt-5" }"#, "the model 'gpt-5' is not loaded here; 'tiny' is"),
        (r#"{ "prompt": "a", "adapter": "x" }"#, "'adapter' is not supported: a page's engine has no adapters"),
        (r#"{ "prompt": "a", "best_of": 3 }"#, "answers are not ranked here; leave out 'best_of'"),
        (r#"{ "prompt": "a", "stop": [""] }"#, "a text of 'stop' is empty; it would end every answer at once"),
    ] {
        assert_eq!(line(engine.complete(body)), expected);
    }
    let long = json!({ "prompt": vec![7; 300] }).to_string();
    let error = engine.complete(&long).expect_err("it is too long");
    assert_eq!((error.code, error.beyond), (Some("context_length_exceeded"), Some((300, 256))));
    assert_eq!(line(engine.feedback("{}")), "this engine learns nothing; load it with learn: true");
}

#[test]
fn files_and_options_that_cannot_be_are_refused() {
    assert!(check_size(2 << 30).is_ok());
    let error = check_size((2 << 30) + 1).expect_err("too large");
    assert_eq!((error.code, error.status.as_u16()), (Some("file_too_large"), 413));
    let load = |bytes: &[u8], options: &str| line(WebEngine::load(source(bytes.to_vec()), options, None, &mut |_| {}));
    assert!(load(b"GGUX", "{}").contains("GGUF"), "{}", load(b"GGUX", "{}"));
    let most = crate::threads_max();
    #[cfg(not(feature = "gpu"))]
    assert_eq!(load(b"", r#"{ "backend": "gpu" }"#), "this module has no backend gpu; leave 'backend' out");
    let line = load(b"", r#"{ "backend": "cuda" }"#);
    assert!(line.contains("unknown variant `cuda`, expected `native` or `gpu`"), "{line}");
    assert_eq!(load(b"", r#"{ "threads": 0 }"#), format!("0 threads; choose 1 to {most}"));
    assert_eq!(load(b"", r#"{ "parallel": 0 }"#), "0 requests at once; choose 1 to 64");
    assert!(
        load(b"", r#"{ "context": 1 }"#).starts_with("the options of load cannot be read: unknown field `context`")
    );
}

#[test]
fn capabilities_say_what_there_is() {
    let engine = load("llama-a", &options(false));
    let capabilities = engine.capabilities();
    assert_eq!((capabilities["runtime"].as_str(), capabilities["model"]["n_ctx"].as_u64()), (Some("web"), Some(256)));
    let names = |path: &str, which: &str| -> Vec<String> {
        let of_path = |call: &&Value| call["path"] == path;
        let call = capabilities["endpoints"].as_array().and_then(|calls| calls.iter().find(of_path)).expect(path);
        call[which]
            .as_array()
            .expect(which)
            .iter()
            .map(|field| field["name"].as_str().unwrap_or_default().into())
            .collect()
    };
    // What is listed is what a request may have.
    for (path, taken) in
        [("/v1/chat/completions", "messages"), ("/v1/feedback", "correction"), ("/v1/memory", "answer")]
    {
        let (accepted, refused) = (names(path, "accepted"), names(path, "refused"));
        assert!(accepted.contains(&taken.to_owned()), "{path}: {accepted:?}");
        assert!(refused.contains(&"patterns".to_owned()) && !accepted.contains(&"patterns".to_owned()), "{path}");
    }
}
