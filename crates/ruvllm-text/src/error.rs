//! The one error type of this crate.

use std::fmt;

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextErrorKind {
    /// The metadata of a model lacks something, or is damaged.
    Model,
    /// A tokenizer or a form that is known to exist and not supported.
    Unsupported,
    /// The prompt, message list or chat template cannot be used.
    Prompt,
    /// An option is out of its range.
    Options,
    /// The form that an answer is to have cannot be written as a grammar.
    Grammar,
}

/// An error: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct TextError {
    kind: TextErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl TextError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub fn new(kind: TextErrorKind, message: impl Into<String>) -> TextError {
        TextError { kind, message: message.into(), source: None }
    }

    /// Makes an error of a kind with the error that caused it.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> TextError {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> TextErrorKind {
        self.kind
    }
}

impl fmt::Display for TextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TextError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<ruvllm_gguf::GgufError> for TextError {
    fn from(error: ruvllm_gguf::GgufError) -> TextError {
        TextError::new(TextErrorKind::Model, error.to_string()).with_source(error)
    }
}
