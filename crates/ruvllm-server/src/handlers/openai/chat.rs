//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::{Field, Kind, optional, required, unheeded};
use ruvllm_api::generation::N_TOKENS;
use ruvllm_api::learning::PATTERNS;
use ruvllm_api::messages;
use ruvllm_api::progress::with_progress;
use ruvllm_api::reading::{AnswerEvent, ToolCall, Whole};
use ruvllm_api::response_format::RESPONSE_FORMAT;
use ruvllm_api::thinking::{self, EFFORTS};
use ruvllm_api::timings::{Clocks, TIMINGS_PER_TOKEN, timed};
use ruvllm_api::tools::call_id;
use ruvllm_engine::FinishReason;
use ruvllm_engine::tools::{CallEvent, ToolUse};
use serde_json::{Value, json};

use crate::call::answer::{Chunk, Reading, Summary, Usage};
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::prompt::{Conversation, n_logprobs, prompt};
use crate::call::response::json_response;
use crate::call::stream::{self, Disconnected, Events};
use crate::call::tools::read_tools;
use crate::call::verbose::with_verbose;
use crate::call::{Call, HandlerFuture};
use crate::handlers::openai::{VERBOSITY, chunk, finish_json, head, usage_json};

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
pub(super) fn answer(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        let mut asked = ParsedRequest::read(&call, max_tokens(&call)?)?;
        asked.request.logprobs = n_logprobs(&call)?;
        let tool_use = read_tools(&call, &mut asked.request).await?;
        let given = call.body.list("messages").map_or(&[][..], Vec::as_slice);
        let mut messages = call.for_template(given)?;
        let begun = messages::begun(&call.body, &mut messages)?;
        let opens_answer = call.body.flag(messages::OPENS_ANSWER.name, true);
        let conversation = Conversation { messages, begun, opens_answer };
        let prompt = prompt(&mut call, Some(&asked), tool_use.as_ref(), conversation).await?;
        call.begin_thinking(&mut asked.request, &prompt)?;
        let choices = Choices::start(&call, &asked, vec![prompt])?;
        match asked.is_stream {
            true => Ok(stream::respond(&stream::EVENTS, |events| write(call, asked, tool_use, choices, events))),
            false => whole(&call, &asked, tool_use.as_ref(), choices.collect().await?),
        }
    })
}

/// Reads `max_completion_tokens`, which may not contradict its older name.
fn max_tokens(call: &Call) -> Result<Option<usize>, ApiError> {
    let newer = call.body.count("max_completion_tokens");
    match (newer, call.body.count("max_tokens")) {
        (Some(newer), Some(older)) if newer != older => {
            let line = format!("'max_completion_tokens' is {newer} and 'max_tokens' is {older}; send one of them");
            Err(ApiError::bad("max_completion_tokens", line))
        }
        _ => Ok(newer),
    }
}

/// Returns the answer in one piece.
fn whole(
    call: &Call,
    asked: &ParsedRequest,
    tool_use: Option<&ToolUse>,
    summaries: Vec<Summary>,
) -> Result<Response<Body>, ApiError> {
    let (mut usage, mut choices) = (Usage::default(), Vec::new());
    for (i, summary) in summaries.iter().enumerate() {
        usage.add(summary, i % asked.n_choices == 0);
        let Whole { thought, said, calls } = Reading::new(tool_use, asked.request.thinking).whole(summary);
        let mut message = json!({ "role": "assistant", "content": said, "refusal": null });
        if said.is_empty() && (tool_use.is_some() || !calls.is_empty()) {
            message["content"] = Value::Null;
        }
        if !thought.is_empty() && thinking::is_told(&call.body) {
            message["reasoning_content"] = json!(thought);
        }
        if !calls.is_empty() {
            let of_call = |(index, called): (usize, &ToolCall)| {
                json!({
                    "id": call_id(&call.id, "call", i, index),
                    "type": "function",
                    "function": { "name": called.name, "arguments": called.arguments },
                })
            };
            message["tool_calls"] = calls.iter().enumerate().map(of_call).collect();
        }
        choices.push(json!({
            "index": i,
            "message": message,
            "logprobs": summary.chat_logprobs(call),
            "finish_reason": finish(summary.finish_reason, !calls.is_empty()),
        }));
    }
    let mut answer = head(call, "chatcmpl", "chat.completion");
    answer["choices"] = json!(choices);
    answer["usage"] = usage_json(&usage);
    if let Some(first) = summaries.first() {
        answer["timings"] = first.timings();
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
            return thinking::is_told(&call.body).then(|| json!({ "reasoning_content": text }));
        }
        AnswerEvent::Said(event) => event,
    };
    Some(match event {
        CallEvent::Text(text) => json!({ "content": text }),
        CallEvent::Begin { index, name } => json!({ "tool_calls": [{
            "index": index,
            "id": call_id(&call.id, "call", choice, index),
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
    asked: ParsedRequest,
    tool_use: Option<ToolUse>,
    mut choices: Choices,
    events: Arc<Events>,
) -> Result<(), Disconnected> {
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
    let (mut usage, mut clocks, mut times) = (Usage::default(), Clocks::new(&call.body, asked.n_choices), Value::Null);
    loop {
        match choices.next().await {
            Ok(Some((i, Chunk::Progress(progress)))) => {
                events.send(&with_progress(choice(i, json!({}), Value::Null, None), &progress)).await?;
            }
            Ok(Some((i, Chunk::Token(token)))) => {
                let mut logprobs = token.chat_logprobs(&call);
                let times = clocks.tick(i);
                for piece in readings[i].push(&token).into_iter().filter_map(|event| delta(&call, i, event)) {
                    events.send(&timed(choice(i, piece, logprobs.take(), None), &times)).await?;
                }
                if !logprobs.is_null() {
                    events.send(&timed(choice(i, json!({ "content": "" }), logprobs, None), &times)).await?;
                }
            }
            Ok(Some((i, Chunk::End(rest, summary)))) => {
                usage.add(&summary, i == 0);
                times = summary.timings();
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
