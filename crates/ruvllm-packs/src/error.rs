//! The one error type of the crate.

use std::error::Error;
use std::fmt;

use ruvllm_store::{StoreError, StoreErrorKind};

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PackErrorKind {
    /// A file could not be read or written.
    Io,
    /// Bytes or texts that are not what they say they are.
    Invalid,
    /// The key is not trusted, or the signature does not fit.
    Signature,
    /// The key or the pack was revoked.
    Revoked,
    /// The pack is older than one that was here before, or than its key allows.
    Epoch,
    /// The module asks for more than the sandbox gives: imports, memory, time; or it lacks a function.
    Sandbox,
    /// A kernel computes something else than native.
    Result,
    /// No pack of this name, or no kernel for this type.
    Unknown,
}

impl PackErrorKind {
    /// Returns its name on record: one word.
    pub fn name(self) -> &'static str {
        match self {
            PackErrorKind::Io => "io",
            PackErrorKind::Invalid => "invalid",
            PackErrorKind::Signature => "signature",
            PackErrorKind::Revoked => "revoked",
            PackErrorKind::Epoch => "epoch",
            PackErrorKind::Sandbox => "sandbox",
            PackErrorKind::Result => "result",
            PackErrorKind::Unknown => "unknown",
        }
    }
}

/// An error of packs: a kind for code, and one line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackError {
    kind: PackErrorKind,
    message: String,
}

impl PackError {
    /// Makes an error from its kind and one line (lower case, no full stop).
    pub(crate) fn new(kind: PackErrorKind, message: impl fmt::Display) -> PackError {
        PackError { kind, message: message.to_string() }
    }

    /// Puts `what: ` before the message.
    pub(crate) fn within(self, what: impl fmt::Display) -> PackError {
        PackError { message: format!("{what}: {}", self.message), ..self }
    }

    /// Adds the number that gives the same random inputs again, where results differ.
    pub(crate) fn with_seed(self, seed: u64) -> PackError {
        match self.kind {
            PackErrorKind::Result => PackError { message: format!("{} (seed {seed})", self.message), ..self },
            _ => self,
        }
    }

    /// Returns the kind.
    pub fn kind(&self) -> PackErrorKind {
        self.kind
    }
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for PackError {}

impl From<StoreError> for PackError {
    fn from(error: StoreError) -> PackError {
        let kind = match error.kind() {
            StoreErrorKind::Key => PackErrorKind::Signature,
            StoreErrorKind::Io => PackErrorKind::Io,
            _ => PackErrorKind::Invalid,
        };
        PackError::new(kind, error)
    }
}
