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
use ruvllm_api::fields::Unsupported;
use ruvllm_api::llamacpp::{ALIKE, OF_CHATS};
use ruvllm_api::openai::{self as api, HINTS, Head, UNSUPPORTED};
use ruvllm_api::sampling::SAMPLING;
use ruvllm_api::tools;
use serde_json::Value;

use crate::call::generate::ParsedRequest;
use crate::call::{Call, Endpoint, Handler};

const POST: Endpoint = Endpoint { run: Handler::Model(chat::answer), ..Endpoint::POST };

/// Fields of the API of responses that ask for what this server does not do.
const RESPONSES_UNSUPPORTED: &Unsupported = &[
    ("prompt", "the server keeps no prompts; send it"),
    (
        "max_tool_calls",
        "calls of functions are the client's to make, and those of MCP servers' tools have the bounds of the server; parallel_tool_calls false asks for one at a time",
    ),
    ("top_logprobs", "ask /v1/chat/completions"),
];

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/chat/completions",
        also: &["/chat/completions"],
        summary: "Answers a conversation",
        fields: api::chat::TABLE,
        unsupported: UNSUPPORTED,
        answers: &["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"],
        ..POST
    },
    Endpoint {
        path: "/v1/completions",
        summary: "Continues a text",
        fields: api::completions::TABLE,
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
        fields: &[api::embeddings::FIELDS],
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

/// Returns what every answer begins with.
fn head(call: &Call, prefix: &str, object: &str) -> Value {
    let (id, device) = (format!("{prefix}-{}", call.id), fingerprint(call));
    api::head(Head { id: &id, object, model: &call.model_name, device })
}

/// Returns what the tokens of an answer depend on beside the build: the instruction set, or that another server chooses them.
fn fingerprint(call: &Call) -> &str {
    call.model.engine().map_or("remote", |service| &service.info().device.name)
}

/// Returns a piece of a streamed answer.
fn chunk(head: &Value, asked: &ParsedRequest, choices: Value) -> Value {
    api::chunk(head, asked.include_usage, choices)
}
