//! Chat templates of the real models against transformers' renderings.

use std::time::{Duration, UNIX_EPOCH};

use ruvllm_gguf::GgufFile;
use ruvllm_testkit::{chat_cases, real_model};
use ruvllm_text::template::{ChatInput, ChatTemplate};

/// 2025-01-15T12:34:56, the time of the renderings.
const NOW_S: u64 = 1_736_944_496;

fn check(name: &str) {
    let file = GgufFile::open(&real_model(name)).expect("it opens");
    let source = file.metadata().str("tokenizer.chat_template").expect("a text").expect("it has a template");
    let chat = chat_cases(name).expect("it has cases");
    assert_eq!(chat["now"], "2025-01-15T12:34:56");
    let text = |key: &str| chat[key].as_str().expect("a text");
    let template = ChatTemplate::new(source, text("bos_token"), text("eos_token")).expect("it compiles");
    let cases = chat["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 12);
    for case in cases {
        let input = &case["input"];
        let rendered = template.render(&ChatInput {
            messages: input["messages"].as_array().expect("messages").clone(),
            tools: input.get("tools").cloned(),
            add_generation_prompt: input["add_generation_prompt"].as_bool().expect("a truth value"),
            now: Some(UNIX_EPOCH + Duration::from_secs(NOW_S)),
            ..ChatInput::default()
        });
        match case["output"].as_str() {
            Some(expected) => assert_eq!(rendered.expect("it renders"), expected, "{name}: {}", case["name"]),
            None => assert!(rendered.is_err(), "{name}: {} must fail", case["name"]),
        }
    }
}

#[test]
fn smollm2_is_exact() {
    check("smollm2:135m");
}

#[test]
fn qwen_is_exact() {
    check("qwen2.5-coder:0.5b");
}

#[test]
fn gemma3_has_no_template() {
    let file = GgufFile::open(&real_model("gemma3:270m")).expect("it opens");
    assert_eq!(file.metadata().str("tokenizer.chat_template").expect("a text or nothing"), None);
    assert!(chat_cases("gemma3:270m").is_none());
}
