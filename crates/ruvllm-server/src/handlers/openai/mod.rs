//! The API of OpenAI: chat, completions, embeddings, models; and what Jina and Cohere added, reranking.

pub(crate) mod batches;
pub(crate) mod chat;
mod completions;
pub(crate) mod embeddings;
mod models;
mod rerank;
mod responses;
pub(crate) mod stored;
use axum::http::Method;
use ruvllm_api::fields::{Field, Kind, Unsupported, optional, unheeded};
use ruvllm_api::generation::GENERATION;
use ruvllm_api::llamacpp::{ALIKE, OF_CHATS};
use ruvllm_api::sampling::SAMPLING;
use ruvllm_api::{BUILD, tools};
use ruvllm_engine::FinishReason;
use serde_json::{Value, json};

use crate::call::answer::Usage;
use crate::call::generate::ParsedRequest;
use crate::call::{Call, Endpoint, Handler};

const POST: Endpoint = Endpoint { run: Handler::Model(chat::answer), ..Endpoint::POST };

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
const UNSUPPORTED: &Unsupported = &[
    ("audio", "the model writes text only"),
    ("prediction", "predicted outputs are not taken; repeated text is fast without"),
    ("web_search_options", "the server does not search"),
    ("functions", "use tools"),
    ("function_call", "use tool_choice"),
];

/// The same of the API of responses.
const RESPONSES_UNSUPPORTED: &Unsupported = &[
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
        unsupported: UNSUPPORTED,
        answers: &["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"],
        ..POST
    },
    Endpoint {
        path: "/v1/completions",
        summary: "Continues a text",
        fields: &[completions::FIELDS, SAMPLING, GENERATION, HINTS, ALIKE, OF_CHATS],
        unsupported: UNSUPPORTED,
        answers: &["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"],
        run: Handler::Model(completions::answer),
        ..POST
    },
    Endpoint {
        path: "/v1/responses",
        also: &["/responses"],
        summary: "Answers an input, which may go on from an earlier one, and keeps the answer",
        fields: &[responses::PROMPT, responses::FIELDS, tools::RESPONSES, SAMPLING, HINTS, ALIKE, OF_CHATS],
        unsupported: RESPONSES_UNSUPPORTED,
        answers: &["id", "object", "created_at", "status", "model", "output", "usage"],
        run: Handler::Model(responses::answer),
        ..POST
    },
    Endpoint {
        path: "/v1/responses/input_tokens",
        also: &["/responses/input_tokens"],
        summary: "Counts the tokens of the prompt that a response would have",
        fields: &[responses::PROMPT, tools::RESPONSES],
        unsupported: RESPONSES_UNSUPPORTED,
        answers: &["object", "input_tokens"],
        run: Handler::Model(responses::count),
        ..POST
    },
    Endpoint {
        path: "/v1/embeddings",
        summary: "Returns the embedding of texts",
        fields: &[embeddings::FIELDS],
        answers: &["object", "data", "model", "usage"],
        run: Handler::Model(embeddings::answer),
        ..POST
    },
    Endpoint {
        path: "/v1/rerank",
        also: &["/rerank", "/reranking", "/v1/reranking"],
        summary: "Puts documents in the order in which they fit a query",
        fields: &[rerank::FIELDS],
        answers: &["id", "object", "model", "results", "usage"],
        run: Handler::Model(rerank::answer),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/models",
        summary: "Lists what is served",
        answers: &["object", "data"],
        run: Handler::Server(models::list),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/models",
        summary: "Lists what is served, to whoever asks; adapters to those with a key",
        needs_key: false,
        answers: &["object", "data"],
        run: Handler::Server(models::list),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/models/{*model}",
        summary: "Returns what is known about a served model",
        answers: &["id", "object", "created", "owned_by"],
        run: Handler::Server(models::one),
        ..POST
    },
];

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

/// Returns what every answer begins with. The fingerprint tells builds and instruction sets apart: within one, a seed
/// gives the same tokens.
fn head(call: &Call, prefix: &str, object: &str) -> Value {
    json!({
        "id": format!("{prefix}-{}", call.id),
        "object": object,
        "created": now_s(),
        "model": &*call.model_name,
        "system_fingerprint": format!("{BUILD}-{}", fingerprint(call)),
    })
}

/// Returns what the tokens of an answer depend on beside the build: the instruction set, or that another server chooses them.
fn fingerprint(call: &Call) -> &str {
    call.model.engine().map_or("remote", |service| &service.info().device.name)
}

/// Returns a piece of a streamed answer. Where the last one tells the usage, the others say that it is to come.
fn chunk(head: &Value, asked: &ParsedRequest, choices: Value) -> Value {
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
