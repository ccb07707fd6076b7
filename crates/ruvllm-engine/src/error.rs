//! The one error type of the engine.

use std::fmt;

use ruvllm_backend::{BackendError, BackendErrorKind};
#[cfg(feature = "grammar")]
use ruvllm_grammar::{GrammarError, GrammarErrorKind};
use ruvllm_kvcache::{KvError, KvErrorKind};
use ruvllm_text::{TextError, TextErrorKind};

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The model file is missing, damaged, or lacks something it must have.
    Model,
    /// The file's architecture, tokenizer or tensor type is known to exist but not supported.
    Unsupported,
    /// The prompt, message list or chat template cannot be used.
    Prompt,
    /// The prompt does not fit the context, or the KV cache is full.
    ContextLength,
    /// An option is out of its range.
    Options,
    /// A grammar is malformed, too large, or uses what is not supported.
    Grammar,
    /// An adapter cannot be read, or does not fit the model.
    Adapter,
    /// A router cannot be read or written, or does not fit the query.
    Routing,
    /// The folder of the cache or a session in it cannot be used.
    Cache,
    /// What was learned cannot be read, kept, or does not fit the model.
    Learning,
    /// The request was cancelled by its owner.
    Cancelled,
    /// As many requests wait as may; one that comes later may be taken.
    QueueFull,
    /// The service takes no requests any more.
    Stopped,
    /// The other side of a connection did not answer, or refused.
    Remote,
}

/// An error of the engine: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct EngineError {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl EngineError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> EngineError {
        EngineError { kind, message: message.into(), source: None }
    }

    /// Makes an error of a kind with the error that caused it.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> EngineError {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns whether blocks of the KV cache are missing, which others hold.
    pub(crate) fn is_kv_full(&self) -> bool {
        matches!(self.kv_kind(), Some(KvErrorKind::PoolFull { .. } | KvErrorKind::QuotaFull { .. }))
    }

    /// Returns whether it is a tenant's quota that is full.
    pub(crate) fn is_quota(&self) -> bool {
        matches!(self.kv_kind(), Some(KvErrorKind::QuotaFull { .. }))
    }

    fn kv_kind(&self) -> Option<KvErrorKind> {
        let source = self.source.as_ref()?.downcast_ref::<KvError>()?;
        Some(source.kind())
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<BackendError> for EngineError {
    fn from(error: BackendError) -> EngineError {
        let (kind, message, source) = error.into_parts();
        let kind = match kind {
            BackendErrorKind::Unsupported => ErrorKind::Unsupported,
            BackendErrorKind::Prompt => ErrorKind::Prompt,
            BackendErrorKind::ContextLength => ErrorKind::ContextLength,
            BackendErrorKind::Options | BackendErrorKind::Key => ErrorKind::Options,
            BackendErrorKind::Adapter => ErrorKind::Adapter,
            BackendErrorKind::Cache => ErrorKind::Cache,
            BackendErrorKind::Cancelled => ErrorKind::Cancelled,
            BackendErrorKind::Remote | BackendErrorKind::Timeout | BackendErrorKind::Busy => ErrorKind::Remote,
            _ => ErrorKind::Model,
        };
        EngineError { kind, message, source }
    }
}

impl From<ruvllm_gguf::GgufError> for EngineError {
    fn from(error: ruvllm_gguf::GgufError) -> EngineError {
        BackendError::from(error).into()
    }
}

impl From<TextError> for EngineError {
    fn from(error: TextError) -> EngineError {
        let kind = match error.kind() {
            TextErrorKind::Unsupported => ErrorKind::Unsupported,
            TextErrorKind::Prompt => ErrorKind::Prompt,
            TextErrorKind::Options => ErrorKind::Options,
            TextErrorKind::Grammar => ErrorKind::Grammar,
            _ => ErrorKind::Model,
        };
        EngineError::new(kind, error.to_string()).with_source(error)
    }
}

#[cfg(feature = "grammar")]
impl From<GrammarError> for EngineError {
    fn from(error: GrammarError) -> EngineError {
        let kind = match error.kind() {
            GrammarErrorKind::Unsupported => ErrorKind::Unsupported,
            GrammarErrorKind::QueueFull => ErrorKind::QueueFull,
            GrammarErrorKind::Stopped => ErrorKind::Stopped,
            _ => ErrorKind::Grammar,
        };
        EngineError::new(kind, error.to_string()).with_source(error)
    }
}

impl From<ruvllm_lora::LoraError> for EngineError {
    fn from(error: ruvllm_lora::LoraError) -> EngineError {
        BackendError::from(error).into()
    }
}

impl From<KvError> for EngineError {
    fn from(error: KvError) -> EngineError {
        BackendError::from(error).into()
    }
}
