//! The API of Ollama: generate, chat, embed, and the list of models.
//!
//! Answers are lines of JSON unless `stream` is false. Models are known by their names here with a tag, `latest` where there
//! is none. Requests become those of the other APIs: the same prompts, tools, forms and samplers.

mod answer;
mod chat;
mod embed;
mod generate;
mod messages;
mod models;
mod names;
mod options;
mod pull;
use axum::http::Method;
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::error::Shape;
use ruvllm_api::fields::{Field, Kind, Unsupported, optional, unheeded};
use ruvllm_api::generation::{MODEL, PARSE_SPECIAL, PRIORITY, TIMEOUT, USER};
use ruvllm_api::learning::PATTERNS;
use ruvllm_api::session::SESSION;
use ruvllm_api::{thinking, tools};

use crate::call::{Endpoint, Handler};

pub(crate) use names::resolve;

const KEEP_ALIVE: Field = unheeded("keep_alive", Kind::Any, "models are kept as the server's options say");

const TRUNCATE: Field = optional(
    "truncate",
    Kind::Bool,
    "leave out the oldest of a prompt, and the end of a text to embed, that is too long; so unless this is false",
);

/// What requests for text may say, however they give the prompt.
const GENERATION: &[Field] = &[
    MODEL,
    options::FIELD,
    optional(
        "format",
        Kind::Either(&[Kind::Word(&["json", ""]), Kind::Map(&Kind::Any)]),
        "the form of the answer: json for any object, or a JSON Schema",
    ),
    optional("stream", Kind::Bool, "send the answer in pieces, each a line of JSON; so unless this is false"),
    thinking::THINK,
    TRUNCATE,
    optional("shift", Kind::Only("false", "an answer ends where the context does"), "go on beyond the context"),
    optional("logprobs", Kind::Bool, "tell the log-probability of each token"),
    optional("top_logprobs", Kind::Int(0, 20), "and those of this many of the likeliest ones"),
    KEEP_ALIVE,
    ADAPTER,
    ADAPTERS,
    PARSE_SPECIAL,
    TIMEOUT,
    PRIORITY,
    SESSION,
    PATTERNS,
    USER,
];

/// What clients of Ollama ask for and this server does not do.
const UNSUPPORTED: &Unsupported = &[
    ("width", "the model writes text only"),
    ("height", "the model writes text only"),
    ("steps", "the model writes text only"),
];

const POST: Endpoint = Endpoint { shape: Shape::Ollama, run: Handler::Model(chat::answer), ..Endpoint::POST };

const GET: Endpoint = Endpoint { method: Method::GET, ..POST };

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/generate",
        summary: "Answers a prompt, in the API of Ollama; without one it loads the model",
        fields: &[generate::FIELDS, GENERATION],
        unsupported: UNSUPPORTED,
        answers: &["model", "created_at", "response", "done"],
        run: Handler::Model(generate::answer),
        ..POST
    },
    Endpoint {
        path: "/api/chat",
        summary: "Answers a conversation, in the API of Ollama; without one it loads the model",
        fields: &[chat::FIELDS, tools::CHAT, GENERATION],
        answers: &["model", "created_at", "message", "done"],
        ..POST
    },
    Endpoint {
        path: "/api/embed",
        summary: "Returns the embeddings of texts, in the API of Ollama",
        fields: &[embed::FIELDS, embed::COMMON],
        answers: &["model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"],
        run: Handler::Model(embed::answer),
        ..POST
    },
    Endpoint {
        path: "/api/embeddings",
        summary: "Returns the embedding of a text, in the older way of Ollama's API",
        fields: &[embed::OLDER, embed::COMMON],
        answers: &["embedding"],
        run: Handler::Model(embed::older),
        ..POST
    },
    Endpoint {
        path: "/api/tags",
        summary: "Lists what is served, in the API of Ollama",
        answers: &["models"],
        run: Handler::Server(models::tags),
        ..GET
    },
    Endpoint {
        path: "/api/ps",
        summary: "Lists what is loaded, in the API of Ollama",
        answers: &["models"],
        run: Handler::Server(models::ps),
        ..GET
    },
    Endpoint {
        path: "/api/show",
        summary: "Describes a model, in the API of Ollama",
        fields: &[models::SHOW],
        answers: &["details", "model_info", "capabilities", "template", "parameters", "modelfile", "modified_at"],
        run: Handler::Model(models::show),
        ..POST
    },
    Endpoint {
        path: "/api/version",
        summary: "Returns the version of Ollama's API that is spoken",
        needs_key: false,
        answers: &["version", "ruvllm"],
        run: Handler::Server(models::version),
        ..GET
    },
    Endpoint {
        path: "/api/pull",
        summary: "Says success for a model that is served, and else how it is downloaded",
        fields: &[pull::FIELDS],
        answers: &["status"],
        run: Handler::Server(pull::pull),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/api/delete",
        summary: "Refuses: says how a model is deleted",
        answers: &["status"],
        run: Handler::Server(pull::delete),
        ..POST
    },
];
