//! `/completion` and `/infill`: texts go on as they are, or a gap in one is filled, in llama.cpp's shapes.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_engine::tokenizer::InfillFile;
use ruvllm_engine::{FinishReason, GenerationSummary, TokenLogprobs};
use serde_json::{Value, json};

use crate::app::{Answer, Call};
use crate::error::{ApiError, Shape, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{Asked, Choices, Piece, offload};
use crate::openai::chat::shorten;
use crate::openai::{INPUT, logprobs, read_input};
use crate::stream::{self, Events, Gone};
use crate::structure;

/// The text that goes on.
pub(super) const PROMPT: &[Field] = &[required("prompt", INPUT, "a text, or its tokens; or several of them")];

/// How many likely tokens are told with each.
pub(super) const N_PROBS: Field =
    optional("n_probs", Kind::Int(0, 20), "tell the log-probability of each token, and of this many of the likeliest");

const FILE: &[Field] = &[
    required("text", Kind::Text, "what is in it"),
    optional("filename", Kind::Text, "its path, as the model is to see it"),
];

/// The text with a gap.
pub(super) const GAP: &[Field] = &[
    required("input_prefix", Kind::Text, "what stands before the gap"),
    required("input_suffix", Kind::Text, "what stands behind it"),
    optional("prompt", Kind::Text, "what the answer begins with: it is put behind the prefix"),
    optional("input_extra", Kind::List(&Kind::Object(FILE), 0, 256), "other files that the model may look at"),
];

/// Continues texts.
pub(super) fn complete(call: Call) -> Answer {
    Box::pin(async move {
        let input = call.given.get("prompt").cloned().unwrap_or_default();
        let parse_special = call.given.flag("parse_special", true);
        let text = call.model.service.text().clone();
        let encode =
            move || read_input(&input, |text_of| Ok(text.tokenizer().encode_prompt(text_of, parse_special)?));
        let prompts = offload(encode).await?;
        answer(call, prompts).await
    })
}

/// Fills a gap.
pub(super) fn fill(call: Call) -> Answer {
    Box::pin(async move {
        let text_of = |name: &str| call.given.text(name).unwrap_or_default().to_owned();
        let prefix = text_of("input_prefix") + &text_of("prompt");
        let (suffix, text) = (text_of("input_suffix"), call.model.service.text().clone());
        let file = |file: &Value| InfillFile {
            // llama.cpp's name for a file without one.
            name: file["filename"].as_str().unwrap_or("tmp").to_owned(),
            text: file["text"].as_str().unwrap_or_default().to_owned(),
        };
        let files: Vec<InfillFile> = call.given.list("input_extra").into_iter().flatten().map(file).collect();
        let encode = move || Ok(text.tokenizer().encode_infill_among(&files, &prefix, &suffix)?);
        let prompt = offload(encode).await?;
        answer(call, vec![prompt]).await
    })
}

/// Writes the answers to prompts.
async fn answer(call: Call, mut prompts: Vec<Vec<u32>>) -> Result<axum::http::Response<axum::body::Body>, ApiError> {
    let mut asked = Asked::read(&call, None)?;
    asked.request.logprobs = call.given.count(N_PROBS.name).filter(|&n| n > 0);
    asked.request.grammar = structure::grammar(&call, &asked.request).await?;
    shorten(&call, &asked, &mut prompts);
    let choices = Choices::start(&call, asked.requests(&prompts))?;
    if asked.is_stream {
        return Ok(stream::respond(&stream::EVENTS, |events| write(call, choices, events)));
    }
    let summaries = choices.collect().await?;
    let whole = |(i, summary): (usize, &GenerationSummary)| {
        let mut answer = ended(&call, i, &summary.text, summary);
        add_probabilities(&mut answer, &call, summary.tokens.iter().copied().zip(&summary.logprobs));
        answer
    };
    let mut answers: Vec<Value> = summaries.iter().enumerate().map(whole).collect();
    // One answer stands for itself, as in llama.cpp.
    let answer = if answers.len() == 1 { answers.remove(0) } else { json!(answers) };
    Ok(json_response(StatusCode::OK, &answer))
}

/// Writes answers in pieces.
async fn write(call: Call, mut choices: Choices, events: Arc<Events>) -> Result<(), Gone> {
    loop {
        match choices.next().await {
            Ok(Some((i, Piece::Token(token)))) => {
                let mut piece = json!({ "index": i, "content": token.text, "tokens": [token.id], "stop": false });
                add_probabilities(&mut piece, &call, token.logprobs.iter().map(|logprobs| (token.id, logprobs)));
                events.send(&piece).await?;
            }
            Ok(Some((i, Piece::End(rest, summary)))) => events.send(&ended(&call, i, &rest, &summary)).await?,
            Ok(None) => return Ok(()),
            Err(error) => return events.send(&error.body(Shape::OpenAi)).await,
        }
    }
}

/// Adds the log-probabilities of tokens, if they are asked for.
fn add_probabilities<'t>(answer: &mut Value, call: &Call, tokens: impl Iterator<Item = (u32, &'t TokenLogprobs)>) {
    if let Value::Object(mut logprobs) = logprobs::of_chat(call, tokens) {
        answer["completion_probabilities"] = logprobs.remove("content").unwrap_or_default();
    }
}

/// Returns an answer that is over, with `content` of it.
fn ended(call: &Call, i: usize, content: &str, summary: &GenerationSummary) -> Value {
    let stop_type = match summary.finish_reason {
        FinishReason::Stop if summary.stopped_by.is_some() => "word",
        FinishReason::Stop => "eos",
        _ => "limit",
    };
    let (times, n_predicted) = (&summary.timings, summary.tokens.len());
    let n_computed = summary.prompt_tokens.len() - times.cached_tokens;
    let each = |ms: f64, n: usize| if n == 0 { 0.0 } else { ms / n as f64 };
    json!({
        "index": i,
        "content": content,
        "tokens": summary.tokens,
        "stop": true,
        "model": &*call.model_name,
        "tokens_predicted": n_predicted,
        "tokens_evaluated": summary.prompt_tokens.len(),
        "tokens_cached": summary.prompt_tokens.len() + n_predicted,
        "truncated": false,
        "has_new_line": summary.text.contains('\n'),
        "stop_type": stop_type,
        "stopping_word": summary.stopped_by.as_deref().unwrap_or_default(),
        "timings": {
            "cache_n": times.cached_tokens,
            "prompt_n": n_computed,
            "prompt_ms": times.prompt_ms,
            "prompt_per_token_ms": each(times.prompt_ms, n_computed),
            "prompt_per_second": times.prompt_tps,
            "predicted_n": n_predicted,
            "predicted_ms": times.decode_ms,
            "predicted_per_token_ms": each(times.decode_ms, n_predicted),
            "predicted_per_second": times.decode_tps,
        },
    })
}
