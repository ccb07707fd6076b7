//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tools::{CallEvent, ToolUse};
use ruvllm_engine::{FinishReason, GenerateRequest, GenerationSummary};
use serde_json::{Value, json};

use super::{VERBOSITY, chunk, finish_json, head, logprobs, messages, usage_json};
use crate::app::{Answer, Call};
use crate::error::{ApiError, Shape, json_response};
use crate::fields::{Field, Kind, optional, required, unheeded};
use crate::generate::{Asked, Choices, N_TOKENS, Piece, Usage, offload};
use crate::learning::{PATTERNS, attend};
use crate::llamacpp::with_verbose;
use crate::progress::with_progress;
use crate::reading::{AnswerEvent, Called, Reading, Whole};
use crate::stream::{self, Events, Gone};
use crate::structure::RESPONSE_FORMAT;
use crate::thinking::{self, EFFORTS};
use crate::timings::{Clocks, TIMINGS_PER_TOKEN, timed, timings};
use crate::tools::{self, call_id};

/// What a chat may say beside how the answer is written.
pub(super) const FIELDS: &[Field] = &[
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

/// Answers a conversation.
pub(super) fn answer(mut call: Call) -> Answer {
    Box::pin(async move {
        let mut asked = Asked::read(&call, max_tokens(&call)?)?;
        asked.request.logprobs = n_logprobs(&call)?;
        let tool_use = tools::apply(&call, tools::read(&call)?, &mut asked.request).await?;
        let given = call.given.list("messages").map_or(&[][..], Vec::as_slice);
        let mut messages = messages::for_template(given, call.model.service.text())?;
        let begun = messages::begun(&call.given, &mut messages)?;
        let prompt = prompt(&mut call, &asked, tool_use.as_ref(), messages, begun).await?;
        thinking::begin(&call, &mut asked.request, &prompt);
        let choices = Choices::start(&call, asked.requests(&[prompt]))?;
        match asked.is_stream {
            true => Ok(stream::respond(&stream::EVENTS, |events| write(call, asked, tool_use, choices, events))),
            false => whole(&call, &asked, tool_use.as_ref(), choices.collect().await?),
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
pub(crate) fn n_logprobs(call: &Call) -> Result<Option<usize>, ApiError> {
    match (call.given.is_set("logprobs"), call.given.count("top_logprobs")) {
        (true, n) => Ok(Some(n.unwrap_or(0))),
        (false, Some(n)) if n > 0 => {
            Err(ApiError::bad("top_logprobs", "'top_logprobs' needs 'logprobs'; set that to true as well"))
        }
        (false, _) => Ok(None),
    }
}

/// Returns the tokens of a conversation and of what the assistant has begun to answer.
pub(crate) async fn prompt(
    call: &mut Call,
    asked: &Asked,
    tool_use: Option<&ToolUse>,
    messages: Vec<Value>,
    begun: Option<String>,
) -> Result<Vec<u32>, ApiError> {
    let text = call.model.service.text().clone();
    let input = ChatInput {
        messages,
        tools: tool_use.map(ToolUse::definitions),
        add_generation_prompt: begun.is_some() || call.given.flag(messages::OPENS_ANSWER.name, true),
        extra: thinking::variables(call)?,
        ..ChatInput::default()
    };
    let input = attend(call, input).await?;
    let n_max = asked.is_truncated.then(|| prompt_max(call, &asked.request));
    let (parse_special, thinks_not) = (call.given.is_set("parse_special"), thinking::is_off(&call.given));
    offload(move || {
        let begun = begun.as_deref().unwrap_or_default();
        let encoding = messages::Encoding { n_max, parse_special, thinks_not, begun };
        messages::encode(&text, input, encoding)
    })
    .await
}

/// Drops the beginnings of prompts that leave no room for an answer, if the request asks for that; returns which it did.
pub(crate) fn shorten(call: &Call, asked: &Asked, prompts: &mut [Vec<u32>]) -> Vec<bool> {
    let n_max = if asked.is_truncated { prompt_max(call, &asked.request) } else { usize::MAX };
    let shorten = |prompt: &mut Vec<u32>| prompt.drain(..prompt.len().saturating_sub(n_max)).count() > 0;
    prompts.iter_mut().map(shorten).collect()
}

/// Returns how many tokens a prompt may have that leaves room for its answer: up to half of the context is kept for it.
pub(crate) fn prompt_max(call: &Call, request: &GenerateRequest) -> usize {
    let n_ctx = call.model.service.info().n_ctx;
    n_ctx - request.max_tokens.unwrap_or(1).clamp(1, (n_ctx / 2).max(1))
}

/// Returns the answer in one piece.
fn whole(
    call: &Call,
    asked: &Asked,
    tool_use: Option<&ToolUse>,
    summaries: Vec<GenerationSummary>,
) -> Result<Response<Body>, ApiError> {
    let (mut usage, mut choices) = (Usage::default(), Vec::new());
    for (i, summary) in summaries.iter().enumerate() {
        usage.add(summary, i % asked.n_choices == 0);
        let Whole { thought, said, calls } = Whole::read(Reading::new(tool_use, asked.request.thinking), summary);
        let mut message = json!({ "role": "assistant", "content": said, "refusal": null });
        if said.is_empty() && tool_use.is_some() {
            message["content"] = Value::Null;
        }
        if !thought.is_empty() && thinking::is_told(&call.given) {
            message["reasoning_content"] = json!(thought);
        }
        if !calls.is_empty() {
            let of_call = |(index, called): (usize, &Called)| {
                json!({
                    "id": call_id(call, "call", i, index),
                    "type": "function",
                    "function": { "name": called.name, "arguments": called.arguments },
                })
            };
            message["tool_calls"] = calls.iter().enumerate().map(of_call).collect();
        }
        choices.push(json!({
            "index": i,
            "message": message,
            "logprobs": logprobs::of_chat(call, summary.tokens.iter().copied().zip(&summary.logprobs)),
            "finish_reason": finish(summary.finish_reason, !calls.is_empty()),
        }));
    }
    let mut answer = head(call, "chatcmpl", "chat.completion");
    answer["choices"] = json!(choices);
    answer["usage"] = usage_json(&usage);
    if let Some(first) = summaries.first() {
        answer["timings"] = timings(first);
        answer = with_verbose(answer, call, asked, first);
    }
    Ok(json_response(StatusCode::OK, &answer))
}

/// Returns why an answer ended; one with calls that was not cut, for these.
fn finish(reason: FinishReason, has_calls: bool) -> &'static str {
    match reason {
        FinishReason::Stop if has_calls => "tool_calls",
        reason => finish_json(reason),
    }
}

/// Returns a piece of an answer as the change it is.
fn delta(call: &Call, choice: usize, event: AnswerEvent) -> Option<Value> {
    let event = match event {
        AnswerEvent::Thought(text) => {
            return thinking::is_told(&call.given).then(|| json!({ "reasoning_content": text }));
        }
        AnswerEvent::Said(event) => event,
    };
    Some(match event {
        CallEvent::Text(text) => json!({ "content": text }),
        CallEvent::Begin { index, name } => json!({ "tool_calls": [{
            "index": index,
            "id": call_id(call, "call", choice, index),
            "type": "function",
            "function": { "name": name, "arguments": "" },
        }] }),
        CallEvent::Arguments { index, json } => {
            json!({ "tool_calls": [{ "index": index, "function": { "arguments": json } }] })
        }
        CallEvent::End { .. } => return None,
    })
}

/// Writes the answer in pieces.
async fn write(
    call: Call,
    asked: Asked,
    tool_use: Option<ToolUse>,
    mut choices: Choices,
    events: Arc<Events>,
) -> Result<(), Gone> {
    let head = head(&call, "chatcmpl", "chat.completion.chunk");
    let choice = |i: usize, delta: Value, logprobs: Value, finish: Option<&str>| {
        chunk(&head, &asked, json!([{ "index": i, "delta": delta, "logprobs": logprobs, "finish_reason": finish }]))
    };
    for i in 0..asked.n_choices {
        // llama.cpp's server begins with nothing, OpenAI's with an empty text.
        let has_none = call.shape == Shape::LlamaCpp || tool_use.as_ref().is_some_and(ToolUse::is_forced);
        let content = if has_none { Value::Null } else { json!("") };
        let begin = json!({ "role": "assistant", "content": content, "refusal": null });
        events.send(&choice(i, begin, Value::Null, None)).await?;
    }
    let mut readings: Vec<Reading> =
        (0..asked.n_choices).map(|_| Reading::new(tool_use.as_ref(), asked.request.thinking)).collect();
    let (mut usage, mut clocks, mut times) = (Usage::default(), Clocks::new(&call.given, asked.n_choices), Value::Null);
    loop {
        match choices.next().await {
            Ok(Some((i, Piece::Progress(progress)))) => {
                events.send(&with_progress(choice(i, json!({}), Value::Null, None), &progress)).await?;
            }
            Ok(Some((i, Piece::Token(token)))) => {
                let told = token.logprobs.iter().map(|logprobs| (token.id, logprobs));
                let mut logprobs = logprobs::of_chat(&call, told);
                let times = clocks.tick(i);
                for piece in readings[i].push(&token.text).into_iter().filter_map(|event| delta(&call, i, event)) {
                    events.send(&timed(choice(i, piece, logprobs.take(), None), &times)).await?;
                }
                if !logprobs.is_null() {
                    events.send(&timed(choice(i, json!({ "content": "" }), logprobs, None), &times)).await?;
                }
            }
            Ok(Some((i, Piece::End(rest, summary)))) => {
                usage.add(&summary, i == 0);
                times = timings(&summary);
                for piece in readings[i].finish(&rest, &summary).into_iter().filter_map(|event| delta(&call, i, event))
                {
                    events.send(&choice(i, piece, Value::Null, None)).await?;
                }
                let reason = finish(summary.finish_reason, readings[i].has_calls());
                let last = timed(choice(i, json!({}), Value::Null, Some(reason)), &times);
                events.send(&with_verbose(last, &call, &asked, &summary)).await?;
            }
            Ok(None) => break,
            Err(error) => return events.send(&error.body(Shape::OpenAi)).await,
        }
    }
    if asked.include_usage {
        let mut last = chunk(&head, &asked, json!([]));
        last["usage"] = usage_json(&usage);
        events.send(&timed(last, &times)).await?;
    }
    events.send_done().await
}
