//! The API of Anthropic: messages, and the count of their tokens.

mod messages;

use crate::app::{Endpoint, Run};
use crate::error::Shape;
use crate::fields::Refused;
use crate::tools;

/// Fields of Anthropic's API that ask for what this server does not do.
const REFUSED: &Refused =
    &[("container", "the server runs no containers"), ("mcp_servers", "the server calls no others")];

const POST: Endpoint = Endpoint {
    path: "/v1/messages",
    summary: "Answers a conversation, in the API of Anthropic",
    shape: Shape::Anthropic,
    fields: &[messages::CONVERSATION, tools::ANTHROPIC, messages::FORM, messages::ANSWER],
    refused: REFUSED,
    answers: &["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    run: Run::Model(messages::answer),
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
        run: Run::Model(messages::count),
        ..POST
    },
];
