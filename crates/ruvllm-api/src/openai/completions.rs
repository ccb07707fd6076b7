//! `/v1/completions`: its table.

use super::HINTS;
use crate::fields::{Field, Kind, optional, required};
use crate::generation::GENERATION;
use crate::input::INPUT;
use crate::llamacpp::{ALIKE, OF_CHATS};
use crate::sampling::SAMPLING;
use crate::timings::TIMINGS_PER_TOKEN;

/// All fields of a request, in groups.
pub const TABLE: &[&[Field]] = &[FIELDS, SAMPLING, GENERATION, HINTS, ALIKE, OF_CHATS];

/// Most tokens that are written where a request does not say how many, as OpenAI has it.
pub const MAX_TOKENS: usize = 16;

/// Fields of a completion beside those of how the answer is written.
const FIELDS: &[Field] = &[
    required("prompt", INPUT, "a text, or its tokens; or several of them, each of which is continued n times"),
    optional(
        "suffix",
        Kind::Text,
        "what stands behind the answer: the model fills in the middle, if it was trained to; with one prompt of text",
    ),
    TIMINGS_PER_TOKEN,
    optional("echo", Kind::Bool, "begin the answer with the prompt"),
    optional(
        "logprobs",
        Kind::Int(0, 20),
        "tell the log-probability of each token and of this many of the likeliest ones",
    ),
    optional(
        "best_of",
        Kind::Int(1, 64),
        "write this many answers and return the n likeliest, by the mean of their tokens",
    ),
];
