//! The one error type of the crate.

use std::error::Error;
use std::fmt;

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// A file could not be opened, read or written.
    Io,
    /// Bytes that are not what they say they are.
    Invalid,
    /// More than is kept: a count, a size.
    Limit,
    /// A key that does not open or sign what it should.
    Key,
    /// Written by a newer program.
    Version,
    /// Not the store's own: the visitor of its records ended the visit with an error, which is the source.
    Visit,
}

/// An error of a store: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    /// The file, once it is told.
    place: Option<String>,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// An error's parts: what it is, its line, and its cause.
pub type Parts = (StoreErrorKind, String, Option<Box<dyn Error + Send + Sync>>);

impl StoreError {
    /// Makes an error from its kind and one line (lower case, no full stop, with the numbers and what to do).
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> StoreError {
        StoreError { kind, place: None, message: message.into(), source: None }
    }

    /// Makes an error of what ended a visit.
    pub fn of_visit(error: impl Error + Send + Sync + 'static) -> StoreError {
        StoreError::new(StoreErrorKind::Visit, error.to_string()).with_source(error)
    }

    /// Adds the error that caused it.
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> StoreError {
        self.source = Some(Box::new(source));
        self
    }

    /// Puts the file before the message, once.
    pub(crate) fn within(mut self, path: impl fmt::Display) -> StoreError {
        self.place.get_or_insert_with(|| path.to_string());
        self
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Returns its parts, for callers that make another error of it.
    pub fn into_parts(self) -> Parts {
        (self.kind, self.to_string(), self.source)
    }
}

/// Makes an error of bytes that are not what they say they are.
pub(crate) fn invalid(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, message)
}

/// Makes an error of what is more than is kept or read.
pub(crate) fn limit(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Limit, message)
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(path) => write!(f, "{path}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}
