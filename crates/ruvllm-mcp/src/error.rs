//! The error of this crate.

use std::fmt;

use crate::visible::visible;

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum McpErrorKind {
    /// The configuration cannot be used as it is.
    Config,
    /// A server cannot be started, or does not speak the protocol.
    Start,
    /// A server ended, or sent what it must not.
    Server,
    /// A server took too long.
    Timeout,
    /// The caller gave the call up.
    Cancelled,
    /// There is no such tool.
    Missing,
}

/// An error of this crate: a kind for code, one line for people.
#[derive(Clone, Debug)]
pub struct McpError {
    kind: McpErrorKind,
    line: String,
}

/// The most characters of a line.
const LINE_CHARS: usize = 600;

impl McpError {
    pub(crate) fn new(kind: McpErrorKind, line: impl fmt::Display) -> McpError {
        McpError { kind, line: visible(&line.to_string(), LINE_CHARS) }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> McpErrorKind {
        self.kind
    }
}

impl fmt::Display for McpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for McpError {}
