//! `/v1/responses`: answers to inputs, and the number of tokens that they would have.

mod stream;
use axum::http::StatusCode;
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, joined as joined_tables, optional, required, unheeded};
use ruvllm_api::generation::{MODEL, PARSE_SPECIAL, PRIORITY, STREAM, TIMEOUT, TRUNCATION, USER};
use ruvllm_api::learning::PATTERNS;
use ruvllm_api::messages::{PARSED, PARSED_ARGUMENTS, joined};
use ruvllm_api::openai::{VERBOSITY, now_s};
use ruvllm_api::reading::{ToolCall, Whole};
use ruvllm_api::response_format::TEXT_FORMAT;
use ruvllm_api::thinking;
use ruvllm_api::timings::TIMINGS_PER_TOKEN;
use ruvllm_api::tools::call_id;
use ruvllm_engine::FinishReason;
use ruvllm_engine::tools::ToolUse;
use ruvllm_witness::decimal;
use serde_json::{Value, json};

use crate::call::answer::{Reading, Summary};
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::prompt::{Conversation, Prompt, prompt};
use crate::call::response::json_response;
use crate::call::tools::read_tools;
use crate::call::{Call, HandlerFuture};
use crate::handlers::openai::stored::{self, Keeping};

const PART: &[Field] = &[
    required("type", Kind::Word(&["input_text", "output_text"]), "the model reads text only"),
    required("text", Kind::Text, "the text"),
    PARSED,
    optional("annotations", Kind::List(&Kind::Any, 0, 0), "nothing, in an answer that is sent back"),
    optional("logprobs", Kind::List(&Kind::Any, 0, 0), "nothing, in an answer that is sent back"),
];

const MESSAGE: &[Field] = &[
    optional("type", Kind::Word(&["message"]), "a message; so by default"),
    required("role", Kind::Word(&["system", "developer", "user", "assistant"]), "who says it; developer is system"),
    required("content", Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(PART), 0, 4096)]), "what is said"),
    ID,
    STATUS,
    optional("phase", Kind::Word(&["commentary", "final_answer"]), "a label, in an answer that is sent back"),
];

const STATUS: Field = optional(
    "status",
    Kind::Word(&["completed", "incomplete", "in_progress"]),
    "a label, in an answer that is sent back",
);
const ID: Field = optional("id", Kind::Text, "a label, in an answer that is sent back");

const FUNCTION_CALL: &[Field] = &[
    required("type", Kind::Word(&["function_call"]), "a call that the model made"),
    required("call_id", Kind::Text, "what its output refers to"),
    required("name", Kind::Text, "the function's name"),
    required("arguments", Kind::Text, "its arguments, as JSON"),
    PARSED_ARGUMENTS,
    ID,
    STATUS,
];

const OUTPUT: &[Field] = &[
    required("type", Kind::Word(&["function_call_output"]), "what a function returned"),
    required("call_id", Kind::Text, "the call that it answers"),
    required("output", Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(PART), 0, 4096)]), "what it returned"),
    ID,
    STATUS,
];

/// What a model thought, in an answer that is sent back.
const REASONING: &[Field] = &[
    required("type", Kind::Word(&["reasoning"]), "what the model thought"),
    optional(
        "content",
        Kind::List(&Kind::Any, 0, 4096),
        "its text; the model reads it if its template has a place for it",
    ),
    unheeded("summary", Kind::List(&Kind::Any, 0, 4096), "what was said of it"),
    unheeded("encrypted_content", Kind::Text, "what only its writer can read"),
    ID,
    STATUS,
];

/// An item of a conversation.
pub(super) const ITEM: Kind = Kind::Tagged(&ITEMS);

const ITEMS: [(&str, &[Field]); 4] = [
    ("message", MESSAGE),
    ("function_call", FUNCTION_CALL),
    ("function_call_output", OUTPUT),
    ("reasoning", REASONING),
];

const REFERENCE: &[Field] = &[
    required("type", Kind::Word(&["item_reference"]), "an item of a kept answer, or of what it was made from"),
    required("id", Kind::Text, "its id"),
];

/// An item of a request: one that is kept may be named instead of sent.
const INPUT_ITEM: Kind = Kind::Tagged(&INPUT_ITEMS);

const INPUT_ITEMS: [(&str, &[Field]); ITEMS.len() + 1] = joined_tables(&ITEMS, &[("item_reference", REFERENCE)]);

const TEXT: &[Field] = &[optional("format", TEXT_FORMAT, "the form of the answer"), VERBOSITY];

const STREAM_OPTIONS: &[Field] =
    &[optional("include_obfuscation", Kind::Only("false", "events are not padded"), "pad events")];

/// What a request may say that its prompt depends on.
pub(super) const PROMPT: &[Field] = &[
    optional(
        "input",
        Kind::Either(&[Kind::Text, Kind::List(&INPUT_ITEM, 1, 4096)]),
        "a text, or a conversation with calls and what they returned; it may be left out where there is an earlier one",
    ),
    stored::PREVIOUS,
    stored::CONVERSATION,
    optional("instructions", Kind::Text, "what the model is told before the conversation"),
    optional(
        "max_output_tokens",
        Kind::Int(1, 1 << 24),
        "the most tokens to write; what does not fit the context is not written",
    ),
    optional("text", Kind::Object(TEXT), "the form of the answer"),
    optional(
        "reasoning",
        Kind::Object(thinking::REASONING),
        "how much a model thinks, where its template asks for that",
    ),
    optional("chat_template_kwargs", Kind::Map(&Kind::Any), "more variables for the model's chat template"),
    MODEL,
    ADAPTER,
    ADAPTERS,
    PATTERNS,
    TRUNCATION,
    PARSE_SPECIAL,
    TIMEOUT,
    USER,
];

/// What a request may say beside that and how tokens are chosen.
pub(super) const FIELDS: &[Field] = &[
    stored::STORE,
    optional("background", Kind::Only("false", "the answer is sent when it is there"), "answer later"),
    unheeded("include", Kind::List(&Kind::Text, 0, 64), "more that an answer may hold; there is nothing"),
    optional("metadata", Kind::Map(&Kind::Text), "labels that come back with the answer"),
    optional("stream_options", Kind::Object(STREAM_OPTIONS), "what a stream holds beside the answer"),
    TIMINGS_PER_TOKEN,
    STREAM,
    PRIORITY,
];

/// A request whose prompt is known.
struct Prepared {
    asked: ParsedRequest,
    tool_use: Option<ToolUse>,
    keeping: Keeping,
    prompt: Prompt,
}

/// Makes the prompt of a request.
///
/// # Errors
/// Values that do not go together, an earlier answer that is not kept, or messages that the template refuses.
async fn prepare(call: &mut Call) -> Result<Prepared, ApiError> {
    let keeping = Keeping::begin(call).await?;
    let mut asked = ParsedRequest::read(call, call.body.count("max_output_tokens"))?;
    let tool_use = read_tools(call, &mut asked.request).await?;
    let conversation = Conversation { messages: messages(call), begun: None, opens_answer: true };
    let prompt = prompt(call, Some(&asked), tool_use.as_ref(), conversation).await?;
    Ok(Prepared { asked, tool_use, keeping, prompt })
}

/// Counts the tokens of the prompt that an input has.
pub(super) fn count(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        let n = prepare(&mut call).await?.prompt.into_tokens(&call)?.len();
        Ok(json_response(StatusCode::OK, &json!({ "object": "response.input_tokens", "input_tokens": n })))
    })
}

/// Answers an input.
pub(super) fn answer(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        let mut prepared = prepare(&mut call).await?;
        let Prepared { asked, tool_use, keeping, prompt } = &mut prepared;
        call.begin_thinking(&mut asked.request, prompt)?;
        let choices = Choices::start(&call, asked, vec![prompt.clone()])?;
        match asked.is_stream {
            true => Ok(crate::call::stream::respond(&crate::call::stream::EVENTS, |events| {
                stream::write(call, prepared, choices, events)
            })),
            false => {
                let summary = &choices.collect().await?[0];
                let reading = Reading::new(tool_use.as_ref(), asked.request.thinking);
                let Whole { thought, said, calls } = reading.whole(summary);
                let status = status(summary);
                let mut output = Vec::new();
                if !thought.is_empty() && thinking::is_told(&call.body) {
                    output.push(reasoning(&call, status, Some(&thought)));
                }
                if calls.is_empty() || !said.is_empty() {
                    output.push(message(&call, status, Some(&said)));
                }
                let call_item = |(i, called)| function_call(&call, i, status, called);
                output.extend(calls.iter().enumerate().map(call_item));
                let mut response = object(&call, asked, Some((summary, output)));
                keeping.keep(&call, &mut response).await;
                Ok(json_response(StatusCode::OK, &response))
            }
        }
    })
}

/// Returns the conversation as the chat template reads it.
fn messages(call: &Call) -> Vec<Value> {
    let message = |role: &str, content: String| json!({ "role": if role == "developer" { "system" } else { role }, "content": content });
    let instructions = call.body.text("instructions").map(|text| message("system", text.to_owned()));
    let mut messages: Vec<Value> = instructions.into_iter().collect();
    match call.body.get("input") {
        Some(Value::Array(items)) => {
            for item in items {
                match item["type"].as_str() {
                    Some("function_call") => add_call(&mut messages, item),
                    // It belongs to what the assistant says next.
                    Some("reasoning") => messages.push(json!({
                        "role": "assistant",
                        "content": "",
                        "reasoning_content": joined(&item["content"]),
                    })),
                    Some("function_call_output") => messages.push(json!({
                        "role": "tool",
                        "tool_call_id": item["call_id"],
                        "content": joined(&item["output"]),
                    })),
                    _ => add_message(
                        &mut messages,
                        message(item["role"].as_str().unwrap_or_default(), joined(&item["content"])),
                    ),
                }
            }
        }
        input => messages.push(message("user", input.and_then(Value::as_str).unwrap_or_default().to_owned())),
    }
    messages
}

/// Adds a message; what the assistant says goes to what it thought in front of it.
fn add_message(messages: &mut Vec<Value>, message: Value) {
    let is_thought = |last: &Value| last["content"] == "" && last["reasoning_content"].is_string();
    match messages.last_mut().filter(|last| message["role"] == "assistant" && is_thought(last)) {
        Some(last) => last["content"] = message["content"].clone(),
        None => messages.push(message),
    }
}

/// Adds a call to what the assistant said in front of it, or to its calls.
fn add_call(messages: &mut Vec<Value>, item: &Value) {
    // Those of a kept answer may have been cut; a conversation goes on behind it.
    let arguments = item["arguments"].as_str().and_then(|text| serde_json::from_str(text).ok());
    let arguments: Value = arguments.unwrap_or_else(|| item["arguments"].clone());
    let function = json!({ "name": item["name"], "arguments": arguments });
    let call = json!({ "id": item["call_id"], "type": "function", "function": function });
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    let Some(last) = messages.last_mut() else { return };
    match last["tool_calls"].as_array_mut() {
        Some(calls) => calls.push(call),
        None => last["tool_calls"] = json!([call]),
    }
}

/// Returns a response: as it is before, or when it is over, with its items.
fn object(call: &Call, asked: &ParsedRequest, end: Option<(&Summary, Vec<Value>)>) -> Value {
    let given = &call.body;
    // Another server has defaults of its own.
    let sampling = call.model.engine().map(|_| &asked.request.sampling);
    let chosen = |name: &str, own: Option<f32>| own.or_else(|| given.number(name)).map(decimal);
    let (summary, output) = end.map_or((None, Vec::new()), |(summary, output)| (Some(summary), output));
    let is_cut = summary.is_some_and(|summary| summary.finish_reason == FinishReason::Length);
    let or = |name: &str, other: Value| given.get(name).cloned().unwrap_or(other);
    json!({
        "id": format!("resp_{}", call.id),
        "object": "response",
        "created_at": now_s(),
        "status": summary.map_or("in_progress", status),
        "error": null,
        "incomplete_details": is_cut.then(|| json!({ "reason": "max_output_tokens" })),
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "model": &*call.model_name,
        "output": output,
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": given.get("previous_response_id"),
        "conversation": given.get("conversation"),
        "store": given.flag("store", true),
        "temperature": chosen("temperature", sampling.map(|sampling| sampling.temperature)),
        "text": or("text", json!({ "format": { "type": "text" } })),
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])),
        "top_p": chosen("top_p", sampling.map(|sampling| sampling.top_p)),
        "truncation": json!(if asked.is_truncated { "auto" } else { "disabled" }),
        "usage": summary.map(usage),
        "user": given.get("user"),
        "metadata": or("metadata", json!({})),
    })
}

fn usage(summary: &Summary) -> Value {
    let (n_input, n_output) = (summary.n_prompt(), summary.n_answer());
    json!({
        "input_tokens": n_input,
        "input_tokens_details": { "cached_tokens": summary.timings.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": n_output,
        "output_tokens_details": { "reasoning_tokens": summary.n_thought },
        "total_tokens": n_input.saturating_add(n_output),
    })
}

fn status(summary: &Summary) -> &'static str {
    if summary.finish_reason == FinishReason::Length { "incomplete" } else { "completed" }
}

/// Returns the message of a response, with its text when it is over.
fn message(call: &Call, status: &str, text: Option<&str>) -> Value {
    json!({
        "type": "message",
        "id": format!("msg_{}", call.id),
        "status": status,
        "role": "assistant",
        "content": text.map(part).into_iter().collect::<Vec<_>>(),
    })
}

/// Returns what the model thought, with its text when it is over.
fn reasoning(call: &Call, status: &str, text: Option<&str>) -> Value {
    json!({
        "type": "reasoning",
        "id": format!("rs_{}", call.id),
        "status": status,
        "summary": [],
        "content": text.map(thought_part).into_iter().collect::<Vec<_>>(),
    })
}

fn thought_part(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}

/// Returns the `i`th call of a response.
fn function_call(call: &Call, i: usize, status: &str, called: &ToolCall) -> Value {
    json!({
        "type": "function_call",
        "id": call_id(&call.id, "fc", 0, i),
        "call_id": call_id(&call.id, "call", 0, i),
        "name": called.name,
        "arguments": called.arguments,
        "status": status,
    })
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}
