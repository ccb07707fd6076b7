//! The API of OpenAI: chat, completions, embeddings, models; and what Jina and Cohere added, reranking.

pub(crate) mod chat;
mod completions;
pub(crate) mod embeddings;
mod input;
pub(crate) mod logprobs;
pub(crate) mod messages;
mod models;
mod rerank;
mod responses;
pub(crate) mod stored;

use axum::http::Method;
use ruvllm_engine::FinishReason;
use ruvllm_engine::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

pub(crate) use chat::prompt_max;
pub(crate) use input::{INPUT, Part, read_input};

use crate::app::{Call, Endpoint, Run};
use crate::error::ApiError;
use crate::fields::{Field, Kind, Refused, optional, unheeded};
use crate::generate::{Asked, GENERATION, Usage};
use crate::llamacpp::{ALIKE, OF_CHATS};
use crate::sampling::SAMPLING;
use crate::tools;

const POST: Endpoint = Endpoint { run: Run::Model(chat::answer), ..Endpoint::POST };

/// What clients of OpenAI's API send along, and the server does without.
const HINTS: &[Field] = &[
    optional("prompt_cache_key", Kind::Text, "a hint for caches; prompts that begin alike are found by their tokens"),
    optional("safety_identifier", Kind::Text, "a label of whoever asks; the answer does not depend on it"),
    unheeded("prompt_cache_retention", Kind::Any, "what is cached is kept while there is room"),
    unheeded("client_metadata", Kind::Any, "a label"),
    unheeded("keep_alive", Kind::Any, "models are kept as the server's options say"),
    unheeded("service_tier", Kind::Text, "there is one tier"),
];

/// How long an answer should be, of which there is one way.
const VERBOSITY: Field = unheeded(
    "verbosity",
    Kind::Word(&["low", "medium", "high"]),
    "how long the answer should be; what is said in the prompt counts",
);

/// Fields of OpenAI's API that ask for what this server does not do.
const REFUSED: &Refused = &[
    ("audio", "the model writes text only"),
    ("prediction", "predicted outputs are not taken; repeated text is fast without"),
    ("web_search_options", "the server does not search"),
    ("functions", "use tools"),
    ("function_call", "use tool_choice"),
];

/// The same of the API of responses.
const RESPONSES_REFUSED: &Refused = &[
    ("prompt", "the server keeps no prompts; send it"),
    ("max_tool_calls", "calls are the client's to make; parallel_tool_calls false asks for one at a time"),
    ("top_logprobs", "ask /v1/chat/completions"),
];

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/chat/completions",
        also: &["/chat/completions"],
        summary: "Answers a conversation",
        fields: &[chat::FIELDS, tools::CHAT, SAMPLING, GENERATION, HINTS, ALIKE, OF_CHATS],
        refused: REFUSED,
        answers: &["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"],
        ..POST
    },
    Endpoint {
        path: "/v1/completions",
        summary: "Continues a text",
        fields: &[completions::FIELDS, SAMPLING, GENERATION, HINTS, ALIKE, OF_CHATS],
        refused: REFUSED,
        answers: &["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"],
        run: Run::Model(completions::answer),
        ..POST
    },
    Endpoint {
        path: "/v1/responses",
        also: &["/responses"],
        summary: "Answers an input, which may go on from an earlier one, and keeps the answer",
        fields: &[responses::PROMPT, responses::FIELDS, tools::RESPONSES, SAMPLING, HINTS, ALIKE, OF_CHATS],
        refused: RESPONSES_REFUSED,
        answers: &["id", "object", "created_at", "status", "model", "output", "usage"],
        run: Run::Model(responses::answer),
        ..POST
    },
    Endpoint {
        path: "/v1/responses/input_tokens",
        also: &["/responses/input_tokens"],
        summary: "Counts the tokens of the prompt that a response would have",
        fields: &[responses::PROMPT, tools::RESPONSES],
        refused: RESPONSES_REFUSED,
        answers: &["object", "input_tokens"],
        run: Run::Model(responses::count),
        ..POST
    },
    Endpoint {
        path: "/v1/embeddings",
        summary: "Returns the embedding of texts",
        fields: &[embeddings::FIELDS],
        answers: &["object", "data", "model", "usage"],
        run: Run::Model(embeddings::answer),
        ..POST
    },
    Endpoint {
        path: "/v1/rerank",
        also: &["/rerank", "/reranking", "/v1/reranking"],
        summary: "Puts documents in the order in which they fit a query",
        fields: &[rerank::FIELDS],
        answers: &["id", "object", "model", "results", "usage"],
        run: Run::Model(rerank::answer),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/models",
        summary: "Lists what is served",
        answers: &["object", "data"],
        run: Run::Server(models::list),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/models",
        summary: "Lists what is served, to whoever asks; adapters to those with a key",
        needs_key: false,
        answers: &["object", "data"],
        run: Run::Server(models::list),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/models/{*model}",
        summary: "Returns what is known about a served model",
        answers: &["id", "object", "created", "owned_by"],
        run: Run::Server(models::one),
        ..POST
    },
];

/// Returns the tokens of a prompt, or of a part of one.
pub(crate) fn encode_part(tokenizer: &Tokenizer, part: Part<'_>, parse_special: bool) -> Result<Vec<u32>, ApiError> {
    Ok(match part.is_whole {
        true => tokenizer.encode_prompt(part.text, parse_special)?,
        false => tokenizer.encode(part.text, EncodeOptions { add_special: false, parse_special })?,
    })
}

/// Returns the counts of tokens as OpenAI names them.
fn usage_json(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_answer,
        "total_tokens": usage.n_prompt + usage.n_answer,
        "prompt_tokens_details": { "cached_tokens": usage.n_cached },
        "completion_tokens_details": { "reasoning_tokens": usage.n_thought },
    })
}

/// Returns why an answer ended, as OpenAI names it.
fn finish_json(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        _ => "length",
    }
}

/// The build, in the form of llama.cpp's: tools look for the `b`.
pub(crate) const BUILD: &str = concat!("b", env!("CARGO_PKG_VERSION"), "-ruvllm");

/// Returns what every answer begins with. The fingerprint tells builds and instruction sets apart: within one, a seed
/// gives the same tokens.
fn head(call: &Call, prefix: &str, object: &str) -> Value {
    json!({
        "id": format!("{prefix}-{}", call.id),
        "object": object,
        "created": now_s(),
        "model": &*call.model_name,
        "system_fingerprint": format!("{BUILD}-{}", call.model.service.info().device.name),
    })
}

/// Returns a piece of a streamed answer. Where the last one tells the usage, the others say that it is to come.
fn chunk(head: &Value, asked: &Asked, choices: Value) -> Value {
    let mut chunk = head.clone();
    chunk["choices"] = choices;
    if asked.include_usage {
        chunk["usage"] = Value::Null;
    }
    chunk
}

/// Returns seconds since 1970.
fn now_s() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
