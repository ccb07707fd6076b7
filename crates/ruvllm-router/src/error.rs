//! The one error type of the crate.

use std::fmt;

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RouterErrorKind {
    /// A text could not be made into a vector.
    Embed,
    /// What is to be learned from is too little, or contradicts itself.
    Data,
    /// A vector, or a saved state, does not have the size that is needed here.
    Shape,
    /// A value is not a finite number, or outside its range.
    Value,
    /// There is no route, model or role of this name, or there is one already.
    Name,
    /// Bytes are no saved state of this crate, or contradict themselves.
    Invalid,
    /// More than is taken: bytes of a saved state, names, examples.
    Limit,
    /// The caller asked to stop.
    Stopped,
}

/// An error of routing: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct RouterError {
    kind: RouterErrorKind,
    message: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl RouterError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub fn new(kind: RouterErrorKind, message: impl Into<String>) -> RouterError {
        RouterError { kind, message: message.into(), source: None }
    }

    /// Makes an error of a kind with the error that caused it.
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> RouterError {
        self.source = Some(Box::new(source));
        self
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> RouterErrorKind {
        self.kind
    }
}

/// Makes the error of a training that was asked to stop.
pub(crate) fn stopped() -> RouterError {
    RouterError::new(RouterErrorKind::Stopped, "training was stopped")
}

/// Makes an error of data that nothing can be learned from.
pub(crate) fn data(message: impl Into<String>) -> RouterError {
    RouterError::new(RouterErrorKind::Data, message)
}

/// Makes an error of sizes that do not fit.
pub(crate) fn shape(message: impl Into<String>) -> RouterError {
    RouterError::new(RouterErrorKind::Shape, message)
}

/// Makes an error of a value that is not finite or out of range.
pub(crate) fn value(message: impl Into<String>) -> RouterError {
    RouterError::new(RouterErrorKind::Value, message)
}

/// Makes an error of bytes that are no saved state.
pub(crate) fn invalid(message: impl Into<String>) -> RouterError {
    RouterError::new(RouterErrorKind::Invalid, message)
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RouterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}
