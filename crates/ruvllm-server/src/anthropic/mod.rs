//! The API of Anthropic: messages, and the count of their tokens.

mod messages;

use axum::http::Method;

use crate::app::{Endpoint, Run};
use crate::error::Shape;
use crate::fields::Refused;
use crate::tools;

/// Fields of Anthropic's API that ask for what this server does not do.
const REFUSED: &Refused = &[
    ("thinking", "how a model thinks is set by its template: see chat_template_kwargs"),
    ("container", "the server runs no containers"),
    ("mcp_servers", "the server calls no others"),
    ("context_management", "send the messages that are to be read"),
    ("diagnostics", "the server's log and /metrics tell more"),
    ("inference_geo", "the model runs where the server does"),
    ("output_config", "say in the prompt what the answer should look like"),
    ("speed", "there is one speed"),
    ("user_profile_id", "use metadata.user_id for a label in the server's log"),
    ("workspace_id", "keys have tenants"),
];

const POST: Endpoint = Endpoint {
    method: Method::POST,
    path: "/v1/messages",
    summary: "Answers a conversation, in the API of Anthropic",
    shape: Shape::Anthropic,
    needs_key: true,
    fields: &[messages::CONVERSATION, tools::ANTHROPIC, messages::ANSWER],
    refused: REFUSED,
    answers: &["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
    run: Run::Model(messages::answer),
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    POST,
    Endpoint {
        path: "/v1/messages/count_tokens",
        summary: "Counts the tokens of a conversation, in the API of Anthropic",
        fields: &[messages::CONVERSATION, tools::ANTHROPIC],
        answers: &["input_tokens"],
        run: Run::Model(messages::count),
        ..POST
    },
];
