//! Conversations: the table of a message, and its way into the model's chat template.

use ruvllm_engine::template::ChatInput;
use ruvllm_engine::{ChatOptions, ModelText};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, required, unheeded};
use crate::thinking;

/// A mark for caches.
pub const CACHE: Field =
    unheeded("cache_control", Kind::Any, "every prompt is cached as far as there is room, marked or not");

const TEXT_PART: &[Field] = &[
    required("type", Kind::Word(&["text"]), "the model reads text only"),
    required("text", Kind::Text, "the text"),
    CACHE,
];

/// JSON of an answer as an SDK reads it and sends it back.
pub const PARSED: Field = optional(
    "parsed",
    Kind::Any,
    "what a client read out of the JSON, in an answer that is sent back; the JSON counts",
);
/// Arguments of a call as an SDK reads them.
pub const PARSED_ARGUMENTS: Field = Field { name: "parsed_arguments", ..PARSED };

const FUNCTION: &[Field] = &[
    required("name", Kind::Text, "the function's name"),
    required("arguments", Kind::Text, "its arguments, as JSON"),
    PARSED_ARGUMENTS,
];

const TOOL_CALL: &[Field] = &[
    required("id", Kind::Text, "what the tool's message refers to"),
    optional("type", Kind::Word(&["function"]), "functions are the only tools"),
    required("function", Kind::Object(FUNCTION), "what is called"),
    optional("index", Kind::Int(0, 1 << 20), "its place, in a call that was streamed and is sent back"),
];

const TEXT_ONLY: &str = "the model writes text only";

/// A message.
const MESSAGE: &[Field] = &[
    required(
        "role",
        Kind::Word(&["system", "developer", "user", "assistant", "tool"]),
        "who says it; developer is system",
    ),
    optional("content", Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(TEXT_PART), 0, 4096)]), "what is said"),
    optional("name", Kind::Text, "the speaker's name; the model reads it if its template has a place for it"),
    optional("tool_calls", Kind::List(&Kind::Object(TOOL_CALL), 0, 128), "the calls that the assistant made"),
    optional("tool_call_id", Kind::Text, "the call that a tool's message answers"),
    // What the SDKs' objects hold when an answer is sent back as it came.
    optional("refusal", Kind::Only("null", TEXT_ONLY), "nothing, in an answer that is sent back"),
    optional("audio", Kind::Only("null", TEXT_ONLY), "nothing, in an answer that is sent back"),
    optional("function_call", Kind::Only("null", "use tool_calls"), "nothing, in an answer that is sent back"),
    PARSED,
    optional("annotations", Kind::List(&Kind::Any, 0, 0), "nothing, in an answer that is sent back"),
    optional(
        "reasoning_content",
        Kind::Text,
        "what the assistant thought; the model reads it if its template has a place for it",
    ),
    optional("reasoning", Kind::Text, "another name of reasoning_content"),
    unheeded("reasoning_details", Kind::Any, "what other servers tell of it"),
    CACHE,
];

/// A conversation.
pub const MESSAGES: Kind = Kind::List(&Kind::Object(MESSAGE), 1, 4096);

/// Returns the conversation as the chat template reads it.
///
/// # Errors
/// 400: a message without content, or with what its role has no place for.
pub fn for_template(messages: &[Value], text: &ModelText) -> Result<Vec<Value>, ApiError> {
    let template = text.template()?.map_or("", |template| template.source());
    let knows_names = [".name", "'name'", "\"name\""].iter().any(|word| template.contains(word));
    messages.iter().enumerate().map(|(i, message)| one(message, &format!("messages[{i}]"), knows_names)).collect()
}

/// Returns the conversation as [`for_template`] does, for a model whose template is not known.
///
/// # Errors
/// As [`for_template`].
pub fn for_any_template(messages: &[Value]) -> Result<Vec<Value>, ApiError> {
    messages.iter().enumerate().map(|(i, message)| one(message, &format!("messages[{i}]"), true)).collect()
}

fn one(message: &Value, path: &str, knows_names: bool) -> Result<Value, ApiError> {
    let get = |name: &str| message.get(name).filter(|value| !value.is_null());
    let role = get("role").and_then(Value::as_str).unwrap_or_default();
    let calls = get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
    let mut out = Map::new();
    out.insert("role".to_owned(), json!(if role == "developer" { "system" } else { role }));
    match get("content") {
        Some(content) => out.insert("content".to_owned(), json!(joined(content))),
        None if role == "assistant" => out.insert("content".to_owned(), json!("")),
        None => {
            return Err(ApiError::bad(
                format!("{path}.content"),
                format!("'{path}' says nothing: 'content' is missing"),
            ));
        }
    };
    if let Some(name) = get("name").filter(|_| knows_names) {
        out.insert("name".to_owned(), name.clone());
    }
    if let Some(thought) = get("reasoning_content").or_else(|| get("reasoning")).filter(|_| role == "assistant") {
        out.insert("reasoning_content".to_owned(), thought.clone());
    }
    if let Some(calls) = calls {
        if role != "assistant" {
            let line = format!("'{path}.tool_calls' is for messages of the assistant, not of {role}");
            return Err(ApiError::bad(format!("{path}.tool_calls"), line));
        }
        let calls = calls.iter().enumerate().map(|(i, given)| call(given, &format!("{path}.tool_calls[{i}]")));
        out.insert("tool_calls".to_owned(), Value::Array(calls.collect::<Result<_, _>>()?));
    }
    match (role, get("tool_call_id")) {
        ("tool", Some(id)) => drop(out.insert("tool_call_id".to_owned(), id.clone())),
        ("tool", None) | (_, None) => {}
        (_, Some(_)) => {
            let line = format!("'{path}.tool_call_id' is for messages of a tool, not of {role}");
            return Err(ApiError::bad(format!("{path}.tool_call_id"), line));
        }
    }
    Ok(Value::Object(out))
}

/// Returns a call with its arguments as a value, as templates expect them.
fn call(call: &Value, path: &str) -> Result<Value, ApiError> {
    let mut call = call.clone();
    call.as_object_mut().into_iter().for_each(|call| drop(call.remove("index")));
    call["type"] = json!("function");
    call["function"]["arguments"] = arguments(&call["function"]["arguments"], &format!("{path}.function.arguments"))?;
    Ok(call)
}

/// Returns the arguments of an earlier call as a value, which Ollama's API has them as; of none there is an empty text.
///
/// # Errors
/// 400: they are no JSON.
pub fn arguments(given: &Value, path: &str) -> Result<Value, ApiError> {
    if given.is_object() {
        return Ok(given.clone());
    }
    let text = given.as_str().unwrap_or_default();
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    serde_json::from_str(text).map_err(|error| {
        let line = format!("'{path}' is no JSON: {error}; send what the model wrote, or leave out a call that was cut");
        ApiError::bad(path, line).code("invalid_value")
    })
}

/// Whether the assistant's last message is gone on with.
pub const CONTINUE: Field = optional(
    "continue_final_message",
    Kind::Bool,
    "go on with the last message, which must be the assistant's; so by default where it is, unless this is false",
);

/// Whether the prompt ends with what opens an answer.
pub const OPENS_ANSWER: Field = optional(
    "add_generation_prompt",
    Kind::Bool,
    "end the prompt with what opens the next answer; so by default, and where the last message is gone on with",
);

/// Takes out what the assistant has begun to answer: its last message, if that is to be gone on with. The parts of it follow
/// each other directly.
///
/// # Errors
/// 400: two messages of the assistant at the end, or none that is to be gone on with.
pub fn begun(given: &ValidBody, messages: &mut Vec<Value>) -> Result<Option<String>, ApiError> {
    let is_begun = messages.last().is_some_and(|last| last["role"] == "assistant" && last["tool_calls"].is_null());
    match given.get(CONTINUE.name).and_then(Value::as_bool) {
        Some(true) if !is_begun => {
            let line = "'continue_final_message' is set, and the last message is none of the assistant's text; add one";
            return Err(ApiError::bad(CONTINUE.name, line));
        }
        Some(false) => return Ok(None),
        _ if !is_begun => return Ok(None),
        _ => {}
    }
    messages.pop();
    if messages.last().is_some_and(|last| last["role"] == "assistant") {
        let line = "'messages' ends with two messages of the assistant, and one is gone on with; make them one";
        return Err(ApiError::bad("messages", line));
    }
    Ok(Some(match given.list("messages").and_then(|all| all.last()).map(|last| &last["content"]) {
        Some(Value::Array(parts)) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        content => content.and_then(Value::as_str).unwrap_or_default().to_owned(),
    }))
}

/// Returns the text of a content: as it is, or its parts, a line feed between them.
pub fn joined(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

/// Options of making tokens of a conversation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encoding<'b> {
    /// The most tokens; the oldest messages are left out for it.
    pub n_max: Option<usize>,
    /// Read control tokens in messages as such.
    pub parse_special: bool,
    /// Have a thought that the template opens closed at once.
    pub thinks_not: bool,
    /// Text that the assistant has begun to answer with.
    pub begun: &'b str,
}

/// Returns the tokens of a conversation. With `n_max` the oldest messages that are not of the system are left out until
/// no more tokens than that are left.
///
/// # Errors
/// The template refuses the messages.
pub fn encode(text: &ModelText, mut input: ChatInput, encoding: Encoding<'_>) -> Result<Vec<u32>, ApiError> {
    let Encoding { n_max, parse_special, thinks_not, begun } = encoding;
    let closing = if thinks_not { thinking::closing(text, &text.render_chat(&input)?) } else { "" };
    let begun = format!("{closing}{begun}");
    let options = ChatOptions { parse_special, begun: &begun };
    let tokens = text.encode_chat_as(&input, options)?;
    let Some(n_max) = n_max.filter(|&n_max| tokens.len() > n_max) else { return Ok(tokens) };
    loop {
        let oldest = input.messages.iter().position(|message| message["role"] != "system");
        let Some(oldest) = oldest.filter(|&oldest| oldest + 1 < input.messages.len()) else {
            // What remains is refused for its length, with the numbers.
            return Ok(text.encode_chat_as(&input, options)?);
        };
        input.messages.remove(oldest);
        // Results whose call is gone go with it, but for those that are to be answered.
        while oldest + 1 < input.messages.len() && input.messages[oldest]["role"] == "tool" {
            input.messages.remove(oldest);
        }
        // A template may want a user's message first: then the next is left out as well.
        match text.encode_chat_as(&input, options) {
            Ok(tokens) if tokens.len() <= n_max => return Ok(tokens),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_values_or_their_text() {
        let read = |given: Value| arguments(&given, "arguments").map_err(|error| error.code);
        assert_eq!(read(json!({ "a": 1 })), Ok(json!({ "a": 1 })));
        assert_eq!(read(json!("{\"a\": 1}")), Ok(json!({ "a": 1 })));
        assert_eq!((read(json!(" ")), read(Value::Null)), (Ok(json!({})), Ok(json!({}))));
        assert_eq!(read(json!("{")), Err(Some("invalid_value")));
    }
}
