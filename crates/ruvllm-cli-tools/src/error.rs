//! The error every command ends with: an exit code and one line.

use std::{fmt, io};

use ruvllm_backend::BackendError;
use ruvllm_convert::{ConvertError, ConvertErrorKind};
use ruvllm_engine::{EngineError, ErrorKind, GrammarError, TextError};
use ruvllm_gguf::GgufError;
use ruvllm_hub::{HubError, HubErrorKind};
pub use ruvllm_hub::{io_reason, one_line};
use ruvllm_mcp::{McpError, McpErrorKind};

/// The result of a command or a step of one.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the program stops before it is done.
#[derive(Debug)]
pub enum Error {
    /// Something failed: exit code 1.
    Failure(String),
    /// The command line or the environment is wrong: exit code 2.
    Usage(String),
    /// The person pressed Ctrl-C: exit code 130, nothing printed.
    Interrupted,
    /// Whoever read standard output has gone: exit code 0, nothing printed.
    BrokenPipe,
}

impl Error {
    /// Makes a failure (exit code 1) of one line: what, and what to do about it.
    pub fn failure(line: impl fmt::Display) -> Error {
        Error::Failure(line.to_string())
    }

    /// Makes a usage error (exit code 2) of one line.
    pub fn usage(line: impl fmt::Display) -> Error {
        Error::Usage(line.to_string())
    }

    /// Makes a failure from an I/O error on `path`; `doing` completes "cannot ...".
    pub fn io(doing: &str, path: &std::path::Path, error: &io::Error) -> Error {
        Error::failure(format_args!("cannot {doing} {}: {}", path.display(), io_reason(error)))
    }

    /// Returns the exit code of the process.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Failure(_) => 1,
            Error::Usage(_) => 2,
            Error::Interrupted => 130,
            Error::BrokenPipe => 0,
        }
    }

    /// Returns the line for standard error, or `None` if there is nothing to say.
    pub fn line(&self) -> Option<String> {
        match self {
            Error::Failure(line) | Error::Usage(line) => Some(one_line(line)),
            Error::Interrupted | Error::BrokenPipe => None,
        }
    }
}

impl From<TextError> for Error {
    fn from(error: TextError) -> Error {
        EngineError::from(error).into()
    }
}

impl From<BackendError> for Error {
    fn from(error: BackendError) -> Error {
        EngineError::from(error).into()
    }
}

impl From<GrammarError> for Error {
    fn from(error: GrammarError) -> Error {
        EngineError::from(error).into()
    }
}

impl From<EngineError> for Error {
    fn from(error: EngineError) -> Error {
        match error.kind() {
            ErrorKind::Options => Error::usage(error),
            ErrorKind::Cancelled => Error::Interrupted,
            _ => Error::failure(error),
        }
    }
}

impl From<HubError> for Error {
    fn from(error: HubError) -> Error {
        match error.kind() {
            HubErrorKind::Usage => Error::usage(error),
            _ => Error::failure(error),
        }
    }
}

impl From<McpError> for Error {
    fn from(error: McpError) -> Error {
        match error.kind() {
            McpErrorKind::Config => Error::usage(error),
            McpErrorKind::Cancelled => Error::Interrupted,
            _ => Error::failure(error),
        }
    }
}

impl From<ConvertError> for Error {
    fn from(error: ConvertError) -> Error {
        match error.kind() {
            ConvertErrorKind::Usage => Error::usage(error),
            ConvertErrorKind::Cancelled => Error::Interrupted,
            _ => Error::failure(error),
        }
    }
}

impl From<GgufError> for Error {
    fn from(error: GgufError) -> Error {
        Error::failure(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_single() {
        assert_eq!(Error::failure("a\n  b\r\nc").line().as_deref(), Some("a b c"));
        assert_eq!(Error::Interrupted.line(), None);
    }
}
