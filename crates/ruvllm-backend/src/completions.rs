//! Whole requests, for a backend that runs them elsewhere and gives no logits.

use std::ops::ControlFlow;

use serde_json::{Map, Value};

use crate::{BackendError, DeviceInfo, Interrupt};

/// A request for an answer, in the terms of OpenAI's chat API.
#[derive(Clone, Debug, Default)]
pub struct CompletionRequest {
    /// The conversation: objects with `role` and `content`.
    pub messages: Vec<Value>,
    /// A text that is continued as it is, instead of the conversation.
    pub prompt: Option<String>,
    /// Most tokens of the answer; `None` leaves it to the other side.
    pub max_tokens: Option<usize>,
    /// Temperature of the sampler; `None` leaves it to the other side, as the fields below.
    pub temperature: Option<f32>,
    /// Mass of the most likely tokens that are sampled from.
    pub top_p: Option<f32>,
    /// Seed of the sampler.
    pub seed: Option<u64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Functions that may be called, as OpenAI writes them.
    pub tools: Vec<Value>,
    /// The one that must be called, or whether any must.
    pub tool_choice: Option<Value>,
    /// The form of the answer: `json_object`, `json_schema`.
    pub response_format: Option<Value>,
    /// Log-probabilities of the tokens, and of this many of the most likely ones in the place of each.
    pub top_logprobs: Option<usize>,
    /// More fields of the body, as the other side knows them.
    pub extra: Map<String, Value>,
    /// Ends the request from another thread.
    pub interrupt: Interrupt,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum CompletionEvent {
    /// Text of the answer.
    Text(String),
    /// Text of the thought before it.
    Thought(String),
    /// A piece of a function call.
    Call(CallPiece),
    /// Log-probabilities of the tokens of the piece before, as OpenAI writes them.
    Logprobs(Vec<Value>),
}

/// A piece of a function call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallPiece {
    /// Number of the call in the answer.
    pub index: usize,
    /// Its identifier, in its first piece.
    pub id: Option<String>,
    /// The function's name, in its first piece.
    pub name: Option<String>,
    /// More text of its arguments, which are JSON together.
    pub arguments: String,
}

/// Tokens of a request, as the other side counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that were cached.
    pub cached_tokens: usize,
    /// Tokens of the answer.
    pub completion_tokens: usize,
}

/// The end of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletionEnd {
    /// The reason, as OpenAI names them: `stop`, `length`, `tool_calls`; `None` where the caller stopped it.
    pub finish_reason: Option<String>,
    /// Tokens that it took, if the other side says so.
    pub usage: Option<Usage>,
    /// Name of the model that answered.
    pub model: String,
}

/// A backend that takes whole requests: another server, or a runtime with a scheduler of its own.
///
/// Any number of threads may ask at once. There are no sequences, no logits and no KV cache on this side of it.
pub trait Completions: Send + Sync {
    /// Returns the name of the model that answers, and of the backend.
    fn info(&self) -> (&str, &DeviceInfo);

    /// Answers a request. `each` is told every piece as it comes; when it breaks off, or the request's [`Interrupt`] is set, the
    /// request is given up.
    ///
    /// # Errors
    /// The other side refuses the request, cannot be reached, or breaks off; pieces told until then are part of the answer.
    fn generate(
        &self,
        request: &CompletionRequest,
        each: &mut dyn FnMut(CompletionEvent) -> ControlFlow<()>,
    ) -> Result<CompletionEnd, BackendError>;

    /// Returns vectors of texts, one for each.
    ///
    /// # Errors
    /// As [`Completions::generate`]; the other side makes none.
    fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, BackendError>;

    /// Asks whether the other side takes requests, and waits for some seconds at most. By default it always does.
    ///
    /// # Errors
    /// It does not answer.
    fn check(&self) -> Result<(), BackendError> {
        Ok(())
    }
}
