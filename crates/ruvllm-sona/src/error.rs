//! The one error type of the crate.

use std::fmt;

use ruvllm_store::{StoreError, StoreErrorKind};

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SonaErrorKind {
    /// A file could not be opened, read or written.
    Io,
    /// Bytes that are not what they say they are.
    Invalid,
    /// More than is read or kept: a count, a size.
    Limit,
    /// Widths or models that do not fit each other.
    Shape,
    /// A value is not a finite number, or is out of its range.
    Value,
    /// A key that does not open or sign what it should.
    Key,
    /// Written by a newer program.
    Version,
}

/// An error of learning: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct SonaError {
    kind: SonaErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl SonaError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub fn new(kind: SonaErrorKind, message: impl Into<String>) -> SonaError {
        SonaError { kind, message: message.into(), source: None }
    }

    /// Makes an error of a kind with the error that caused it.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> SonaError {
        self.source = Some(Box::new(source));
        self
    }

    /// Puts `what: ` before the message.
    pub(crate) fn within(mut self, what: impl fmt::Display) -> SonaError {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> SonaErrorKind {
        self.kind
    }
}

/// Makes an error of bytes that are not what they say they are.
pub(crate) fn invalid(message: impl Into<String>) -> SonaError {
    SonaError::new(SonaErrorKind::Invalid, message)
}

/// Makes an error of what is more than is kept or read.
pub(crate) fn limit(message: impl Into<String>) -> SonaError {
    SonaError::new(SonaErrorKind::Limit, message)
}

impl fmt::Display for SonaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SonaError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<StoreError> for SonaError {
    /// What ended a visit comes back as it was.
    fn from(error: StoreError) -> SonaError {
        let (kind, message, mut source) = error.into_parts();
        if kind == StoreErrorKind::Visit {
            match source.map(|source| source.downcast::<SonaError>()) {
                Some(Ok(own)) => return *own,
                other => source = other.and_then(Result::err),
            }
        }
        let kind = match kind {
            StoreErrorKind::Io => SonaErrorKind::Io,
            StoreErrorKind::Limit => SonaErrorKind::Limit,
            StoreErrorKind::Key => SonaErrorKind::Key,
            StoreErrorKind::Version => SonaErrorKind::Version,
            _ => SonaErrorKind::Invalid,
        };
        SonaError { kind, message, source }
    }
}

/// For those who visit records.
impl From<SonaError> for StoreError {
    fn from(error: SonaError) -> StoreError {
        StoreError::of_visit(error)
    }
}

impl From<ruvllm_lora::LoraError> for SonaError {
    fn from(error: ruvllm_lora::LoraError) -> SonaError {
        SonaError::new(SonaErrorKind::Invalid, error.to_string()).with_source(error)
    }
}
