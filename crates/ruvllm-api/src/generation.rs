//! Fields that most requests for text have, and those of embeddings.

use serde_json::Value;

use crate::adapters::{ADAPTER, ADAPTERS};
use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, unheeded};
use crate::response_format::{GUIDED_CHOICE, GUIDED_GRAMMAR, GUIDED_JSON, GUIDED_REGEX, STRUCTURED_OUTPUTS};
use crate::session::SESSION;

/// Texts that end an answer.
pub const STOP: Kind = Kind::Either(&[Kind::Text, Kind::List(&Kind::Text, 0, 16)]);

/// Number of tokens to write; -1 and -2 are as many as there is room for.
pub const N_TOKENS: Kind = Kind::Int(-2, 1 << 24);
/// Model of a request.
pub const MODEL: Field = optional(
    "model",
    Kind::Text,
    "the served model, by the name that /v1/models lists, or model:adapter; it may be left out; auto lets a router choose",
);
/// Whether the answer comes in chunks.
pub const STREAM: Field = optional("stream", Kind::Bool, "send the answer in pieces, as server-sent events");
/// Treatment of prompts that are too long.
pub const TRUNCATION: Field = optional(
    "truncation",
    Kind::Word(&["disabled", "auto"]),
    "auto drops the oldest of a prompt that is too long; otherwise it is refused",
);
/// Whether control tokens in texts are read as tokens.
pub const PARSE_SPECIAL: Field = optional(
    "parse_special",
    Kind::Bool,
    "read control tokens (<|im_end|> and its like) in texts as tokens: so by default in a prompt, not in messages, where they could open and end turns",
);
/// Time of a request.
pub const TIMEOUT: Field =
    optional("timeout_ms", Kind::Int(1, 1 << 40), "how long the request may take in all; then it fails with 504");
/// Priority of a request.
pub const PRIORITY: Field =
    optional("priority", Kind::Int(-10, 0), "below 0 lets others go first; higher ones belong to keys");
/// Label of the user.
pub const USER: Field = optional("user", Kind::Text, "a label for the server's log; the answer does not depend on it");

/// Fields that most requests for text have.
pub const GENERATION: &[Field] = &[
    MODEL,
    ADAPTER,
    ADAPTERS,
    optional(
        "max_tokens",
        N_TOKENS,
        "the most tokens to write; what does not fit the context is not written; -1 and -2 are all that fits",
    )
    .also(&["n_predict"]),
    optional("stop", STOP, "texts that end the answer and are no part of it; up to 16"),
    optional(
        "stop_token_ids",
        Kind::List(&Kind::Int(0, u32::MAX as i64), 0, 64),
        "tokens that end the answer and are no part of it",
    ),
    optional(
        "min_tokens",
        Kind::Int(0, 1 << 24),
        "the fewest tokens to write: the answer does not end by itself before, unless a form is asked for",
    ),
    optional("n", Kind::Int(1, 64), "how many answers").also(&["n_cmpl"]),
    STREAM,
    optional("stream_options", Kind::Object(STREAM_OPTIONS), "what a stream holds beside the answer"),
    optional("ignore_eos", Kind::Bool, "go on where the model would end"),
    TRUNCATION,
    PARSE_SPECIAL,
    TIMEOUT,
    PRIORITY,
    STRUCTURED_OUTPUTS,
    GUIDED_JSON,
    GUIDED_REGEX,
    GUIDED_CHOICE,
    GUIDED_GRAMMAR,
    SESSION,
    USER,
];

const STREAM_OPTIONS: &[Field] = &[
    optional("include_usage", Kind::Bool, "send the counts of tokens in an event of their own before the end"),
    unheeded("include_obfuscation", Kind::Bool, "events are not padded"),
    unheeded("continuous_usage_stats", Kind::Bool, "the counts come before the end"),
];

/// Reads a list of tokens.
///
/// # Errors
/// 400: one is outside the vocabulary.
pub fn token_ids(given: &ValidBody, name: &str, n_vocab: usize) -> Result<Vec<u32>, ApiError> {
    let token = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < n_vocab);
        id.ok_or_else(|| {
            ApiError::bad(name, format!("{value} in '{name}' is no token; ids go from 0 to {}", n_vocab - 1))
        })
    };
    given.list(name).into_iter().flatten().map(token).collect()
}

/// Way in which the vectors of a text's tokens become one.
pub const POOLING: Field = optional(
    "pooling",
    Kind::Word(&["mean", "cls", "last"]),
    "how token vectors become one: their mean, the first or the last; the model's own way where nothing is said",
);
