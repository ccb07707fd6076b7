//! Requests for a model that another server answers for: what such a request may ask, the request in that server's terms, and
//! its answer in the pieces that answers have here.

use http::StatusCode;
use ruvllm_backend::{CallPiece, CompletionRequest};
use ruvllm_engine::GrammarSource;
use ruvllm_engine::tools::{CallEvent, Tool, ToolChoice};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::ValidBody;
use crate::reading::AnswerEvent;
use crate::tools::Offer;
use crate::{response_format, thinking, tools};

/// The most calls in one answer of another server.
const CALLS_MAX: usize = 1024;

/// Capabilities that a model of another server lacks here.
pub const MISSING: &[&str] = &[
    "tokens",
    "logits",
    "paged_kv",
    "hidden_states",
    "learning",
    "adapters",
    "grammars",
    "infill",
    "rerank",
    "llamacpp",
    "grpc",
];

/// A field that needs a model of this server.
struct Local {
    name: &'static str,
    /// The capability that it needs.
    needs: &'static str,
    /// Values by which it asks for nothing.
    neutral: &'static [&'static str],
}

const fn local(name: &'static str, needs: &'static str, neutral: &'static [&'static str]) -> Local {
    Local { name, needs, neutral }
}

/// The fields. False, an empty text and an empty list ask for nothing either.
const LOCAL: &[Local] = &[
    local("adapter", "adapters", &[]),
    local("adapters", "adapters", &[]),
    local("lora", "adapters", &[]),
    local("patterns", "learned patterns", &["0"]),
    local("suffix", "tokens", &[]),
    local("stop_token_ids", "tokens", &[]),
    local("min_tokens", "logits", &["0"]),
    local("ignore_eos", "logits", &[]),
    local("parse_special", "tokens", &[]),
    local("truncation", "tokens", &["\"disabled\""]),
    local("id_slot", "a KV cache", &["-1"]),
    local("return_progress", "the progress of its prompt", &[]),
    local("t_max_predict_ms", "tokens as they come", &["0"]),
    local("n_indent", "tokens as they come", &["0"]),
    local("dynatemp_range", "logits", &["0"]),
    local("typical_p", "logits", &["1"]),
    local("top_n_sigma", "logits", &["0", "-1"]),
    local("xtc_probability", "logits", &["0"]),
    local("repeat_penalty", "logits", &["0", "1"]),
    local("dry_multiplier", "logits", &["0"]),
    local("mirostat", "logits", &["0"]),
    local("samplers", "logits", &[]),
    local("reasoning_format", "the text as its model writes it", &["\"auto\"", "\"deepseek\""]),
    local("pooling", "its token vectors", &[]),
    local("dimensions", "its token vectors", &[]),
];

/// Fields that go on to another server as they are.
const PASSED: [&str; 5] = ["top_k", "min_p", "frequency_penalty", "presence_penalty", "logit_bias"];

/// Makes the error of a request for what a model of another server lacks.
pub fn missing(model: &str, what: &str) -> ApiError {
    let line = format!("another server answers for '{model}', which gives no {what}; ask a model that runs here");
    ApiError::new(StatusCode::NOT_IMPLEMENTED, line).code("not_supported")
}

/// Checks that a request asks for nothing that a model of another server lacks.
///
/// # Errors
/// 501, with the first field that does.
pub fn check(given: &ValidBody, model: &str) -> Result<(), ApiError> {
    let asks = |local: &&Local| given.get(local.name).is_some_and(|value| !local.is_neutral(value));
    let found = LOCAL.iter().find(asks).map(|local| (local.name, local.needs));
    let caches = given.get("cache_prompt").is_none_or(|value| *value != false);
    match found.or((!caches).then_some(("cache_prompt", "a KV cache"))) {
        None => Ok(()),
        Some((name, needs)) => {
            let line = format!(
                "'{name}' needs {needs}, and another server answers for '{model}'; leave it out, or ask a model that runs here"
            );
            let error = ApiError::new(StatusCode::NOT_IMPLEMENTED, line).code("not_supported");
            Err(ApiError { param: Some(name.to_owned()), ..error })
        }
    }
}

impl Local {
    fn is_neutral(&self, value: &Value) -> bool {
        let text = match value.as_f64() {
            // 1.0 is 1.
            Some(number) => number.to_string(),
            None => value.to_string(),
        };
        match value {
            Value::Bool(is_set) => !is_set,
            Value::Array(items) if items.is_empty() => true,
            Value::String(text) if text.is_empty() => true,
            _ => self.neutral.contains(&&*text),
        }
    }
}

/// Returns a request in another server's terms, without what it is about: how the answer is chosen, its form, its functions.
///
/// # Errors
/// 400: values that do not go together; 501: a form that only grammars can hold an answer to.
pub fn request(given: &ValidBody, model: &str) -> Result<CompletionRequest, ApiError> {
    let offer = tools::offered(given)?;
    let mut extra: Map<String, Value> = thinking::for_server(given);
    let passed = PASSED.into_iter().filter_map(|name| Some((name.to_owned(), given.get(name)?.clone())));
    extra.extend(passed);
    let seed = given.int("seed").map(|seed| seed as u64);
    let mut request = CompletionRequest {
        temperature: given.number("temperature").map(|temperature| temperature.max(0.0)),
        top_p: given.number("top_p"),
        seed,
        response_format: form(given, model)?,
        extra,
        ..CompletionRequest::default()
    };
    if let Some(offer) = offer {
        offered(offer, &mut request);
    }
    Ok(request)
}

/// Offers functions in a request.
pub fn offered(offer: Offer, request: &mut CompletionRequest) {
    let Offer { tools, choice, is_parallel } = offer;
    request.tools = tools.iter().map(definition).collect();
    request.tool_choice = match choice {
        ToolChoice::Auto => None,
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Named(name) => Some(json!({ "type": "function", "function": { "name": name } })),
    };
    if !is_parallel {
        request.extra.insert("parallel_tool_calls".to_owned(), json!(false));
    }
}

fn definition(tool: &Tool) -> Value {
    let mut definition = tool.definition();
    if tool.is_strict {
        definition["function"]["strict"] = json!(true);
    }
    definition
}

/// Returns the form of the answer as OpenAI's API asks for it.
fn form(given: &ValidBody, model: &str) -> Result<Option<Value>, ApiError> {
    Ok(match response_format::source(given)? {
        None => None,
        Some((_, GrammarSource::JsonObject)) => Some(json!({ "type": "json_object" })),
        Some((_, GrammarSource::JsonSchema(schema))) => {
            // A name has to be there, and says nothing.
            let format = json!({ "name": "answer", "schema": schema, "strict": true });
            Some(json!({ "type": "json_schema", "json_schema": format }))
        }
        Some((field, _)) => {
            let error = missing(model, "answers by a grammar");
            return Err(ApiError { param: Some(field.to_owned()), ..error });
        }
    })
}

/// Returns a conversation as another server takes it: arguments of calls are texts there.
pub fn conversation(mut messages: Vec<Value>) -> Vec<Value> {
    for message in &mut messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let arguments = &mut call["function"]["arguments"];
            if !arguments.is_string() {
                *arguments = arguments.to_string().into();
            }
        }
    }
    messages
}

/// Calls of an answer that another server writes, as its pieces come.
#[derive(Debug, Default)]
pub struct Calls {
    /// That server's number of each.
    numbers: Vec<usize>,
    /// The call that is open.
    open: Option<usize>,
}

impl Calls {
    /// Takes a piece of a call, and returns what it is for an answer here. Calls beyond a thousand are left out.
    pub fn take(&mut self, piece: CallPiece) -> Vec<AnswerEvent> {
        let CallPiece { index: number, name, arguments, .. } = piece;
        let mut events: Vec<CallEvent> = Vec::new();
        let index = match self.numbers.iter().position(|known| *known == number) {
            Some(index) => index,
            None if self.numbers.len() == CALLS_MAX => return Vec::new(),
            None => {
                events.extend(self.close());
                self.numbers.push(number);
                let index = self.numbers.len() - 1;
                self.open = Some(index);
                events.push(CallEvent::Begin { index, name: name.unwrap_or_default() });
                index
            }
        };
        // More of a call that is closed has no place.
        if !arguments.is_empty() && self.open == Some(index) {
            events.push(CallEvent::Arguments { index, json: arguments });
        }
        events.into_iter().map(AnswerEvent::Said).collect()
    }

    /// Ends the call that is open.
    pub fn finish(&mut self) -> Option<AnswerEvent> {
        self.close().map(AnswerEvent::Said)
    }

    fn close(&mut self) -> Option<CallEvent> {
        self.open.take().map(|index| CallEvent::End { index })
    }

    /// Returns whether something was called.
    pub fn has_calls(&self) -> bool {
        !self.numbers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(fields: Value) -> ValidBody {
        ValidBody::from(fields.as_object().cloned().expect("an object"))
    }

    #[test]
    fn what_needs_a_model_of_this_server_is_refused_by_name() {
        let refused =
            |fields: Value| check(&given(fields), "m").err().map(|error| (error.status.as_u16(), error.param));
        for neutral in [
            json!({ "temperature": 0.5, "top_k": 3, "stop": ["a"] }),
            json!({ "mirostat": 0, "repeat_penalty": 1.0, "lora": [], "adapter": "", "ignore_eos": false }),
            json!({ "cache_prompt": true, "truncation": "disabled", "id_slot": -1, "min_tokens": null }),
        ] {
            assert_eq!(refused(neutral.clone()), None, "{neutral}");
        }
        for (name, value) in [
            ("adapter", json!("poet")),
            ("mirostat", json!(2)),
            ("repeat_penalty", json!(1.1)),
            ("cache_prompt", json!(false)),
            ("truncation", json!("auto")),
            ("stop_token_ids", json!([3])),
        ] {
            assert_eq!(refused(json!({ name: value })), Some((501, Some(name.to_owned()))));
        }
    }

    #[test]
    fn a_request_is_said_in_the_words_of_openai() {
        let body = given(json!({
            "temperature": -1, "seed": 7, "top_k": 5, "reasoning_effort": "low",
            "tools": [{ "name": "add", "description": "adds", "input_schema": { "type": "object" } }],
            "tool_choice": { "type": "any", "disable_parallel_tool_use": true },
            "output_format": { "type": "json_schema", "schema": { "type": "string" } },
        }));
        let request = request(&body, "m").expect("a request");
        assert_eq!((request.temperature, request.seed), (Some(0.0), Some(7)));
        assert_eq!(request.tools[0]["function"]["parameters"], json!({ "type": "object" }));
        assert_eq!(request.tool_choice, Some(json!("required")));
        let schema = request.response_format.map(|format| format["json_schema"]["schema"].clone());
        assert_eq!(schema, Some(json!({ "type": "string" })));
        assert_eq!(
            Value::Object(request.extra),
            json!({
                "top_k": 5, "reasoning_effort": "low", "parallel_tool_calls": false,
                "chat_template_kwargs": { "enable_thinking": true },
            })
        );
        let error = super::request(&given(json!({ "guided_regex": "a+" })), "m").expect_err("no grammars there");
        assert_eq!((error.status.as_u16(), error.code), (501, Some("not_supported")));
    }

    #[test]
    fn calls_follow_each_other_whatever_their_numbers_are() {
        let piece = |index: usize, name: Option<&str>, arguments: &str| CallPiece {
            index,
            id: None,
            name: name.map(str::to_owned),
            arguments: arguments.to_owned(),
        };
        let mut calls = Calls::default();
        let mut events = calls.take(piece(7, Some("a"), "{"));
        events.extend(calls.take(piece(7, None, "}")));
        events.extend(calls.take(piece(usize::MAX, Some("b"), "")));
        events.extend(calls.take(piece(7, None, "late")));
        events.extend(calls.finish());
        let begin = |index, name: &str| CallEvent::Begin { index, name: name.to_owned() };
        let more = |json: &str| CallEvent::Arguments { index: 0, json: json.to_owned() };
        let expected = [
            begin(0, "a"),
            more("{"),
            more("}"),
            CallEvent::End { index: 0 },
            begin(1, "b"),
            CallEvent::End { index: 1 },
        ];
        assert_eq!(events, expected.map(AnswerEvent::Said));
        assert!(calls.has_calls());
    }

    #[test]
    fn arguments_are_texts_there() {
        let call = json!({ "id": "c", "type": "function", "function": { "name": "a", "arguments": { "b": 1 } } });
        let messages = conversation(vec![json!({ "role": "assistant", "content": "", "tool_calls": [call] })]);
        assert_eq!(messages[0]["tool_calls"][0]["function"]["arguments"], "{\"b\":1}");
        let plain = json!({ "role": "user", "content": "a" });
        assert_eq!(conversation(vec![plain.clone()]), [plain]);
    }
}
