//! The API of OpenAI: tables of fields, and answers as its clients read them. The server and the module of browsers write them
//! alike.

pub mod chat;
pub mod completions;
pub mod embeddings;

use ruvllm_engine::{FinishReason, GenerationSummary};
use serde_json::{Value, json};

use crate::BUILD;
use crate::fields::{Field, Kind, Unsupported, optional, unheeded};

/// Fields that clients of OpenAI's API send along, and the server does without.
pub const HINTS: &[Field] = &[
    optional("prompt_cache_key", Kind::Text, "a hint for caches; prompts that begin alike are found by their tokens"),
    optional("safety_identifier", Kind::Text, "a label of whoever asks; the answer does not depend on it"),
    unheeded("prompt_cache_retention", Kind::Any, "what is cached is kept while there is room"),
    unheeded("client_metadata", Kind::Any, "a label"),
    unheeded("keep_alive", Kind::Any, "models are kept as the server's options say"),
    unheeded("service_tier", Kind::Text, "there is one tier"),
];

/// Length that an answer should have, of which there is one way.
pub const VERBOSITY: Field = unheeded(
    "verbosity",
    Kind::Word(&["low", "medium", "high"]),
    "how long the answer should be; what is said in the prompt counts",
);

/// Fields of OpenAI's API that ask for what this server does not do.
pub const UNSUPPORTED: &Unsupported = &[
    ("audio", "the model writes text only"),
    ("prediction", "predicted outputs are not taken; repeated text is fast without"),
    ("web_search_options", "the server does not search"),
    ("functions", "use tools"),
    ("function_call", "use tool_choice"),
];

/// Counts of tokens, over all answers to a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Tokens of the prompts.
    pub n_prompt: usize,
    /// Tokens of them that were cached.
    pub n_cached: usize,
    /// Tokens of the answers.
    pub n_answer: usize,
    /// Tokens of the answers that are thought.
    pub n_thought: usize,
}

impl Usage {
    /// Returns the counts of one answer.
    pub fn of(summary: &GenerationSummary) -> Usage {
        Usage {
            n_prompt: summary.prompt_tokens.len(),
            n_cached: summary.timings.cached_tokens,
            n_answer: summary.tokens.len(),
            n_thought: summary.n_thought as usize,
        }
    }

    /// Adds an answer. `is_first` of those to the same prompt, which counts once.
    pub fn add(&mut self, answer: Usage, is_first: bool) {
        self.n_answer = self.n_answer.saturating_add(answer.n_answer);
        self.n_thought += answer.n_thought;
        if is_first {
            self.n_prompt = self.n_prompt.saturating_add(answer.n_prompt);
            self.n_cached = self.n_cached.saturating_add(answer.n_cached);
        }
    }

    /// Returns the counts as OpenAI names them.
    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.n_prompt,
            "completion_tokens": self.n_answer,
            "total_tokens": self.n_prompt + self.n_answer,
            "prompt_tokens_details": { "cached_tokens": self.n_cached },
            "completion_tokens_details": { "reasoning_tokens": self.n_thought },
        })
    }
}

/// Returns why an answer ended, as OpenAI names it.
pub fn finish_json(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        _ => "length",
    }
}

/// Beginning of an answer, for [`head`].
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The id, with what its kind begins with.
    pub id: &'a str,
    /// Kind of the answer.
    pub object: &'a str,
    /// Name of the model.
    pub model: &'a str,
    /// Device that the tokens of an answer depend on, besides the build: the instruction set, or that another server chooses them.
    pub device: &'a str,
}

/// Returns what every answer begins with. The fingerprint tells builds and instruction sets apart: within one, a seed
/// gives the same tokens.
pub fn head(Head { id, object, model, device }: Head<'_>) -> Value {
    json!({
        "id": id,
        "object": object,
        "created": now_s(),
        "model": model,
        "system_fingerprint": format!("{BUILD}-{device}"),
    })
}

/// Returns a piece of a streamed answer. Where the last one tells the usage, the others say that it is to come.
pub fn chunk(head: &Value, include_usage: bool, choices: Value) -> Value {
    let mut chunk = head.clone();
    chunk["choices"] = choices;
    if include_usage {
        chunk["usage"] = Value::Null;
    }
    chunk
}

/// Returns seconds since 1970.
pub fn now_s() -> u64 {
    web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
