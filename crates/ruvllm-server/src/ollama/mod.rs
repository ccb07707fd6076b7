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

use crate::adapters::{ADAPTER, ADAPTERS};
use crate::app::{Endpoint, Run};
use crate::error::Shape;
use crate::fields::{Field, Kind, Refused, optional, unheeded};
use crate::generate::{MODEL, PARSE_SPECIAL, PRIORITY, TIMEOUT, USER};
use crate::learning::PATTERNS;
use crate::sessions::SESSION;
use crate::{thinking, tools};

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
const REFUSED: &Refused = &[
    ("width", "the model writes text only"),
    ("height", "the model writes text only"),
    ("steps", "the model writes text only"),
];

const POST: Endpoint = Endpoint { shape: Shape::Ollama, run: Run::Model(chat::answer), ..Endpoint::POST };

const GET: Endpoint = Endpoint { method: Method::GET, ..POST };

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/api/generate",
        summary: "Answers a prompt, in the API of Ollama; without one it loads the model",
        fields: &[generate::FIELDS, GENERATION],
        refused: REFUSED,
        answers: &["model", "created_at", "response", "done"],
        run: Run::Model(generate::answer),
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
        run: Run::Model(embed::answer),
        ..POST
    },
    Endpoint {
        path: "/api/embeddings",
        summary: "Returns the embedding of a text, in the older way of Ollama's API",
        fields: &[embed::OLDER, embed::COMMON],
        answers: &["embedding"],
        run: Run::Model(embed::older),
        ..POST
    },
    Endpoint {
        path: "/api/tags",
        summary: "Lists what is served, in the API of Ollama",
        answers: &["models"],
        run: Run::Server(models::tags),
        ..GET
    },
    Endpoint {
        path: "/api/ps",
        summary: "Lists what is loaded, in the API of Ollama",
        answers: &["models"],
        run: Run::Server(models::ps),
        ..GET
    },
    Endpoint {
        path: "/api/show",
        summary: "Describes a model, in the API of Ollama",
        fields: &[models::SHOW],
        answers: &["details", "model_info", "capabilities", "template", "parameters", "modelfile", "modified_at"],
        run: Run::Model(models::show),
        ..POST
    },
    Endpoint {
        path: "/api/version",
        summary: "Returns the version of Ollama's API that is spoken",
        needs_key: false,
        answers: &["version", "ruvllm"],
        run: Run::Server(models::version),
        ..GET
    },
    Endpoint {
        path: "/api/pull",
        summary: "Says success for a model that is served, and else how it is downloaded",
        fields: &[pull::FIELDS],
        answers: &["status"],
        run: Run::Server(pull::pull),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/api/delete",
        summary: "Refuses: says how a model is deleted",
        answers: &["status"],
        run: Run::Server(pull::delete),
        ..POST
    },
];
