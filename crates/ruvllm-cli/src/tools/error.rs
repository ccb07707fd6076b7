//! The error every command ends with: an exit code and one line.

use std::{fmt, io};

use ruvllm_backend::BackendError;
use ruvllm_engine::{EngineError, ErrorKind, GrammarError, TextError};
use ruvllm_gguf::GgufError;

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

/// Returns the reason of an I/O error as the end of a line.
pub fn io_reason(error: &io::Error) -> String {
    let reason = one_line(&error.to_string());
    let mut letters = reason.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// Joins the lines of a text into one, with single spaces and without the `(os error N)` that help nobody.
pub fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut parts = line.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |line, rest| line + rest.split_once(')').map_or("", |(_, rest)| rest))
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

    #[test]
    fn lines_are_without_numbers_of_the_system() {
        let error = io::Error::from_raw_os_error(2);
        let line = Error::failure(format_args!("a: {error}; b ({error})")).line();
        assert_eq!(line.as_deref(), Some("a: No such file or directory; b (No such file or directory)"));
    }

    #[test]
    fn io_reasons_are_short() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(io_reason(&error), "no such file or directory");
    }
}
