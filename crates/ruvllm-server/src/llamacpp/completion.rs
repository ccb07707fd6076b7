//! `/completion` and `/infill`: texts go on as they are, or a gap in one is filled, in llama.cpp's shapes.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_engine::tokenizer::{DecodeOptions, InfillFile};
use ruvllm_engine::{FinishReason, GenerationSummary, TokenLogprobs};
use serde_json::{Value, json};

use super::settings;
use crate::app::{Answer, Call};
use crate::error::{ApiError, Shape, json_response};
use crate::fields::{Field, Kind, optional, required, unheeded};
use crate::generate::{Asked, Choices, Piece, offload};
use crate::openai::chat::shorten;
use crate::openai::{INPUT, encode_part, logprobs, read_input};
use crate::stream::{self, Events, Gone};
use crate::structure;
use crate::timings::{Clocks, timed, timings};

/// The text that goes on.
pub(super) const PROMPT: &[Field] = &[required("prompt", INPUT, "a text, or its tokens; or several of them")];

/// How many likely tokens are told with each.
pub(super) const N_PROBS: Field =
    optional("n_probs", Kind::Int(0, 256), "tell the log-probability of each token, and of this many of the likeliest");

/// What of an answer is told.
pub(super) const RESPONSE_FIELDS: Field = optional(
    "response_fields",
    Kind::List(&Kind::Text, 0, 256),
    "the fields that the answer is to have, a/b for one within another; without any it has all",
);

const FILE: &[Field] = &[
    required("text", Kind::Text, "what is in it"),
    optional("filename", Kind::Text, "its path, as the model is to see it"),
    unheeded("time", Kind::Any, "when it was looked at"),
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
        let encode = move || read_input(&input, "prompt", |part| encode_part(text.tokenizer(), part, parse_special));
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

/// A request that is being answered.
struct Writing {
    call: Call,
    asked: Asked,
    /// The prompts whose beginnings were left out.
    is_shortened: Vec<bool>,
}

/// Writes the answers to prompts.
async fn answer(call: Call, mut prompts: Vec<Vec<u32>>) -> Result<Response<Body>, ApiError> {
    let mut asked = Asked::read(&call, None)?;
    asked.request.logprobs = call.given.count(N_PROBS.name).filter(|&n| n > 0);
    asked.request.grammar = structure::grammar(&call, &asked.request).await?;
    let is_shortened = shorten(&call, &asked, &mut prompts);
    let choices = Choices::start(&call, asked.requests(&prompts))?;
    let writing = Writing { call, asked, is_shortened };
    if writing.asked.is_stream {
        return Ok(stream::respond(&stream::EVENTS, |events| writing.write(choices, events)));
    }
    let summaries = choices.collect().await?;
    let whole = |(i, summary): (usize, &GenerationSummary)| {
        let tokens = summary.tokens.iter().copied().zip(&summary.logprobs);
        writing.ended(i, &summary.text, summary, probabilities(&writing.call, tokens))
    };
    let mut answers: Vec<Value> = summaries.iter().enumerate().map(whole).collect();
    // One answer stands for itself, as in llama.cpp.
    let answer = if answers.len() == 1 { answers.remove(0) } else { json!(answers) };
    Ok(json_response(StatusCode::OK, &answer))
}

impl Writing {
    /// Writes answers in pieces.
    async fn write(self, mut choices: Choices, events: Arc<Events>) -> Result<(), Gone> {
        let mut clocks = Clocks::new(&self.call.given, self.is_shortened.len() * self.asked.n_choices);
        loop {
            match choices.next().await {
                Ok(Some((i, Piece::Token(token)))) => {
                    let mut piece = json!({ "index": i, "content": token.text, "tokens": [token.id], "stop": false });
                    let told = token.logprobs.iter().map(|logprobs| (token.id, logprobs));
                    if let Some(told) = probabilities(&self.call, told) {
                        piece["completion_probabilities"] = told;
                    }
                    events.send(&timed(piece, &clocks.tick(i))).await?;
                }
                Ok(Some((i, Piece::End(rest, summary)))) => events.send(&self.ended(i, &rest, &summary, None)).await?,
                Ok(None) => return Ok(()),
                Err(error) => return events.send(&error.body(Shape::OpenAi)).await,
            }
        }
    }

    /// Returns an answer that is over, with `content` of it.
    fn ended(&self, i: usize, content: &str, summary: &GenerationSummary, probabilities: Option<Value>) -> Value {
        let stop_type = match summary.finish_reason {
            FinishReason::Stop if summary.stopped_by.is_some() => "word",
            FinishReason::Stop => "eos",
            _ => "limit",
        };
        let (n_prompt, n_predicted) = (summary.prompt_tokens.len(), summary.tokens.len());
        let tokenizer = self.call.model.service.text().tokenizer();
        let prompt = tokenizer.decode(&summary.prompt_tokens, DecodeOptions { render_special: true });
        let mut answer = json!({
            "index": i,
            "content": content,
            "tokens": summary.tokens,
            "stop": true,
            "model": &*self.call.model_name,
            "prompt": prompt,
            "generation_settings": settings::of_request(&self.asked),
            "tokens_predicted": n_predicted,
            "tokens_evaluated": n_prompt,
            "tokens_cached": n_prompt + n_predicted,
            "truncated": self.is_shortened[i / self.asked.n_choices] || self.has_filled(summary),
            "has_new_line": summary.text.contains('\n'),
            "stop_type": stop_type,
            "stopping_word": summary.stopped_by.as_deref().unwrap_or_default(),
            "timings": timings(summary),
        });
        if let Some(told) = probabilities {
            answer["completion_probabilities"] = told;
        }
        settings::chosen(answer, &self.call.given.texts(RESPONSE_FIELDS.name))
    }

    /// Returns whether it was the context that ended an answer.
    fn has_filled(&self, summary: &GenerationSummary) -> bool {
        let (n_prompt, n_predicted) = (summary.prompt_tokens.len(), summary.tokens.len());
        let is_short = self.asked.request.max_tokens.is_none_or(|max| n_predicted < max);
        let is_full = n_prompt + n_predicted + 1 >= self.call.model.service.info().n_ctx;
        summary.finish_reason == FinishReason::Length && is_short && is_full
    }
}

/// Returns the log-probabilities of tokens, if they are asked for.
fn probabilities<'t>(call: &Call, tokens: impl Iterator<Item = (u32, &'t TokenLogprobs)>) -> Option<Value> {
    match logprobs::of_chat(call, tokens) {
        Value::Object(mut logprobs) => logprobs.remove("content"),
        _ => None,
    }
}
