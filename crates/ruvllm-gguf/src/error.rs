//! The one error type of the crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GgufErrorKind {
    /// The file could not be opened, mapped, read or written.
    Io,
    /// The bytes are not a GGUF file at all.
    NotGguf,
    /// A GGUF file of a kind this crate refuses: big-endian, another version, an unknown tensor or value type.
    Unsupported,
    /// The file ends before something it declares.
    Truncated,
    /// The file contradicts itself or the format: a bad length, shape, offset, alignment, UTF-8 or split key.
    Invalid,
    /// A key or tensor name occurs twice.
    Duplicate,
    /// The file declares more entries than this crate reads (see [`crate::limits`]).
    Limit,
    /// A metadata key holds a value of another type or range than the caller asked for.
    WrongType,
    /// A part of a split model is missing, or the part opened is not the first.
    Split,
}

/// An error of reading or writing a GGUF file: a kind for code, one line for people, the path where one is known.
pub struct GgufError {
    inner: Box<Inner>,
}

struct Inner {
    kind: GgufErrorKind,
    message: String,
    path: Option<PathBuf>,
    source: Option<io::Error>,
    wanted: Option<u64>,
}

impl GgufError {
    pub(crate) fn new(kind: GgufErrorKind, message: impl Into<String>) -> GgufError {
        GgufError { inner: Box::new(Inner { kind, message: message.into(), path: None, source: None, wanted: None }) }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> GgufError {
        GgufError::new(GgufErrorKind::Invalid, message)
    }

    pub(crate) fn truncated(need: u64, have: u64, at: u64) -> GgufError {
        let message = format!("truncated: need {need} bytes, have {have} (at byte {at}); download the file again");
        GgufError::new(GgufErrorKind::Truncated, message)
    }

    pub(crate) fn io(what: &str, source: io::Error) -> GgufError {
        let mut error = GgufError::new(GgufErrorKind::Io, format!("{what}: {source}"));
        error.inner.source = Some(source);
        error
    }

    /// Says that the file is long enough, and that only its beginning was given: so many bytes are to be.
    pub(crate) fn wanting(mut self, n_bytes: u64) -> GgufError {
        self.inner.wanted = Some(n_bytes);
        self
    }

    /// Returns how long a beginning of the file has to be, if it was too short a one.
    pub(crate) fn wanted(&self) -> Option<u64> {
        self.inner.wanted
    }

    /// Names the file, unless one is named already.
    pub(crate) fn at(mut self, path: &Path) -> GgufError {
        self.inner.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Puts `what: ` before the message.
    pub(crate) fn within(mut self, what: fmt::Arguments<'_>) -> GgufError {
        self.inner.message = format!("{what}: {}", self.inner.message);
        self
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> GgufErrorKind {
        self.inner.kind
    }

    /// Returns the file concerned, or `None` for bytes in memory.
    pub fn path(&self) -> Option<&Path> {
        self.inner.path.as_deref()
    }
}

impl fmt::Display for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.inner.path {
            write!(f, "{}: ", path.display())?;
        }
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for GgufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GgufError({:?}, \"{self}\")", self.inner.kind)
    }
}

impl std::error::Error for GgufError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| source as _)
    }
}
