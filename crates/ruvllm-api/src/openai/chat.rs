//! `/v1/chat/completions`: its table, and its answers whole and in pieces.

use ruvllm_engine::FinishReason;
use ruvllm_engine::tools::CallEvent;
use serde_json::{Value, json};

use super::{HINTS, VERBOSITY, finish_json};
use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, required, unheeded};
use crate::generation::{GENERATION, N_TOKENS};
use crate::learning::PATTERNS;
use crate::llamacpp::{ALIKE, OF_CHATS};
use crate::messages;
use crate::reading::{AnswerEvent, ToolCall, Whole};
use crate::response_format::RESPONSE_FORMAT;
use crate::sampling::SAMPLING;
use crate::thinking::{self, EFFORTS};
use crate::timings::TIMINGS_PER_TOKEN;
use crate::tools::{self, call_id};

/// All fields of a request, in groups.
pub const TABLE: &[&[Field]] = &[FIELDS, tools::CHAT, SAMPLING, GENERATION, HINTS, ALIKE, OF_CHATS];

/// Fields of a chat beside those of how the answer is written.
const FIELDS: &[Field] = &[
    required("messages", messages::MESSAGES, "the conversation; one that ends with the assistant is gone on with"),
    optional("max_completion_tokens", N_TOKENS, "the newer name of max_tokens"),
    optional(
        "chat_template_kwargs",
        Kind::Map(&Kind::Any),
        "more variables for the model's chat template, such as enable_thinking",
    ),
    optional("metadata", Kind::Map(&Kind::Text), "labels for the server's log; the answer does not depend on them"),
    unheeded("store", Kind::Bool, "the server stores no answers"),
    optional("modalities", Kind::Only("[\"text\"]", "the model writes text only"), "what the answer is made of"),
    VERBOSITY,
    TIMINGS_PER_TOKEN,
    optional("logprobs", Kind::Bool, "tell the log-probability of each token"),
    optional("top_logprobs", Kind::Int(0, 20), "and those of this many of the likeliest ones"),
    optional("reasoning_effort", Kind::Word(EFFORTS), "how much a model thinks, where its template asks for that"),
    optional("reasoning", Kind::Object(thinking::REASONING), "the same, in an object"),
    thinking::ENABLE,
    thinking::BUDGET,
    thinking::FORMAT,
    thinking::INCLUDE,
    messages::CONTINUE,
    messages::OPENS_ANSWER,
    RESPONSE_FORMAT,
    PATTERNS,
];

/// Reads `max_completion_tokens`, which may not contradict its older name.
///
/// # Errors
/// 400: it does.
pub fn max_tokens(given: &ValidBody) -> Result<Option<usize>, ApiError> {
    let newer = given.count("max_completion_tokens");
    match (newer, given.count("max_tokens")) {
        (Some(newer), Some(older)) if newer != older => {
            let line = format!("'max_completion_tokens' is {newer} and 'max_tokens' is {older}; send one of them");
            Err(ApiError::bad("max_completion_tokens", line))
        }
        _ => Ok(newer),
    }
}

/// Reads of how many tokens log-probabilities are told beside those of the answer; none unless they are asked for.
///
/// # Errors
/// 400: a number of them without the flag.
pub fn n_logprobs(given: &ValidBody) -> Result<Option<usize>, ApiError> {
    match (given.is_set("logprobs"), given.count("top_logprobs")) {
        (true, n) => Ok(Some(n.unwrap_or(0))),
        (false, Some(n)) if n > 0 => {
            Err(ApiError::bad("top_logprobs", "'top_logprobs' needs 'logprobs'; set that to true as well"))
        }
        (false, _) => Ok(None),
    }
}

/// An answer among those to a request.
#[derive(Clone, Copy, Debug)]
pub struct ChatChoice<'a> {
    /// The request.
    pub given: &'a ValidBody,
    /// Number of the request, of which ids of calls are made.
    pub id: &'a str,
    /// Place of the answer among those to the request.
    pub index: usize,
}

impl ChatChoice<'_> {
    /// Returns a whole answer as a message. `has_tools`: the request has functions that it may call.
    pub fn message(&self, whole: &Whole, has_tools: bool) -> Value {
        let Whole { thought, said, calls } = whole;
        let mut message = json!({ "role": "assistant", "content": said, "refusal": null });
        if said.is_empty() && (has_tools || !calls.is_empty()) {
            message["content"] = Value::Null;
        }
        if !thought.is_empty() && thinking::is_told(self.given) {
            message["reasoning_content"] = json!(thought);
        }
        if !calls.is_empty() {
            let of_call = |(index, called): (usize, &ToolCall)| {
                json!({
                    "id": call_id(self.id, "call", self.index, index),
                    "type": "function",
                    "function": { "name": called.name, "arguments": called.arguments },
                })
            };
            message["tool_calls"] = calls.iter().enumerate().map(of_call).collect();
        }
        message
    }

    /// Returns a piece of an answer as the change it is; none if nobody is told of it.
    pub fn delta(&self, event: AnswerEvent) -> Option<Value> {
        let event = match event {
            AnswerEvent::Thought(text) => {
                return thinking::is_told(self.given).then(|| json!({ "reasoning_content": text }));
            }
            AnswerEvent::Said(event) => event,
        };
        Some(match event {
            CallEvent::Text(text) => json!({ "content": text }),
            CallEvent::Begin { index, name } => json!({ "tool_calls": [{
                "index": index,
                "id": call_id(self.id, "call", self.index, index),
                "type": "function",
                "function": { "name": name, "arguments": "" },
            }] }),
            CallEvent::Arguments { index, json } => {
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": json } }] })
            }
            CallEvent::End { .. } => return None,
        })
    }
}

/// Returns the change that begins a streamed answer: nothing or an empty text.
pub fn begin(content: Value) -> Value {
    json!({ "role": "assistant", "content": content, "refusal": null })
}

/// Returns why an answer ended; one with calls that was not cut, for these.
pub fn finish(reason: FinishReason, has_calls: bool) -> &'static str {
    match reason {
        FinishReason::Stop if has_calls => "tool_calls",
        reason => finish_json(reason),
    }
}
