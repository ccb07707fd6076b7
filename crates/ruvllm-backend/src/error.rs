//! The one error type of backends.

use std::error::Error;
use std::fmt;

use ruvllm_gguf::GgufError;
use ruvllm_kvcache::{KvError, KvErrorKind};
use ruvllm_lora::LoraError;
use ruvllm_model::ModelError;

/// Kinds of errors, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The model file is missing, damaged, or lacks something it must have.
    Model,
    /// The backend or the model cannot do it.
    Unsupported,
    /// The tokens cannot be used.
    Prompt,
    /// The tokens do not fit the context, or the KV cache is full.
    ContextLength,
    /// An option is out of its range.
    Options,
    /// An adapter cannot be read, or does not fit the model.
    Adapter,
    /// The folder of the cache cannot be used.
    Cache,
    /// The request was cancelled by its owner.
    Cancelled,
    /// The other side of a connection did not answer, or refused.
    Remote,
    /// The other side of a connection did not answer in time.
    Timeout,
    /// The other side of a connection has no room now.
    Busy,
    /// The other side of a connection does not take the key.
    Key,
}

/// An error of a backend: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct BackendError {
    kind: BackendErrorKind,
    message: String,
    source: Option<Cause>,
    retry_after_s: Option<u64>,
}

/// The error that caused another one.
pub type Cause = Box<dyn Error + Send + Sync>;

impl BackendError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub fn new(kind: BackendErrorKind, message: impl Into<String>) -> BackendError {
        BackendError { kind, message: message.into(), source: None, retry_after_s: None }
    }

    /// Returns the error with its cause.
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> BackendError {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns the error with the seconds after which the same request may be taken.
    pub fn with_retry_after(self, seconds: Option<u64>) -> BackendError {
        BackendError { retry_after_s: seconds, ..self }
    }

    /// Returns the seconds after which the same request may be taken, if that is known.
    pub fn retry_after_s(&self) -> Option<u64> {
        self.retry_after_s
    }

    /// Makes the error of a model that cannot do something.
    pub fn unsupported(message: impl Into<String>) -> BackendError {
        BackendError::new(BackendErrorKind::Unsupported, message)
    }

    /// Makes the error of a backend whose sequences are all open.
    pub fn no_sequence(n_seq_max: usize) -> BackendError {
        let line = format!("all {n_seq_max} sequences are open; free one, or load with a larger n_seq_max");
        BackendError::new(BackendErrorKind::Options, line)
    }

    /// Makes the error of a sequence that is not open.
    pub fn not_open(seq: crate::SeqId) -> BackendError {
        BackendError::new(BackendErrorKind::Options, format!("sequence {} is not open", seq.0))
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> BackendErrorKind {
        self.kind
    }

    /// Takes the error apart: its kind, its line and its cause.
    pub fn into_parts(self) -> (BackendErrorKind, String, Option<Cause>) {
        (self.kind, self.message, self.source)
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<GgufError> for BackendError {
    fn from(error: GgufError) -> BackendError {
        BackendError::new(BackendErrorKind::Model, error.to_string()).with_source(error)
    }
}

impl From<ModelError> for BackendError {
    fn from(error: ModelError) -> BackendError {
        match error {
            ModelError::File(error) => error.into(),
            ModelError::Unsupported(line) => BackendError::unsupported(line),
            error => BackendError::new(BackendErrorKind::Model, error.to_string()),
        }
    }
}

impl From<LoraError> for BackendError {
    fn from(error: LoraError) -> BackendError {
        BackendError::new(BackendErrorKind::Adapter, error.to_string()).with_source(error)
    }
}

impl From<KvError> for BackendError {
    fn from(error: KvError) -> BackendError {
        let kind = match error.kind() {
            KvErrorKind::Disk(_) => BackendErrorKind::Cache,
            _ => BackendErrorKind::ContextLength,
        };
        BackendError::new(kind, error.to_string()).with_source(error)
    }
}
