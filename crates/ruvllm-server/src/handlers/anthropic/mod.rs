//! The API of Anthropic: messages, and the count of their tokens.

mod messages;
use ruvllm_api::error::Shape;
use ruvllm_api::fields::Unsupported;
use ruvllm_api::tools;

use crate::call::{Endpoint, Handler};

/// Fields of Anthropic's API that ask for what this server does not do.
const UNSUPPORTED: &Unsupported =
    &[("container", "the server runs no containers"), ("mcp_servers", "the server calls no others")];

const POST: Endpoint = Endpoint {
    path: "/v1/messages",
    summary: "Answers a conversation, in the API of Anthropic",
    shape: Shape::Anthropic,
    fields: &[messages::CONVERSATION, tools::ANTHROPIC, messages::FORM, messages::ANSWER],
    unsupported: UNSUPPORTED,
    answers: &["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    run: Handler::Model(messages::answer),
    ..Endpoint::POST
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    POST,
    Endpoint {
        path: "/v1/messages/count_tokens",
        summary: "Counts the tokens of a conversation, in the API of Anthropic",
        fields: &[messages::CONVERSATION, tools::ANTHROPIC, messages::FORM],
        answers: &["input_tokens"],
        run: Handler::Model(messages::count),
        ..POST
    },
];
