//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::{GenerateRequest, GenerationSummary};
use serde_json::{Map, Value, json};

use super::{finish_json, head, logprobs, messages, usage_json};
use crate::app::{Answer, Call};
use crate::error::{ApiError, Shape, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{Asked, Choices, Piece, Usage, offload};
use crate::stream::{self, Events, Gone};
use crate::structure::{self, RESPONSE_FORMAT};

/// What a chat may say beside how the answer is written.
pub(super) const FIELDS: &[Field] = &[
    required("messages", messages::MESSAGES, "the conversation"),
    optional("max_completion_tokens", Kind::Int(0, 1 << 24), "the newer name of max_tokens"),
    optional(
        "chat_template_kwargs",
        Kind::Map(&Kind::Any),
        "more variables for the model's chat template, such as enable_thinking",
    ),
    optional("metadata", Kind::Map(&Kind::Text), "labels for the server's log; the answer does not depend on them"),
    optional("store", Kind::Only("false", "the server stores no answers"), "keep the answer"),
    optional("service_tier", Kind::Word(&["auto", "default"]), "there is one tier"),
    optional("logprobs", Kind::Bool, "tell the log-probability of each token"),
    optional("top_logprobs", Kind::Int(0, 20), "and those of this many of the likeliest ones"),
    RESPONSE_FORMAT,
    optional("tools", Kind::List(&Kind::Any, 0, 0), "functions that the model may call; none are"),
    optional("tool_choice", Kind::Word(&["none", "auto"]), "whether it may call one"),
    optional("parallel_tool_calls", Kind::Bool, "whether several calls may come in one answer"),
];

/// Answers a conversation.
pub(super) fn answer(call: Call) -> Answer {
    Box::pin(async move {
        let mut asked = Asked::read(&call, max_tokens(&call)?)?;
        asked.request.logprobs = n_logprobs(&call)?;
        asked.request.grammar = structure::grammar(&call).await?;
        let prompt = prompt(&call, &asked).await?;
        let choices = Choices::start(&call, asked.requests(&[prompt]))?;
        match asked.is_stream {
            true => Ok(stream::respond(|events| write(call, asked, choices, events))),
            false => whole(&call, &asked, choices.collect().await?),
        }
    })
}

/// Reads `max_completion_tokens`, which may not contradict its older name.
fn max_tokens(call: &Call) -> Result<Option<usize>, ApiError> {
    let newer = call.given.count("max_completion_tokens");
    match (newer, call.given.count("max_tokens")) {
        (Some(newer), Some(older)) if newer != older => {
            let line = format!("'max_completion_tokens' is {newer} and 'max_tokens' is {older}; send one of them");
            Err(ApiError::bad("max_completion_tokens", line))
        }
        _ => Ok(newer),
    }
}

/// Reads of how many tokens log-probabilities are told beside those of the answer; none unless they are asked for.
fn n_logprobs(call: &Call) -> Result<Option<usize>, ApiError> {
    match (call.given.is_set("logprobs"), call.given.count("top_logprobs")) {
        (true, n) => Ok(Some(n.unwrap_or(0))),
        (false, Some(n)) if n > 0 => {
            Err(ApiError::bad("top_logprobs", "'top_logprobs' needs 'logprobs'; set that to true as well"))
        }
        (false, _) => Ok(None),
    }
}

/// Returns the tokens of the conversation.
async fn prompt(call: &Call, asked: &Asked) -> Result<Vec<u32>, ApiError> {
    let given = call.given.list("messages").map_or(&[][..], Vec::as_slice);
    let text = call.server.service.text().clone();
    let input = ChatInput {
        messages: messages::for_template(given, &text)?,
        add_generation_prompt: true,
        extra: template_kwargs(call),
        ..ChatInput::default()
    };
    let n_max = asked.is_truncated.then(|| prompt_max(call, &asked.request));
    offload(move || messages::encode(&text, input, n_max)).await
}

/// Returns the variables that a request gives to the template.
fn template_kwargs(call: &Call) -> Map<String, Value> {
    call.given.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Returns how many tokens a prompt may have that leaves room for its answer: up to half of the context is kept for it.
pub(super) fn prompt_max(call: &Call, request: &GenerateRequest) -> usize {
    let n_ctx = call.server.service.info().n_ctx;
    n_ctx - request.max_tokens.unwrap_or(1).clamp(1, (n_ctx / 2).max(1))
}

/// Returns the answer in one piece.
fn whole(call: &Call, asked: &Asked, summaries: Vec<GenerationSummary>) -> Result<Response<Body>, ApiError> {
    let (mut usage, mut choices) = (Usage::default(), Vec::new());
    for (i, summary) in summaries.iter().enumerate() {
        usage.add(summary, i % asked.n_choices == 0);
        choices.push(json!({
            "index": i,
            "message": { "role": "assistant", "content": summary.text, "refusal": null },
            "logprobs": logprobs::of_chat(call, summary.tokens.iter().copied().zip(&summary.logprobs)),
            "finish_reason": finish_json(summary.finish_reason),
        }));
    }
    let mut answer = head(call, "chatcmpl", "chat.completion");
    answer["choices"] = json!(choices);
    answer["usage"] = usage_json(&usage);
    Ok(json_response(StatusCode::OK, &answer))
}

/// Writes the answer in pieces.
async fn write(call: Call, asked: Asked, mut choices: Choices, events: Arc<Events>) -> Result<(), Gone> {
    let mut chunk = head(&call, "chatcmpl", "chat.completion.chunk");
    let mut with = |choices: Value| {
        chunk["choices"] = choices;
        if asked.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk.clone()
    };
    let mut choice = |i: usize, delta: Value, logprobs: Value, finish: Option<&str>| {
        with(json!([{ "index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]))
    };
    for i in 0..asked.n_choices {
        let begin = json!({ "role": "assistant", "content": "", "refusal": null });
        events.send(&choice(i, begin, Value::Null, None)).await?;
    }
    let mut usage = Usage::default();
    loop {
        match choices.next().await {
            Ok(Some((i, Piece::Token(token)))) => {
                let logprobs = logprobs::of_chat(&call, token.logprobs.iter().map(|logprobs| (token.id, logprobs)));
                if !token.text.is_empty() || !logprobs.is_null() {
                    events.send(&choice(i, json!({ "content": token.text }), logprobs, None)).await?;
                }
            }
            Ok(Some((i, Piece::End(rest, summary)))) => {
                usage.add(&summary, i == 0);
                if !rest.is_empty() {
                    events.send(&choice(i, json!({ "content": rest }), Value::Null, None)).await?;
                }
                let reason = finish_json(summary.finish_reason);
                events.send(&choice(i, json!({}), Value::Null, Some(reason))).await?;
            }
            Ok(None) => break,
            Err(error) => return events.send(&error.body(Shape::OpenAi)).await,
        }
    }
    if asked.include_usage {
        let mut last = with(json!([]));
        last["usage"] = usage_json(&usage);
        events.send(&last).await?;
    }
    events.send_done().await
}
