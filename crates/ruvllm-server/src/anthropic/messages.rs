//! `/v1/messages`.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::{FinishReason, GenerationSummary};
use serde_json::{Value, json};

use crate::app::{Answer, Call};
use crate::error::{ApiError, Shape, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{Asked, Choices, MODEL, Piece, STREAM, check_model, offload};
use crate::openai::messages::{encode, joined};
use crate::stream::{self, Events, Gone};

const TEXT_BLOCK: &[Field] = &[
    required("type", Kind::Word(&["text"]), "the model reads text only"),
    required("text", Kind::Text, "the text"),
    optional("cache_control", Kind::Any, "every prompt is cached as far as there is room, marked or not"),
];

const CONTENT: Kind = Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(TEXT_BLOCK), 0, 4096)]);

const MESSAGE: &[Field] = &[
    required("role", Kind::Word(&["user", "assistant"]), "who says it"),
    required("content", CONTENT, "what is said"),
];

/// What is answered or counted.
pub(super) const CONVERSATION: &[Field] = &[
    MODEL,
    required(
        "messages",
        Kind::List(&Kind::Object(MESSAGE), 1, 4096),
        "the conversation; one that ends with the assistant is gone on with",
    ),
    optional("system", CONTENT, "what the model is told before the conversation"),
    optional("cache_control", Kind::Any, "every prompt is cached as far as there is room, marked or not"),
    optional("chat_template_kwargs", Kind::Map(&Kind::Any), "more variables for the model's chat template"),
];

const METADATA: &[Field] = &[optional("user_id", Kind::Text, "a label for the server's log")];

/// How it is answered.
pub(super) const ANSWER: &[Field] = &[
    required(
        "max_tokens",
        Kind::Int(1, 1 << 24),
        "the most tokens to write; what does not fit the context is not written",
    ),
    optional("temperature", Kind::Number(0.0, 100.0), "divides the logits; 0 always takes the likeliest token"),
    optional("top_p", Kind::Number(0.0, 1.0), "keeps the likeliest tokens that make up this share; 1 keeps all"),
    optional("top_k", Kind::Int(0, 1 << 20), "keeps the k likeliest tokens; 0 keeps all"),
    optional("seed", Kind::Int(i64::MIN, i64::MAX), "the same seed gives the same answer"),
    optional("stop_sequences", Kind::List(&Kind::Text, 0, 16), "texts that end the answer and are no part of it"),
    STREAM,
    optional("metadata", Kind::Object(METADATA), "labels for the server's log; the answer does not depend on them"),
    optional("service_tier", Kind::Word(&["auto", "standard_only"]), "there is one tier"),
];

/// Answers a conversation.
pub(super) fn answer(call: Call) -> Answer {
    Box::pin(async move {
        let mut asked = Asked::read(&call, None)?;
        asked.request.stop = call.given.texts("stop_sequences");
        if asked.request.stop.iter().any(String::is_empty) {
            return Err(ApiError::bad(
                "stop_sequences",
                "a text of 'stop_sequences' is empty; it would end every answer",
            ));
        }
        let prompt = prompt(&call).await?;
        let n_prompt = prompt.len();
        let choices = Choices::start(&call, asked.requests(&[prompt]))?;
        match asked.is_stream {
            true => Ok(stream::respond(|events| write(call, n_prompt, choices, events))),
            false => {
                let summaries = choices.collect().await?;
                Ok(json_response(StatusCode::OK, &whole(&call, &summaries[0])))
            }
        }
    })
}

/// Counts the tokens of a conversation.
pub(super) fn count(call: Call) -> Answer {
    Box::pin(async move {
        check_model(&call)?;
        let n_tokens = prompt(&call).await?.len();
        Ok(json_response(StatusCode::OK, &json!({ "input_tokens": n_tokens })))
    })
}

/// Returns the tokens of the conversation.
async fn prompt(call: &Call) -> Result<Vec<u32>, ApiError> {
    let message = |role: &str, content: &Value| json!({ "role": role, "content": joined(content) });
    let mut messages: Vec<Value> =
        call.given.get("system").map(|system| message("system", system)).into_iter().collect();
    for given in call.given.list("messages").into_iter().flatten() {
        messages.push(message(given["role"].as_str().unwrap_or_default(), &given["content"]));
    }
    let ends_with_assistant = messages.last().is_some_and(|last| last["role"] == "assistant");
    let begun = messages.pop_if(|_| ends_with_assistant).map(|last| joined(&last["content"]));
    let extra = call.given.get("chat_template_kwargs").and_then(Value::as_object).cloned().unwrap_or_default();
    let input = ChatInput { messages, add_generation_prompt: true, extra, ..ChatInput::default() };
    let text = call.server.service.text().clone();
    offload(move || match begun {
        // What the assistant has begun follows what opens its answer.
        Some(begun) => Ok(text.encode_rendered(&(text.render_chat(&input)? + &begun))?),
        None => encode(&text, input, None),
    })
    .await
}

/// Returns why an answer ended.
fn stop_reason(summary: &GenerationSummary) -> &'static str {
    match (summary.finish_reason, &summary.stopped_by) {
        (FinishReason::Stop, Some(_)) => "stop_sequence",
        (FinishReason::Stop, None) => "end_turn",
        _ => "max_tokens",
    }
}

fn usage(summary: &GenerationSummary) -> Value {
    let n_cached = summary.timings.cached_tokens;
    json!({
        "input_tokens": summary.prompt_tokens.len() - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": summary.tokens.len(),
    })
}

fn head(call: &Call) -> Value {
    json!({
        "id": format!("msg_{}", call.id),
        "type": "message",
        "role": "assistant",
        "model": call.server.options.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// Returns the answer in one piece.
fn whole(call: &Call, summary: &GenerationSummary) -> Value {
    let mut answer = head(call);
    answer["content"] = json!([{ "type": "text", "text": summary.text }]);
    answer["stop_reason"] = json!(stop_reason(summary));
    answer["stop_sequence"] = json!(summary.stopped_by);
    answer["usage"] = usage(summary);
    answer
}

/// Writes the answer in pieces.
async fn write(call: Call, n_prompt: usize, mut choices: Choices, events: Arc<Events>) -> Result<(), Gone> {
    let mut message = head(&call);
    message["usage"] = json!({
        "input_tokens": n_prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    });
    let send = async |name: &str, data: Value| events.send_named(name, &data).await;
    send("message_start", json!({ "type": "message_start", "message": message })).await?;
    let block = json!({ "type": "text", "text": "" });
    send("content_block_start", json!({ "type": "content_block_start", "index": 0, "content_block": block })).await?;
    let delta = |text: String| {
        let delta = json!({ "type": "text_delta", "text": text });
        json!({ "type": "content_block_delta", "index": 0, "delta": delta })
    };
    loop {
        match choices.next().await {
            Ok(Some((_, Piece::Token(token)))) => {
                if !token.text.is_empty() {
                    send("content_block_delta", delta(token.text)).await?;
                }
            }
            Ok(Some((_, Piece::End(rest, summary)))) => {
                if !rest.is_empty() {
                    send("content_block_delta", delta(rest)).await?;
                }
                send("content_block_stop", json!({ "type": "content_block_stop", "index": 0 })).await?;
                let end = json!({ "stop_reason": stop_reason(&summary), "stop_sequence": summary.stopped_by });
                send("message_delta", json!({ "type": "message_delta", "delta": end, "usage": usage(&summary) }))
                    .await?;
            }
            Ok(None) => return send("message_stop", json!({ "type": "message_stop" })).await,
            Err(error) => return send("error", error.body(Shape::Anthropic)).await,
        }
    }
}
