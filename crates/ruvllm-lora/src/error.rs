//! The one error type of the crate.

use std::fmt;

use ruvllm_gguf::GgufError;
use ruvllm_kvcache::KvError;
use ruvllm_model::ModelError;

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoraErrorKind {
    /// A file could not be opened, read or written.
    Io,
    /// The files are no adapter, or contradict themselves.
    Invalid,
    /// An adapter of a kind that is not applied here.
    Unsupported,
    /// More than is read: a rank, a header, a count.
    Limit,
    /// The adapter does not fit the model.
    Shape,
    /// A value is not a finite number.
    Value,
    /// There is no adapter of this name, or the name cannot be.
    Name,
    /// The adapter is somebody else's.
    Denied,
    /// The memory for adapters, or a tenant's share of it, is full.
    Budget,
}

/// An error about an adapter: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct LoraError {
    kind: LoraErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl LoraError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub fn new(kind: LoraErrorKind, message: impl Into<String>) -> LoraError {
        LoraError { kind, message: message.into(), source: None }
    }

    /// Makes an error of a kind with the error that caused it.
    pub(crate) fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> LoraError {
        self.source = Some(Box::new(source));
        self
    }

    /// Puts `what: ` before the message.
    #[must_use]
    pub fn within(mut self, what: impl fmt::Display) -> LoraError {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> LoraErrorKind {
        self.kind
    }
}

/// Makes an error of files that are no sound adapter.
pub(crate) fn invalid(message: impl Into<String>) -> LoraError {
    LoraError::new(LoraErrorKind::Invalid, message)
}

/// Makes an error of what exists and is not applied here.
pub(crate) fn unsupported(message: impl Into<String>) -> LoraError {
    LoraError::new(LoraErrorKind::Unsupported, message)
}

/// Makes an error of an adapter that belongs to another model.
pub(crate) fn shape(message: impl Into<String>) -> LoraError {
    LoraError::new(LoraErrorKind::Shape, message)
}

/// A name from a file as it may stand in a line: control characters escaped, cut after 80 characters.
pub(crate) fn shown(name: &str) -> String {
    let cut: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    if name.chars().nth(80).is_some() { cut + "…" } else { cut }
}

impl fmt::Display for LoraError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for LoraError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<GgufError> for LoraError {
    fn from(error: GgufError) -> LoraError {
        LoraError::new(LoraErrorKind::Invalid, error.to_string()).with_source(error)
    }
}

/// Of training: shapes that a model's file got wrong, or memory that is not there.
#[cfg(feature = "train")]
impl From<candle_core::Error> for LoraError {
    fn from(error: candle_core::Error) -> LoraError {
        LoraError::new(LoraErrorKind::Shape, format!("training: {error}")).with_source(error)
    }
}

impl From<ModelError> for LoraError {
    fn from(error: ModelError) -> LoraError {
        LoraError::new(LoraErrorKind::Invalid, error.to_string()).with_source(error)
    }
}

impl From<KvError> for LoraError {
    fn from(error: KvError) -> LoraError {
        LoraError::new(LoraErrorKind::Budget, error.to_string()).with_source(error)
    }
}
