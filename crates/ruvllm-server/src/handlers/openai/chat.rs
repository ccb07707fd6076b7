//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::messages;
use ruvllm_api::openai::Usage;
use ruvllm_api::openai::chat::{self, ChatChoice};
use ruvllm_api::progress::with_progress;
use ruvllm_api::timings::{Clocks, timed};
use ruvllm_engine::tools::ToolUse;
use serde_json::{Value, json};

use crate::call::answer::{Chunk, Reading, Summary};
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::prompt::{Conversation, prompt};
use crate::call::response::json_response;
use crate::call::stream::{self, Disconnected, Events};
use crate::call::tools::read_tools;
use crate::call::verbose::with_verbose;
use crate::call::{Call, HandlerFuture};
use crate::handlers::openai::{chunk, head};

/// Answers a conversation.
pub(super) fn answer(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        let mut asked = ParsedRequest::read(&call, chat::max_tokens(&call.body)?)?;
        asked.request.logprobs = chat::n_logprobs(&call.body)?;
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

/// Returns the answer in one piece.
fn whole(
    call: &Call,
    asked: &ParsedRequest,
    tool_use: Option<&ToolUse>,
    summaries: Vec<Summary>,
) -> Result<Response<Body>, ApiError> {
    let (mut usage, mut choices) = (Usage::default(), Vec::new());
    for (i, summary) in summaries.iter().enumerate() {
        usage.add(summary.usage(), i % asked.n_choices == 0);
        let whole = Reading::new(tool_use, asked.request.thinking).whole(summary);
        let choice = ChatChoice { given: &call.body, id: &call.id, index: i };
        let message = choice.message(&whole, tool_use.is_some());
        choices.push(json!({
            "index": i,
            "message": message,
            "logprobs": summary.chat_logprobs(call),
            "finish_reason": chat::finish(summary.finish_reason, !whole.calls.is_empty()),
        }));
    }
    let mut answer = head(call, "chatcmpl", "chat.completion");
    answer["choices"] = json!(choices);
    answer["usage"] = usage.json();
    if let Some(first) = summaries.first() {
        answer["timings"] = first.timings();
        answer = with_verbose(answer, call, asked, first);
    }
    Ok(json_response(StatusCode::OK, &answer))
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
    let delta = |index: usize, event| ChatChoice { given: &call.body, id: &call.id, index }.delta(event);
    for i in 0..asked.n_choices {
        // llama.cpp's server begins with nothing, OpenAI's with an empty text.
        let has_none = call.shape == Shape::LlamaCpp || tool_use.as_ref().is_some_and(ToolUse::is_forced);
        let content = if has_none { Value::Null } else { json!("") };
        events.send(&choice(i, chat::begin(content), Value::Null, None)).await?;
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
                for piece in readings[i].push(&token).into_iter().filter_map(|event| delta(i, event)) {
                    events.send(&timed(choice(i, piece, logprobs.take(), None), &times)).await?;
                }
                if !logprobs.is_null() {
                    events.send(&timed(choice(i, json!({ "content": "" }), logprobs, None), &times)).await?;
                }
            }
            Ok(Some((i, Chunk::End(rest, summary)))) => {
                usage.add(summary.usage(), i == 0);
                times = summary.timings();
                for piece in readings[i].finish(&rest, &summary).into_iter().filter_map(|event| delta(i, event)) {
                    events.send(&choice(i, piece, Value::Null, None)).await?;
                }
                let reason = chat::finish(summary.finish_reason, readings[i].has_calls());
                let last = timed(choice(i, json!({}), Value::Null, Some(reason)), &times);
                events.send(&with_verbose(last, &call, &asked, &summary)).await?;
            }
            Ok(None) => break,
            Err(error) => return events.send(&error.body(Shape::OpenAi)).await,
        }
    }
    if asked.include_usage {
        let mut last = chunk(&head, &asked, json!([]));
        last["usage"] = usage.json();
        events.send(&timed(last, &times)).await?;
    }
    events.send_done().await
}
