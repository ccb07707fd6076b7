//! `/v1/responses`, as far as it needs no memory of earlier ones.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::{FinishReason, GenerationSummary};
use serde_json::{Value, json};

use super::chat::prompt_max;
use super::messages::{encode, joined};
use super::now_s;
use crate::app::{Answer, Call};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{Asked, Choices, MODEL, PRIORITY, Piece, STREAM, TIMEOUT, TRUNCATION, USER, offload};
use crate::stream::{self, Events, Gone};
use crate::structure::{self, TEXT_FORMAT};

const PART: &[Field] = &[
    required("type", Kind::Word(&["input_text", "output_text"]), "the model reads text only"),
    required("text", Kind::Text, "the text"),
    optional("annotations", Kind::List(&Kind::Any, 0, 0), "nothing, in an answer that is sent back"),
    optional("logprobs", Kind::List(&Kind::Any, 0, 0), "nothing, in an answer that is sent back"),
];

const ITEM: &[Field] = &[
    optional("type", Kind::Word(&["message"]), "messages are the only items"),
    required("role", Kind::Word(&["system", "developer", "user", "assistant"]), "who says it; developer is system"),
    required("content", Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(PART), 0, 4096)]), "what is said"),
    optional("id", Kind::Text, "a label, in an answer that is sent back"),
    optional(
        "status",
        Kind::Word(&["completed", "incomplete", "in_progress"]),
        "a label, in an answer that is sent back",
    ),
    optional("phase", Kind::Word(&["commentary", "final_answer"]), "a label, in an answer that is sent back"),
];

const TEXT: &[Field] = &[optional("format", TEXT_FORMAT, "the form of the answer")];

const STREAM_OPTIONS: &[Field] =
    &[optional("include_obfuscation", Kind::Only("false", "events are not padded"), "pad events")];

/// What a request may say beside how tokens are chosen.
pub(super) const FIELDS: &[Field] = &[
    required(
        "input",
        Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(ITEM), 1, 4096)]),
        "a text, or a conversation",
    ),
    optional("instructions", Kind::Text, "what the model is told before the conversation"),
    optional(
        "max_output_tokens",
        Kind::Int(1, 1 << 24),
        "the most tokens to write; what does not fit the context is not written",
    ),
    optional("text", Kind::Object(TEXT), "the form of the answer"),
    optional(
        "store",
        Kind::Only("false", "the server stores no answers"),
        "keep the answer; left out, it is not kept either",
    ),
    optional("background", Kind::Only("false", "the answer is sent when it is there"), "answer later"),
    optional("include", Kind::List(&Kind::Any, 0, 0), "more that an answer may hold; there is nothing"),
    optional("tools", Kind::List(&Kind::Any, 0, 0), "functions that the model may call; none are"),
    optional("tool_choice", Kind::Word(&["none", "auto"]), "whether it may call one"),
    optional("parallel_tool_calls", Kind::Bool, "whether several calls may come in one answer"),
    optional("service_tier", Kind::Word(&["auto", "default"]), "there is one tier"),
    optional("metadata", Kind::Map(&Kind::Text), "labels that come back with the answer"),
    optional("stream_options", Kind::Object(STREAM_OPTIONS), "what a stream holds beside the answer"),
    MODEL,
    STREAM,
    TRUNCATION,
    TIMEOUT,
    PRIORITY,
    USER,
];

/// Answers an input.
pub(super) fn answer(call: Call) -> Answer {
    Box::pin(async move {
        let mut asked = Asked::read(&call, call.given.count("max_output_tokens"))?;
        asked.request.grammar = structure::grammar(&call).await?;
        let (text, input) = (call.server.service.text().clone(), input(&call));
        let n_max = asked.is_truncated.then(|| prompt_max(&call, &asked.request));
        let prompt = offload(move || encode(&text, input, n_max)).await?;
        let choices = Choices::start(&call, asked.requests(&[prompt]))?;
        match asked.is_stream {
            true => Ok(stream::respond(|events| write(call, asked, choices, events))),
            false => {
                let summaries = choices.collect().await?;
                Ok(json_response(StatusCode::OK, &object(&call, &asked, Some(&summaries[0]))))
            }
        }
    })
}

/// Returns the conversation as the chat template reads it.
fn input(call: &Call) -> ChatInput {
    let message = |role: &str, content: String| json!({ "role": if role == "developer" { "system" } else { role }, "content": content });
    let instructions = call.given.text("instructions").map(|text| message("system", text.to_owned()));
    let mut messages: Vec<Value> = instructions.into_iter().collect();
    match call.given.get("input") {
        Some(Value::Array(items)) => messages.extend(items.iter().map(|item| {
            let role = item["role"].as_str().unwrap_or_default();
            message(role, joined(&item["content"]))
        })),
        input => messages.push(message("user", input.and_then(Value::as_str).unwrap_or_default().to_owned())),
    }
    ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() }
}

/// Returns a response: as it is when it is over, or before.
fn object(call: &Call, asked: &Asked, summary: Option<&GenerationSummary>) -> Value {
    let (given, sampling) = (&call.given, &asked.request.sampling);
    let is_cut = summary.is_some_and(|summary| summary.finish_reason == FinishReason::Length);
    let or = |name: &str, other: Value| given.get(name).cloned().unwrap_or(other);
    json!({
        "id": format!("resp_{}", call.id),
        "object": "response",
        "created_at": now_s(),
        "status": match summary { None => "in_progress", Some(_) if is_cut => "incomplete", Some(_) => "completed" },
        "error": null,
        "incomplete_details": is_cut.then(|| json!({ "reason": "max_output_tokens" })),
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "model": call.server.options.model,
        "output": summary.map(|summary| item(call, Some(summary))).into_iter().collect::<Vec<_>>(),
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": null,
        "store": false,
        "temperature": sampling.temperature,
        "text": or("text", json!({ "format": { "type": "text" } })),
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": [],
        "top_p": sampling.top_p,
        "truncation": or("truncation", json!("disabled")),
        "usage": summary.map(usage),
        "user": given.get("user"),
        "metadata": or("metadata", json!({})),
    })
}

fn usage(summary: &GenerationSummary) -> Value {
    let (n_input, n_output) = (summary.prompt_tokens.len(), summary.tokens.len());
    json!({
        "input_tokens": n_input,
        "input_tokens_details": { "cached_tokens": summary.timings.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": n_output,
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": n_input + n_output,
    })
}

/// Returns the message of a response, when it is over or before.
fn item(call: &Call, summary: Option<&GenerationSummary>) -> Value {
    json!({
        "type": "message",
        "id": item_id(call),
        "status": match summary.map(|summary| summary.finish_reason) {
            None => "in_progress",
            Some(FinishReason::Length) => "incomplete",
            Some(_) => "completed",
        },
        "role": "assistant",
        "content": summary.map(|summary| part(&summary.text)).into_iter().collect::<Vec<_>>(),
    })
}

fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn item_id(call: &Call) -> String {
    format!("msg_{}", call.id)
}

/// Sends events with their numbers.
struct Numbered {
    events: Arc<Events>,
    n_sent: u64,
}

impl Numbered {
    async fn send(&mut self, name: &str, mut event: Value) -> Result<(), Gone> {
        event["type"] = json!(name);
        event["sequence_number"] = json!(self.n_sent);
        self.n_sent += 1;
        self.events.send_named(name, &event).await
    }
}

/// Writes the answer in pieces.
async fn write(call: Call, asked: Asked, mut choices: Choices, events: Arc<Events>) -> Result<(), Gone> {
    let mut out = Numbered { events, n_sent: 0 };
    let place = || json!({ "item_id": item_id(&call), "output_index": 0, "content_index": 0 });
    let with = |name: &str, value: Value| {
        let mut event = place();
        event[name] = value;
        event
    };
    for name in ["response.created", "response.in_progress"] {
        out.send(name, json!({ "response": object(&call, &asked, None) })).await?;
    }
    out.send("response.output_item.added", json!({ "output_index": 0, "item": item(&call, None) })).await?;
    out.send("response.content_part.added", with("part", part(""))).await?;
    let delta = |text: String| {
        let mut event = with("delta", json!(text));
        event["logprobs"] = json!([]);
        event
    };
    loop {
        match choices.next().await {
            Ok(Some((_, Piece::Token(token)))) => {
                if !token.text.is_empty() {
                    out.send("response.output_text.delta", delta(token.text)).await?;
                }
            }
            Ok(Some((_, Piece::End(rest, summary)))) => {
                if !rest.is_empty() {
                    out.send("response.output_text.delta", delta(rest)).await?;
                }
                let mut done = with("text", json!(summary.text));
                done["logprobs"] = json!([]);
                out.send("response.output_text.done", done).await?;
                out.send("response.content_part.done", with("part", part(&summary.text))).await?;
                let item = item(&call, Some(&summary));
                out.send("response.output_item.done", json!({ "output_index": 0, "item": item })).await?;
                let is_cut = summary.finish_reason == FinishReason::Length;
                let name = if is_cut { "response.incomplete" } else { "response.completed" };
                out.send(name, json!({ "response": object(&call, &asked, Some(&summary)) })).await?;
            }
            Ok(None) => return Ok(()),
            Err(ApiError { message, code, param, .. }) => {
                let error = json!({ "code": code, "message": message, "param": param });
                return out.send("error", error).await;
            }
        }
    }
}
