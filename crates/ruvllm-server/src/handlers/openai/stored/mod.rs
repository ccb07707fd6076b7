//! Answers and conversations that are kept for whoever asked for them: in the store of the witness log, or in memory where
//! the server has none.

pub(super) mod conversations;
mod items;
mod own;
pub(super) mod pages;
mod responses;
mod turn;
use axum::http::{Method, StatusCode};
use ruvllm_api::error::{ApiError, without_numbers};
use ruvllm_api::fields::{Field, Kind, optional, required, unheeded};
use ruvllm_sona::SonaError;

use crate::call::{Endpoint, Handler};
use crate::handlers::openai::responses::ITEM;

pub(super) use turn::Keeping;

/// The field that asks for an answer to be kept.
pub(super) const STORE: Field = optional(
    "store",
    Kind::Bool,
    "keep the answer for later requests; so by default, for 30 days or while there is room",
);
/// The field that names the answer that a request goes on from.
pub(super) const PREVIOUS: Field = optional(
    "previous_response_id",
    Kind::Text,
    "the kept answer that this goes on from: its input and output come first; its instructions do not",
);
/// The field that names the conversation that a request goes on with.
pub(super) const CONVERSATION: Field = optional(
    "conversation",
    Kind::Either(&[Kind::Text, Kind::Object(&[required("id", Kind::Text, "its id")])]),
    "the kept conversation that this goes on with: its items come first, and input and output are added to it",
);

const METADATA: Kind = Kind::Map(&Kind::Text);
const METADATA_DOC: &str = "labels that come back with it: up to 16, of 64 bytes, and 512 of the value";

const NEW_CONVERSATION: &[Field] = &[
    optional("items", Kind::List(&ITEM, 0, 20), "the items that it begins with"),
    optional("metadata", METADATA, METADATA_DOC),
];

const NEW_ITEMS: &[Field] = &[required("items", Kind::List(&ITEM, 1, 20), "the items that are added")];

const ONE: &[Field] = &[
    INCLUDE,
    optional("stream", Kind::Only("false", "an answer that is over comes whole"), "send it in pieces"),
    unheeded("include_obfuscation", Kind::Bool, "events are not padded"),
];

const INCLUDE: Field =
    unheeded("include", Kind::List(&Kind::Text, 0, 64), "more that items may hold; there is nothing");

const GET: Endpoint = Endpoint { method: Method::GET, ..Endpoint::POST };
const DELETE: Endpoint = Endpoint { method: Method::DELETE, ..Endpoint::POST };

const RESPONSE: &[&str] = &["id", "object", "created_at", "status", "model", "output", "usage"];
const CONVERSED: &[&str] = &["id", "object", "created_at", "metadata"];
const DELETED: &[&str] = &["id", "object", "deleted"];
const LISTED: &[&str] = &["object", "data", "first_id", "last_id", "has_more"];

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/responses",
        also: &["/responses"],
        summary: "Forgets all kept answers and conversations of the caller, on the disk as well",
        answers: &["deleted"],
        run: Handler::Server(responses::forget),
        ..DELETE
    },
    Endpoint {
        path: "/v1/responses/{response}",
        also: &["/responses/{response}"],
        summary: "Returns a kept answer",
        query: ONE,
        answers: RESPONSE,
        run: Handler::Server(responses::one),
        ..GET
    },
    Endpoint {
        path: "/v1/responses/{response}",
        also: &["/responses/{response}"],
        summary: "Removes a kept answer",
        answers: DELETED,
        run: Handler::Server(responses::remove),
        ..DELETE
    },
    Endpoint {
        path: "/v1/responses/{response}/input_items",
        also: &["/responses/{response}/input_items"],
        summary: "Lists what a kept answer was made from, with what it went on from",
        query: pages::LIST,
        answers: LISTED,
        run: Handler::Server(responses::input_items),
        ..GET
    },
    Endpoint {
        path: "/v1/conversations",
        summary: "Begins a conversation that the server keeps",
        fields: &[NEW_CONVERSATION],
        answers: CONVERSED,
        run: Handler::Server(conversations::create),
        ..Endpoint::POST
    },
    Endpoint {
        path: "/v1/conversations/{conversation}",
        summary: "Describes a kept conversation",
        answers: CONVERSED,
        run: Handler::Server(conversations::one),
        ..GET
    },
    Endpoint {
        path: "/v1/conversations/{conversation}",
        summary: "Changes the labels of a kept conversation",
        fields: &[&[required("metadata", METADATA, METADATA_DOC)]],
        answers: CONVERSED,
        run: Handler::Server(conversations::update),
        ..Endpoint::POST
    },
    Endpoint {
        path: "/v1/conversations/{conversation}",
        summary: "Removes a kept conversation with its items",
        answers: DELETED,
        run: Handler::Server(conversations::remove),
        ..DELETE
    },
    Endpoint {
        path: "/v1/conversations/{conversation}/items",
        summary: "Lists the items of a kept conversation",
        query: pages::LIST,
        answers: LISTED,
        run: Handler::Server(items::list),
        ..GET
    },
    Endpoint {
        path: "/v1/conversations/{conversation}/items",
        summary: "Adds items to a kept conversation",
        fields: &[NEW_ITEMS],
        answers: LISTED,
        run: Handler::Server(items::add),
        ..Endpoint::POST
    },
    Endpoint {
        path: "/v1/conversations/{conversation}/items/{item}",
        summary: "Returns an item of a kept conversation",
        query: &[INCLUDE],
        answers: &["id", "type"],
        run: Handler::Server(items::one),
        ..GET
    },
    Endpoint {
        path: "/v1/conversations/{conversation}/items/{item}",
        summary: "Removes an item of a kept conversation",
        answers: CONVERSED,
        run: Handler::Server(items::remove),
        ..DELETE
    },
];

/// The store cannot be read or written.
fn failed(error: SonaError) -> ApiError {
    let line = format!("what is kept: {}", without_numbers(&error.to_string()));
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line)
}

/// There is no such thing of the caller's.
fn not_found(what: &str, id: &str, code: &'static str) -> ApiError {
    let id: String = id.chars().take(100).collect();
    ApiError::new(StatusCode::NOT_FOUND, format!("{what} with id '{id}' not found.")).code(code)
}
