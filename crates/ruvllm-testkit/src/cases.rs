//! Cases for tokenizers, chat templates and generation, made with the real models.

use std::path::Path;

use serde_json::{Value, json};

use crate::golden::testdata_dir;

/// The real models by registry name and the stem of their files under `testdata/{tokenizer,generate,chat}`.
pub const CASE_MODELS: [(&str, &str); 3] = [
    ("smollm2:135m", "smollm2-135m-instruct"),
    ("gemma3:270m", "gemma-3-270m"),
    ("qwen2.5-coder:0.5b", "qwen2.5-coder-0.5b"),
];

fn stem(model: &str) -> &'static str {
    let found = CASE_MODELS.iter().find(|(name, _)| *name == model);
    found.unwrap_or_else(|| panic!("no cases for model '{model}'")).1
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn parse(path: &Path, text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn lines(path: &Path) -> Vec<Value> {
    read(path).lines().map(|line| parse(path, line)).collect()
}

/// Returns the tokenizer cases of a model, each with `text`, `parse_special`, `ids_with_special`, `ids_plain`,
/// `detok_plain`, and `hf_ids_plain` where another tokenizer of the same vocabulary differs.
///
/// # Panics
/// If there are none for this registry name.
pub fn tokenizer_cases(model: &str) -> Vec<Value> {
    lines(&testdata_dir().join("tokenizer").join(format!("{}.jsonl", stem(model))))
}

/// Returns the greedy generations of a model, each with `prompt`, `prompt_ids`, `gen_ids`, `first_eog`, and per step
/// `margins`, `top5` and `f32_top5`.
///
/// # Panics
/// If there are none for this registry name.
pub fn generate_cases(model: &str) -> Vec<Value> {
    lines(&testdata_dir().join("generate").join(format!("{}.jsonl", stem(model))))
}

/// Returns the chat renderings of a model: `bos_token`, `eos_token`, `now`, and `cases` of `name`, `input` and `output`
/// or `error`; `None` for a model without a template.
///
/// # Panics
/// If the model is not one of [`CASE_MODELS`].
pub fn chat_cases(model: &str) -> Option<Value> {
    let path = testdata_dir().join("chat").join(format!("{}.json", stem(model)));
    path.is_file().then(|| parse(&path, &read(&path)))
}

/// Two functions that a model may call: their names and the JSON schemas of their parameters.
pub fn functions() -> [(&'static str, Value); 2] {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "unit": { "enum": ["celsius", "kelvin"] } },
        "required": ["city"],
    });
    let add =
        json!({ "properties": { "a": { "type": "integer" }, "b": { "type": "integer" } }, "required": ["a", "b"] });
    [("get_weather", weather), ("add", add)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_has_cases() {
        let counts = CASE_MODELS.map(|(name, _)| {
            let chat = chat_cases(name).map(|chat| chat["cases"].as_array().map_or(0, Vec::len));
            (tokenizer_cases(name).len(), generate_cases(name).len(), chat)
        });
        assert_eq!(counts, [(111, 12, Some(12)), (111, 12, None), (111, 12, Some(12))]);
    }
}
