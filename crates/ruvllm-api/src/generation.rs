//! Fields that most requests for text have, and those of embeddings.

use http::StatusCode;
use ruvllm_engine::tokenizer::Tokenizer;
use ruvllm_engine::{FinishReason, GenerateRequest, ModelInfo, SamplingParams};
use serde_json::Value;

use crate::adapters::{ADAPTER, ADAPTERS};
use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, unheeded};
use crate::response_format::{GUIDED_CHOICE, GUIDED_GRAMMAR, GUIDED_JSON, GUIDED_REGEX, STRUCTURED_OUTPUTS};
use crate::sampling;
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

/// Wishes of a request about its answers, but for the prompt.
#[derive(Clone, Debug, Default)]
pub struct Parsed {
    /// Number of answers to each prompt.
    pub n_choices: usize,
    /// Whether the answers come in pieces.
    pub is_stream: bool,
    /// Whether the last piece tells the counts of tokens.
    pub include_usage: bool,
    /// Whether a prompt that is too long is shortened; none where the request does not say.
    pub is_truncated: Option<bool>,
    /// The request to an engine, without a prompt.
    pub request: GenerateRequest,
}

/// Model whose tokens are chosen here.
#[derive(Clone, Copy, Debug)]
pub struct Chooser<'a> {
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Tokens of its vocabulary.
    pub n_vocab: usize,
    /// Samplers where the request does not say.
    pub sampling: &'a SamplingParams,
}

impl Parsed {
    /// Reads the fields of [`GENERATION`] and of [`SAMPLING`](crate::sampling::SAMPLING); without a chooser another server reads
    /// those of sampling. `max_tokens` where the request does not say.
    ///
    /// # Errors
    /// 400 for values that do not go together.
    pub fn read(
        given: &ValidBody,
        max_tokens: Option<usize>,
        chooser: Option<Chooser<'_>>,
    ) -> Result<Parsed, ApiError> {
        let stop = given.texts("stop");
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::bad("stop", "a text of 'stop' is empty; it would end every answer at once"));
        }
        // -1 is no count.
        let max_tokens = given.get("max_tokens").map_or(max_tokens, |_| given.count("max_tokens"));
        let min_tokens = given.count("min_tokens").unwrap_or(0);
        if let Some(max) = max_tokens.filter(|&max| max < min_tokens) {
            let line = format!("'min_tokens' is {min_tokens}, and the answer may have {max} tokens; ask for fewer");
            return Err(ApiError::bad("min_tokens", line));
        }
        let sampling = |of: Chooser<'_>| sampling::sampling(given, of.sampling, of.tokenizer, of.n_vocab);
        Ok(Parsed {
            n_choices: given.count("n").unwrap_or(1),
            is_stream: given.is_set("stream"),
            include_usage: given.get("stream_options").is_some_and(|options| options["include_usage"] == true),
            is_truncated: given.text("truncation").map(|how| how == "auto"),
            request: GenerateRequest {
                max_tokens,
                min_tokens,
                stop_tokens: token_ids(given, "stop_token_ids", chooser.map_or(0, |of| of.n_vocab))?,
                sampling: chooser.map(sampling).transpose()?.unwrap_or_default(),
                stop,
                ignore_eos: given.is_set("ignore_eos"),
                ignore_cache: !given.flag("cache_prompt", true),
                ..GenerateRequest::default()
            },
        })
    }
}

/// Returns how many tokens a prompt may have that leaves room for its answer: up to half of the context is kept for it.
pub fn prompt_max(n_ctx: usize, request: &GenerateRequest) -> usize {
    n_ctx - request.max_tokens.unwrap_or(1).clamp(1, (n_ctx / 2).max(1))
}

/// Checks that a prompt and so many tokens behind it fit the context.
///
/// # Errors
/// 400, with both numbers.
pub fn check_fits(info: &ModelInfo, n_prompt: usize, n_more: usize) -> Result<(), ApiError> {
    let n_tokens = n_prompt + n_more;
    if n_tokens <= info.n_ctx {
        return Ok(());
    }
    let advice = match info.n_ctx < info.n_ctx_train {
        true => format!("open it with a larger context (the model allows {}) or shorten the prompt", info.n_ctx_train),
        false => "shorten the prompt".to_owned(),
    };
    // The words are those that clients of llama.cpp look for.
    let n_ctx = info.n_ctx;
    let line = format!("the request ({n_tokens} tokens) exceeds the available context size ({n_ctx} tokens); {advice}");
    let error = ApiError::new(StatusCode::BAD_REQUEST, line).code("context_length_exceeded");
    Err(ApiError { beyond: Some((n_prompt, n_ctx)), ..error })
}

/// Checks that an answer of so many tokens came to its end.
///
/// # Errors
/// 504: its time was over; 503: the server stopped.
pub fn check_finished(reason: FinishReason, n: usize) -> Result<(), ApiError> {
    match reason {
        FinishReason::Stop | FinishReason::Length => Ok(()),
        FinishReason::Deadline => {
            let line = format!("the request's time was over after {n} tokens; allow more of it or ask for less");
            Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, line).code("timeout"))
        }
        FinishReason::Cancelled => {
            let line = format!("the server stopped after {n} tokens of the answer");
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("stopping"))
        }
    }
}

/// Way in which the vectors of a text's tokens become one.
pub const POOLING: Field = optional(
    "pooling",
    Kind::Word(&["mean", "cls", "last"]),
    "how token vectors become one: their mean, the first or the last; the model's own way where nothing is said",
);
