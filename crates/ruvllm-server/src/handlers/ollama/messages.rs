//! Conversations: the table of a message, and its words in those of the other APIs.

use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use serde_json::{Map, Value, json};

use crate::call::Call;

/// Pictures, of which there are none.
pub(super) const IMAGES: Field = optional("images", Kind::Only("[]", "the model reads text only"), "none");

const CALLED: &[Field] = &[
    required("name", Kind::Text, "the function's name"),
    optional("arguments", Kind::Either(&[Kind::Map(&Kind::Any), Kind::Text]), "its arguments, also as JSON text"),
    optional("description", Kind::Text, "what it does"),
    optional("index", Kind::Int(0, 1 << 20), "its place among the calls"),
];

const TOOL_CALL: &[Field] = &[
    optional("id", Kind::Text, "what the tool's message may refer to"),
    optional("type", Kind::Word(&["function"]), "functions are the only tools"),
    required("function", Kind::Object(CALLED), "what is called"),
];

const MESSAGE: &[Field] = &[
    required("role", Kind::Word(&["system", "user", "assistant", "tool"]), "who says it"),
    optional("content", Kind::Text, "what is said"),
    optional(
        "thinking",
        Kind::Text,
        "what the assistant thought; the model reads it if its template has a place for it",
    ),
    IMAGES,
    optional("tool_calls", Kind::List(&Kind::Object(TOOL_CALL), 0, 128), "the calls that the assistant made"),
    optional("tool_name", Kind::Text, "the function whose result this is"),
    optional("tool_call_id", Kind::Text, "the call that a tool's message answers"),
];

/// A conversation; an empty one loads the model.
pub(super) const MESSAGES: Kind = Kind::List(&Kind::Object(MESSAGE), 0, 4096);

/// Returns the conversation as the chat template reads it.
///
/// # Errors
/// As [`Call::for_template`].
pub(super) fn for_template(given: &[Value], call: &Call) -> Result<Vec<Value>, ApiError> {
    let mut calls = Calls::default();
    let renamed: Vec<Value> = given.iter().map(|message| calls.renamed(message)).collect();
    call.for_template(&renamed)
}

/// Calls of a conversation so far.
#[derive(Default)]
struct Calls {
    n: usize,
    /// Name and id of each that has no result yet.
    open: Vec<(Value, Value)>,
}

impl Calls {
    /// Returns a message in OpenAI's words, with ids that tie calls to their results: some templates ask for them.
    fn renamed(&mut self, message: &Value) -> Value {
        let mut out = message.as_object().cloned().unwrap_or_default();
        for (theirs, own) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
            if let Some(value) = out.remove(theirs).filter(|value| !value.is_null()) {
                out.insert(own.to_owned(), value);
            }
        }
        for call in out.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
            self.n += 1;
            if call["id"].is_null() {
                call["id"] = json!(format!("call{:05}", self.n));
            }
            if let Some(function) = call["function"].as_object_mut() {
                function.retain(|name, _| ["name", "arguments"].contains(&name.as_str()));
                function.entry("arguments").or_insert_with(|| json!({}));
            }
            self.open.push((call["function"]["name"].clone(), call["id"].clone()));
        }
        if out.get("role").is_some_and(|role| role == "tool") {
            self.answer(&mut out);
        }
        Value::Object(out)
    }

    /// Ties a result to its call: by its id or its name, or else to the first that has none.
    fn answer(&mut self, result: &mut Map<String, Value>) {
        let given = |name: &str| result.get(name).filter(|value| !value.is_null());
        let by_id = given("tool_call_id").and_then(|id| self.open.iter().position(|(_, open)| open == id));
        let by_name = given("name").and_then(|name| self.open.iter().position(|(open, _)| open == name));
        let first = (!self.open.is_empty() && given("tool_call_id").is_none()).then_some(0);
        let Some(at) = by_id.or(by_name).or(first) else { return };
        let (name, id) = self.open.remove(at);
        for (field, value) in [("name", name), ("tool_call_id", id)] {
            if result.get(field).is_none_or(Value::is_null) {
                result.insert(field.to_owned(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_tied_to_calls() {
        let call = |name: &str| json!({ "function": { "name": name, "arguments": {}, "index": 1 } });
        let conversation = json!([
            { "role": "assistant", "thinking": "hm", "tool_calls": [call("a"), call("b"), call("c")] },
            { "role": "tool", "content": "1", "tool_name": "b" },
            { "role": "tool", "content": "2" },
            { "role": "tool", "content": "3", "tool_call_id": "call00003" },
            { "role": "tool", "content": "4", "tool_call_id": "stranger" },
        ]);
        let mut calls = Calls::default();
        let renamed: Vec<Value> = conversation.as_array().into_iter().flatten().map(|m| calls.renamed(m)).collect();
        assert_eq!(renamed[0]["reasoning_content"], "hm");
        assert_eq!(
            renamed[0]["tool_calls"][1],
            json!({ "id": "call00002", "function": { "name": "b", "arguments": {} } })
        );
        let tied: Vec<_> = renamed[1..].iter().map(|m| (m["name"].clone(), m["tool_call_id"].clone())).collect();
        let expected =
            [("b", "call00002"), ("a", "call00001"), ("c", "call00003")].map(|(name, id)| (json!(name), json!(id)));
        assert_eq!(tied[..3], expected);
        assert_eq!(tied[3], (Value::Null, json!("stranger")));
    }
}
