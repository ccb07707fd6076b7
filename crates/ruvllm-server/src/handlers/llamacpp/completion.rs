//! `/completion` and `/infill`: texts go on as they are, or a gap in one is filled, in llama.cpp's shapes.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::{Field, Kind, optional, required, unheeded};
use ruvllm_api::input::{INPUT, encode_part, read_input};
use ruvllm_api::logprobs;
use ruvllm_api::progress::with_progress;
use ruvllm_api::timings::{Clocks, timed};
use ruvllm_engine::TokenLogprobs;
use ruvllm_engine::tokenizer::InfillFile;
use ruvllm_server_state::gate::offload;
use serde_json::{Value, json};

use crate::call::answer::{Chunk, Summary};
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::grammar::grammar;
use crate::call::prompt::{Prompt, shorten};
use crate::call::response::json_response;
use crate::call::stream::{self, Disconnected, Events};
use crate::call::verbose::Whole;
use crate::call::{Call, HandlerFuture, settings};

/// The text that goes on.
pub(super) const PROMPT: &[Field] = &[required("prompt", INPUT, "a text, or its tokens; or several of them")];

/// How many likely tokens are told with each.
pub(super) const N_PROBS: Field =
    optional("n_probs", Kind::Int(0, 256), "tell the log-probability of each token, and of this many of the likeliest");

/// Whether the probabilities are those of the draw.
pub(super) const POST_SAMPLING: Field = optional(
    "post_sampling_probs",
    Kind::Bool,
    "tell the probabilities of the distribution that each token was drawn from (prob, top_probs), instead of the model's own",
);

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
pub(super) fn complete(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let input = call.body.get("prompt").cloned().unwrap_or_default();
        let parse_special = call.body.flag("parse_special", true);
        let text = call.text()?.clone();
        let encode = move || read_input(&input, "prompt", |part| encode_part(text.tokenizer(), part, parse_special));
        let prompts = offload(encode).await?;
        answer(call, prompts).await
    })
}

/// Fills a gap.
pub(super) fn fill(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let text_of = |name: &str| call.body.text(name).unwrap_or_default().to_owned();
        let prefix = text_of("input_prefix") + &text_of("prompt");
        let (suffix, text) = (text_of("input_suffix"), call.text()?.clone());
        let file = |file: &Value| InfillFile {
            // llama.cpp's name for a file without one.
            name: file["filename"].as_str().unwrap_or("tmp").to_owned(),
            text: file["text"].as_str().unwrap_or_default().to_owned(),
        };
        let files: Vec<InfillFile> = call.body.list("input_extra").into_iter().flatten().map(file).collect();
        let encode = move || Ok(text.tokenizer().encode_infill_among(&files, &prefix, &suffix)?);
        let prompt = offload(encode).await?;
        answer(call, vec![prompt]).await
    })
}

/// A request that is being answered.
struct Writing {
    call: Call,
    asked: ParsedRequest,
    /// The prompts whose beginnings were left out.
    is_shortened: Vec<bool>,
}

/// Writes the answers to prompts.
async fn answer(call: Call, mut prompts: Vec<Vec<u32>>) -> Result<Response<Body>, ApiError> {
    let mut asked = ParsedRequest::read(&call, None)?;
    asked.request.logprobs = call.body.count(N_PROBS.name).filter(|&n| n > 0);
    asked.request.logprobs_of_draw = call.body.is_set(POST_SAMPLING.name);
    rule_out_ends(&call, &mut asked)?;
    asked.request.grammar = grammar(&call, &asked.request).await?;
    let is_shortened = shorten(&call, &asked, &mut prompts)?;
    let choices = Choices::start(&call, &asked, prompts.into_iter().map(Prompt::Tokens).collect())?;
    let writing = Writing { call, asked, is_shortened };
    if writing.asked.is_stream {
        return Ok(stream::respond(&stream::EVENTS, |events| writing.write(choices, events)));
    }
    let summaries = choices.collect().await?;
    let whole = |(i, summary): (usize, &Summary)| {
        writing.ended(i, &summary.text, summary, probabilities(&writing.call, summary.token_logprobs()))
    };
    let mut answers: Vec<Value> = summaries.iter().enumerate().map(whole).collect();
    // One answer stands for itself, as in llama.cpp.
    let answer = if answers.len() == 1 { answers.remove(0) } else { json!(answers) };
    Ok(json_response(StatusCode::OK, &answer))
}

impl Writing {
    /// Writes answers in pieces.
    async fn write(self, mut choices: Choices, events: Arc<Events>) -> Result<(), Disconnected> {
        let mut clocks = Clocks::new(&self.call.body, self.is_shortened.len() * self.asked.n_choices);
        loop {
            match choices.next().await {
                Ok(Some((i, Chunk::Progress(progress)))) => {
                    let piece = json!({ "index": i, "content": "", "tokens": [], "stop": false });
                    events.send(&with_progress(piece, &progress)).await?;
                }
                Ok(Some((i, Chunk::Token(token)))) => {
                    let mut piece = json!({ "index": i, "content": token.text, "tokens": [token.id()], "stop": false });
                    if let Some(told) = probabilities(&self.call, token.token_logprobs().into_iter()) {
                        piece["completion_probabilities"] = told;
                    }
                    events.send(&timed(piece, &clocks.tick(i))).await?;
                }
                Ok(Some((i, Chunk::End(rest, summary)))) => events.send(&self.ended(i, &rest, &summary, None)).await?,
                Ok(None) => return Ok(()),
                Err(error) => return events.send(&error.body(Shape::OpenAi)).await,
            }
        }
    }

    /// Returns an answer that is over, with `content` of it.
    fn ended(&self, i: usize, content: &str, summary: &Summary, probabilities: Option<Value>) -> Value {
        let (call, asked) = (&self.call, &self.asked);
        let is_shortened = self.is_shortened[i / asked.n_choices];
        let mut answer = Whole { call, asked, summary, index: i, content, is_shortened }.json();
        if let Some(told) = probabilities {
            answer["completion_probabilities"] = told;
        }
        settings::chosen(answer, &self.call.body.texts(RESPONSE_FIELDS.name))
    }
}

/// Rules out what ends an answer where a request does not want it to end, as llama.cpp does.
fn rule_out_ends(call: &Call, asked: &mut ParsedRequest) -> Result<(), ApiError> {
    if asked.request.ignore_eos {
        let ends = call.text()?.tokenizer().end_of_generation();
        asked.request.sampling.logit_bias.extend(ends.map(|id| (id, f32::NEG_INFINITY)));
    }
    Ok(())
}

/// Returns the log-probabilities of tokens, if they are asked for; of their draws the probabilities.
fn probabilities<'t>(call: &Call, tokens: impl Iterator<Item = (u32, &'t TokenLogprobs)>) -> Option<Value> {
    let Value::Object(mut logprobs) = logprobs::of_chat(call.answer_tokens()?, tokens) else { return None };
    let mut told = logprobs.remove("content")?;
    if call.body.is_set(POST_SAMPLING.name) {
        told.as_array_mut()?.iter_mut().for_each(of_draw);
    }
    Some(told)
}

/// Turns the log-probabilities of a token into probabilities, under llama.cpp's names.
fn of_draw(token: &mut Value) {
    let Some(token) = token.as_object_mut() else { return };
    let probability = token.remove("logprob").and_then(|logprob| logprob.as_f64()).map(f64::exp);
    token.insert("prob".to_owned(), json!(probability));
    if let Some(mut top) = token.remove("top_logprobs") {
        top.as_array_mut().into_iter().flatten().for_each(of_draw);
        token.insert("top_probs".to_owned(), top);
    }
}
