//! An answer in pieces: chunks of OpenAI's chat API.

use std::ops::ControlFlow;

use ruvllm_backend::{BackendError, BackendErrorKind, CallPiece, CompletionEnd, CompletionEvent, Usage};
use serde_json::{Value, json};

/// Tells pieces, and returns whether to go on.
type Each<'a> = dyn FnMut(CompletionEvent) -> ControlFlow<()> + 'a;

/// An answer so far.
pub(crate) struct Answer {
    end: CompletionEnd,
    is_given_up: bool,
}

impl Answer {
    pub(crate) fn new(model: &str) -> Answer {
        Answer { end: CompletionEnd { model: model.to_owned(), ..Default::default() }, is_given_up: false }
    }

    /// Takes the data of an event and tells what is in it.
    ///
    /// # Errors
    /// It is no chunk, or an error of the other side.
    pub(crate) fn take(&mut self, data: &str, each: &mut Each<'_>) -> Result<ControlFlow<()>, BackendError> {
        let broken = |line: String| BackendError::new(BackendErrorKind::Remote, line);
        let chunk: Value =
            serde_json::from_str(data).map_err(|error| broken(format!("the server's stream is no JSON: {error}")))?;
        if let Some(error) = chunk.get("error") {
            let line = error["message"].as_str().unwrap_or("no reason was given");
            return Err(broken(format!("the server broke off: {line}")));
        }
        if let Some(usage) = chunk.get("usage").and_then(usage) {
            self.end.usage = Some(usage);
        }
        if let Some(model) = chunk["model"].as_str().filter(|model| !model.is_empty()) {
            self.end.model = model.to_owned();
        }
        let choice = &chunk["choices"][0];
        if let Some(reason) = choice["finish_reason"].as_str() {
            self.end.finish_reason = Some(reason.to_owned());
        }
        let told = pieces(choice).try_for_each(each);
        self.is_given_up |= told.is_break();
        Ok(told)
    }

    /// Ends an answer that its caller gave up.
    pub(crate) fn given_up(self) -> CompletionEnd {
        CompletionEnd { finish_reason: None, ..self.end }
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// The stream ended before the answer did, and not by the caller's wish.
    pub(crate) fn end(self) -> Result<CompletionEnd, BackendError> {
        if self.is_given_up {
            return Ok(self.given_up());
        }
        if self.end.finish_reason.is_none() {
            let line = "the server's stream ended before the answer did; ask again";
            return Err(BackendError::new(BackendErrorKind::Remote, line));
        }
        Ok(self.end)
    }
}

/// Iterates over the pieces of a chunk.
fn pieces(choice: &Value) -> impl Iterator<Item = CompletionEvent> {
    let delta = &choice["delta"];
    let text = |name: &str| delta[name].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let thought = text("reasoning_content").or_else(|| text("reasoning")).map(CompletionEvent::Thought);
    let calls = delta["tool_calls"].as_array().into_iter().flatten().map(call).map(CompletionEvent::Call);
    let logprobs = logprobs(&choice["logprobs"]);
    // Of a text that is continued the pieces are no changes of a message.
    let continued = || choice["text"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let text = text("content").or_else(continued).map(CompletionEvent::Text);
    thought.into_iter().chain(text).chain(calls).chain(logprobs.map(CompletionEvent::Logprobs))
}

/// Returns the log-probabilities of a piece as chats have them: those of a continued text are lists beside each other.
fn logprobs(logprobs: &Value) -> Option<Vec<Value>> {
    let list = |name: &str| logprobs[name].as_array();
    let of_token = |(i, token): (usize, &Value)| {
        let top = logprobs["top_logprobs"][i].as_object().into_iter().flatten();
        let top = top.map(|(token, logprob)| json!({ "token": token, "logprob": logprob }));
        json!({ "token": token, "logprob": logprobs["token_logprobs"][i], "top_logprobs": top.collect::<Vec<_>>() })
    };
    let found = match list("content") {
        Some(content) => content.clone(),
        None => list("tokens").into_iter().flatten().enumerate().map(of_token).collect(),
    };
    (!found.is_empty()).then_some(found)
}

fn call(call: &Value) -> CallPiece {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    CallPiece {
        index: call["index"].as_u64().unwrap_or(0) as usize,
        id: text(&call["id"]),
        name: text(&call["function"]["name"]),
        arguments: text(&call["function"]["arguments"]).unwrap_or_default(),
    }
}

fn usage(usage: &Value) -> Option<Usage> {
    let count = |value: &Value| value.as_u64().map(|n| n as usize);
    Some(Usage {
        prompt_tokens: count(&usage["prompt_tokens"])?,
        cached_tokens: count(&usage["prompt_tokens_details"]["cached_tokens"]).unwrap_or(0),
        completion_tokens: count(&usage["completion_tokens"])?,
    })
}
