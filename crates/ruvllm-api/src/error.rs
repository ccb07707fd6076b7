//! What a request that is refused or fails is answered with: one line, a status, and the shape its API expects.

use http::StatusCode;
use ruvllm_backend::{BackendError, BackendErrorKind};
use ruvllm_engine::{EngineError, ErrorKind, GrammarError, TextError};
use serde_json::{Value, json};

/// Whose clients an error is shaped for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"error": {"message", "type", "param", "code"}}`
    OpenAi,
    /// OpenAI's shape with the types of llama.cpp's server, where that has another.
    LlamaCpp,
    /// `{"type": "error", "error": {"type", "message"}}`
    Anthropic,
    /// `{"error": "the line"}`
    Ollama,
}

impl Shape {
    /// Returns whose clients ask at a path where there is nothing.
    pub fn of_path(path: &str) -> Shape {
        if path.starts_with("/api/") { Shape::Ollama } else { Shape::OpenAi }
    }

    /// Returns the shape at a path of an endpoint with this one: what OpenAI's API has under `/v1`, llama.cpp's server has
    /// without it as well.
    pub fn at(self, path: &str) -> Shape {
        if self == Shape::OpenAi && !path.starts_with("/v1/") { Shape::LlamaCpp } else { self }
    }
}

/// Why a request is refused or fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Status of the answer.
    pub status: StatusCode,
    /// For people: what, with the numbers, and what to do about it.
    pub message: String,
    /// The field it is about.
    pub param: Option<String>,
    /// For programs.
    pub code: Option<&'static str>,
    /// Number of tokens, and of those that the context has, where these are too many.
    pub beyond: Option<(usize, usize)>,
    /// Seconds after which the same request may be taken.
    pub retry_after_s: Option<u64>,
}

impl ApiError {
    /// Makes an error of one line for people.
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, beyond: None, retry_after_s: None }
    }

    /// A request that cannot be honoured as it is, for a field; for the body as a whole without a name.
    pub fn bad(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError {
            param: Some(param.into()).filter(|param| !param.is_empty()),
            ..ApiError::new(StatusCode::BAD_REQUEST, message)
        }
    }

    /// Gives it a code for programs.
    pub fn code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// Returns the error as its API's clients read it.
    pub fn body(&self, shape: Shape) -> Value {
        match shape {
            Shape::OpenAi | Shape::LlamaCpp => {
                let mut error = json!({
                    "message": self.message,
                    "type": self.openai_type(),
                    "param": self.param,
                    "code": self.code,
                });
                if let Some((n_tokens, n_ctx)) = self.beyond {
                    // As llama.cpp names them.
                    (error["n_prompt_tokens"], error["n_ctx"]) = (json!(n_tokens), json!(n_ctx));
                    if shape == Shape::LlamaCpp {
                        error["type"] = json!("exceed_context_size_error");
                    }
                }
                json!({ "error": error })
            }
            Shape::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": self.message },
            }),
            Shape::Ollama => json!({ "error": self.message }),
        }
    }

    /// Returns the reason in a word, for counting.
    pub fn reason(&self) -> &'static str {
        self.code.unwrap_or(match self.status.as_u16() {
            400 => "invalid_request",
            408 => "slow_body",
            413 => "body_too_large",
            415 => "content_type",
            _ => self.openai_type(),
        })
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            503 => "service_unavailable_error",
            504 => "timeout_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        }
    }
}

/// Every kind of engine error has its status here, and nowhere else.
impl From<TextError> for ApiError {
    fn from(error: TextError) -> ApiError {
        EngineError::from(error).into()
    }
}

impl From<GrammarError> for ApiError {
    fn from(error: GrammarError) -> ApiError {
        EngineError::from(error).into()
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let (status, code) = match error.kind() {
            ErrorKind::Prompt | ErrorKind::Options => (StatusCode::BAD_REQUEST, None),
            ErrorKind::Unsupported => (StatusCode::BAD_REQUEST, Some("unsupported")),
            ErrorKind::Grammar => (StatusCode::BAD_REQUEST, Some("invalid_grammar")),
            ErrorKind::ContextLength => (StatusCode::BAD_REQUEST, Some("context_length_exceeded")),
            ErrorKind::QueueFull => (StatusCode::TOO_MANY_REQUESTS, Some("queue_full")),
            ErrorKind::Stopped | ErrorKind::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, Some("stopping")),
            ErrorKind::Remote => (StatusCode::BAD_GATEWAY, Some("backend_unavailable")),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, None),
        };
        ApiError { code, ..ApiError::new(status, error.to_string()) }
    }
}

/// A model that another server answers for: its refusals are the client's where the request is at fault, and a bad gateway
/// otherwise.
impl From<BackendError> for ApiError {
    fn from(error: BackendError) -> ApiError {
        let retry_after_s = error.retry_after_s();
        let (status, code) = match error.kind() {
            BackendErrorKind::Busy => (StatusCode::TOO_MANY_REQUESTS, "backend_busy"),
            BackendErrorKind::Timeout => (StatusCode::GATEWAY_TIMEOUT, "backend_timeout"),
            BackendErrorKind::Key | BackendErrorKind::Options => (StatusCode::BAD_GATEWAY, "backend_refused"),
            BackendErrorKind::Remote if retry_after_s.is_some() => {
                (StatusCode::SERVICE_UNAVAILABLE, "backend_unavailable")
            }
            BackendErrorKind::Remote => (StatusCode::BAD_GATEWAY, "backend_unavailable"),
            _ => return EngineError::from(error).into(),
        };
        ApiError { retry_after_s, ..ApiError::new(status, error.to_string()).code(code) }
    }
}

/// Returns a line without the `(os error N)` that help nobody.
pub fn without_numbers(line: &str) -> String {
    let mut parts = line.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, rest| line + rest.split_once(')').map_or("", |(_, rest)| rest))
}
