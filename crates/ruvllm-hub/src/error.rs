//! The error of this crate, and texts as the one line that it is.

use std::path::Path;
use std::{fmt, io};

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HubErrorKind {
    /// A name, a file of settings or an option cannot be used as it is.
    Usage,
    /// A file or folder of this machine cannot be read or written.
    Io,
    /// The model or file is not there.
    Missing,
    /// No source delivered, or the hub refused.
    Remote,
    /// A file is not what it should be.
    Invalid,
}

/// An error of this crate: a kind for code, one line for people.
#[derive(Debug)]
pub struct HubError {
    kind: HubErrorKind,
    line: String,
}

impl HubError {
    pub(crate) fn new(kind: HubErrorKind, line: impl fmt::Display) -> HubError {
        HubError { kind, line: one_line(&line.to_string()) }
    }

    pub(crate) fn usage(line: impl fmt::Display) -> HubError {
        HubError::new(HubErrorKind::Usage, line)
    }

    /// Makes an error of an I/O error on `path`; `doing` completes "cannot ...".
    pub(crate) fn io(doing: &str, path: &Path, error: &io::Error) -> HubError {
        HubError::new(HubErrorKind::Io, format_args!("cannot {doing} {}: {}", path.display(), io_reason(error)))
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> HubErrorKind {
        self.kind
    }
}

impl fmt::Display for HubError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for HubError {}

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

/// Returns the first `n_chars` characters of a text from outside as one line without control characters.
pub(crate) fn shown(text: &str, n_chars: usize) -> String {
    let line: String = one_line(text).chars().filter(|c| !c.is_control()).collect();
    match line.char_indices().nth(n_chars) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_single() {
        assert_eq!(one_line("a\n  b\r\nc"), "a b c");
        assert_eq!(shown("a\u{7}b\nc", 3), "ab …");
    }

    #[test]
    fn lines_are_without_numbers_of_the_system() {
        let error = io::Error::from_raw_os_error(2);
        let line = one_line(&format!("a: {error}; b ({error})"));
        assert_eq!(line, "a: No such file or directory; b (No such file or directory)");
    }

    #[test]
    fn io_reasons_are_short() {
        assert_eq!(io_reason(&io::Error::from_raw_os_error(2)), "no such file or directory");
    }
}
