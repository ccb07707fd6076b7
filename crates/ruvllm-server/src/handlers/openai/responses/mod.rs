//! `/v1/responses`: answers to inputs, and the number of tokens that they would have.

mod items;
mod mcp;
mod output;
mod rounds;
mod stream;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, unheeded};
use ruvllm_api::generation::{MODEL, PARSE_SPECIAL, PRIORITY, STREAM, TIMEOUT, TRUNCATION, USER};
use ruvllm_api::learning::PATTERNS;
use ruvllm_api::openai::VERBOSITY;
use ruvllm_api::reading::{ToolCall, Whole};
use ruvllm_api::response_format::TEXT_FORMAT;
use ruvllm_api::thinking;
use ruvllm_api::timings::TIMINGS_PER_TOKEN;
use ruvllm_engine::FinishReason;
use serde_json::json;

use crate::call::answer::Summary;
use crate::call::generate::ParsedRequest;
use crate::call::response::json_response;
use crate::call::{Call, HandlerFuture};
use crate::handlers::openai::responses::items::INPUT_ITEM;
use crate::handlers::openai::responses::mcp::Offered;
use crate::handlers::openai::responses::output::{Output, Stop, function_call, message, reasoning};
use crate::handlers::openai::responses::rounds::{Ended, First, Responding, Round};
use crate::handlers::openai::stored::{self, Keeping};

pub(super) use items::ITEM;

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

/// Counts the tokens of the prompt that an input has.
pub(super) fn count(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        Keeping::begin(&mut call).await?;
        Offered::of(&mut call).await?;
        let n_max = call.body.count("max_output_tokens");
        let asked = ParsedRequest::read(&call, n_max)?;
        let n = Round::prepare(&mut call, asked).await?.prompt.into_tokens(&call)?.len();
        Ok(json_response(StatusCode::OK, &json!({ "object": "response.input_tokens", "input_tokens": n })))
    })
}

/// Answers an input.
pub(super) fn answer(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        let (responding, first) = Responding::new(&mut call).await?;
        if responding.is_stream() {
            let format = &crate::call::stream::EVENTS;
            return Ok(crate::call::stream::respond(format, |events| stream::write(call, responding, first, events)));
        }
        match whole(call, responding, first).await {
            Ok(response) => Ok(response),
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::Disconnected) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "nobody reads the answer")),
        }
    })
}

/// Answers an input in one piece.
async fn whole(mut call: Call, mut responding: Responding, first: First) -> Result<Response<Body>, Stop> {
    let mut output = Output::default();
    let mut started = responding.begin(&mut call, first, &mut output).await?;
    loop {
        let reading = started.reading();
        let mut choices = started.choices;
        let summary = &choices.collect_all().await?[0];
        let Whole { thought, said, calls } = reading.whole(summary);
        let status = status(summary);
        if !thought.is_empty() && thinking::is_told(&call.body) {
            output.is_done(reasoning(&call, status, Some(&thought))).await?;
        }
        if calls.is_empty() || !said.is_empty() {
            output.is_done(message(&call, status, Some(&said))).await?;
        }
        let (calls, functions): (Vec<ToolCall>, Vec<ToolCall>) =
            calls.into_iter().partition(|called| responding.runs(&called.name));
        for (i, called) in functions.iter().enumerate() {
            output.is_done(function_call(&call, i, status, called)).await?;
        }
        let ended = Ended { summary, calls, has_functions: !functions.is_empty(), choices };
        match responding.next(&mut call, ended, &mut output).await? {
            Some(next) => started = next,
            None => break,
        }
    }
    let (_, mut response) = responding.end(&call, &mut output);
    responding.keeping.keep(&call, &mut response).await;
    Ok(json_response(StatusCode::OK, &response))
}

fn status(summary: &Summary) -> &'static str {
    if summary.finish_reason == FinishReason::Length { "incomplete" } else { "completed" }
}
