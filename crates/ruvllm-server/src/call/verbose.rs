//! An answer that is over, in llama.cpp's own form.

use ruvllm_api::fields::{Field, Kind, optional};
use ruvllm_engine::tokenizer::DecodeOptions;
use ruvllm_engine::{FinishReason, Service};
use serde_json::{Value, json};

use crate::call::answer::Summary;
use crate::call::generate::ParsedRequest;
use crate::call::{Call, settings};

/// Whether the tokens of an answer are told with it.
pub(crate) const RETURN_TOKENS: Field = optional(
    "return_tokens",
    Kind::Bool,
    "tell the tokens of the answer; those of a stream's pieces are told in any case",
);

/// An answer that is over.
pub(crate) struct Whole<'a> {
    pub call: &'a Call,
    pub asked: &'a ParsedRequest,
    pub summary: &'a Summary,
    /// Its index among several.
    pub index: usize,
    /// Text of it that was not told yet.
    pub content: &'a str,
    /// Whether the beginning of its prompt was left out.
    pub is_shortened: bool,
}

impl Whole<'_> {
    /// Returns all that llama.cpp's server tells of an answer.
    pub(crate) fn json(&self) -> Value {
        let Whole { call, asked, summary, index, content, is_shortened } = *self;
        let stop_type = match summary.finish_reason {
            FinishReason::Stop if summary.stopped_by.is_some() => "word",
            FinishReason::Stop => "eos",
            _ => "limit",
        };
        let (n_prompt, n_predicted) = (summary.n_prompt(), summary.n_answer());
        let decode = |service: &Service| {
            service.text().tokenizer().decode(&summary.prompt_tokens, DecodeOptions { render_special: true })
        };
        let prompt = call.model.engine().map(decode);
        let tokens = if call.body.is_set(RETURN_TOKENS.name) { &*summary.tokens } else { &[] };
        json!({
            "index": index,
            "content": content,
            "tokens": tokens,
            "stop": true,
            "model": &*call.model_name,
            "prompt": prompt,
            "generation_settings": settings::of_request(asked),
            "tokens_predicted": n_predicted,
            "tokens_evaluated": n_prompt,
            "tokens_cached": n_prompt + n_predicted,
            "truncated": is_shortened || self.has_filled(),
            "has_new_line": summary.text.contains('\n'),
            "stop_type": stop_type,
            "stopping_word": summary.stopped_by.as_deref().unwrap_or_default(),
            "timings": summary.timings(),
        })
    }

    /// Returns whether it was the context that ended the answer.
    fn has_filled(&self) -> bool {
        let Some(service) = self.call.model.engine() else { return false };
        let (n_prompt, n_predicted) = (self.summary.n_prompt(), self.summary.n_answer());
        let is_short = self.asked.request.max_tokens.is_none_or(|max| n_predicted < max);
        let is_full = n_prompt + n_predicted + 1 >= service.info().n_ctx;
        self.summary.finish_reason == FinishReason::Length && is_short && is_full
    }
}

/// Adds to an answer of another API what llama.cpp's server tells of it, where the server is to tell all: the prompt as the model
/// read it, and how tokens were chosen.
pub(crate) fn with_verbose(mut answer: Value, call: &Call, asked: &ParsedRequest, summary: &Summary) -> Value {
    if call.server.options().is_verbose && call.model.engine().is_some() {
        let content = &*summary.text;
        let whole = Whole { call, asked, summary, index: 0, content, is_shortened: false };
        answer["__verbose"] = whole.json();
    }
    answer
}
