//! The one error type of the crate.

use std::fmt;
use std::path::Path;

use ruvllm_gguf::{GgufError, GgufErrorKind};

/// Kind of an error, for callers who branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConvertErrorKind {
    /// A file could not be opened, read or written.
    Io,
    /// A file contradicts itself.
    Invalid,
    /// Requests that are not possible for this file: a recipe, a type, a model in parts.
    Unsupported,
    /// The arguments cannot be: an unknown name, an output that is the input.
    Usage,
    /// The disk is too full for the output.
    Space,
    /// A value of a tensor is not finite, or becomes that.
    Value,
    /// A model that runs for a calibration failed.
    Model,
    /// The caller broke the work off.
    Cancelled,
}

/// An error of making a model file: a kind for code, one line for people, and a cause where there is one.
#[derive(Debug)]
pub struct ConvertError {
    kind: ConvertErrorKind,
    message: String,
    source: Option<Box<GgufError>>,
}

impl ConvertError {
    pub(crate) fn new(kind: ConvertErrorKind, message: impl Into<String>) -> ConvertError {
        ConvertError { kind, message: message.into(), source: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> ConvertError {
        ConvertError::new(ConvertErrorKind::Usage, message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> ConvertError {
        ConvertError::new(ConvertErrorKind::Invalid, message)
    }

    pub(crate) fn unsupported(message: impl Into<String>) -> ConvertError {
        ConvertError::new(ConvertErrorKind::Unsupported, message)
    }

    /// Puts a path before the message, unless that begins with it, or with a file in it.
    pub(crate) fn at(mut self, path: &Path) -> ConvertError {
        let path = path.display().to_string();
        let rest = self.message.strip_prefix(&path);
        if !rest.is_some_and(|rest| rest.starts_with(": ") || rest.starts_with(std::path::MAIN_SEPARATOR)) {
            self.message = format!("{path}: {}", self.message);
        }
        self
    }

    /// Puts a tensor before the message.
    pub(crate) fn of_tensor(mut self, name: &str) -> ConvertError {
        self.message = format!("tensor '{}': {}", shown(name), self.message);
        self
    }

    /// Makes the error of a model that runs for a calibration, from its one line.
    pub fn of_model(error: impl fmt::Display) -> ConvertError {
        ConvertError::new(ConvertErrorKind::Model, error.to_string())
    }

    /// Returns what kind of error this is.
    pub fn kind(&self) -> ConvertErrorKind {
        self.kind
    }
}

/// A name from a file as it may stand in a line: control characters escaped, cut after 80 characters.
pub(crate) fn shown(name: &str) -> String {
    let cut: String = name.chars().take(80).flat_map(char::escape_debug).collect();
    if name.chars().nth(80).is_some() { cut + "…" } else { cut }
}

impl fmt::Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ConvertError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<GgufError> for ConvertError {
    fn from(error: GgufError) -> ConvertError {
        let kind = match error.kind() {
            GgufErrorKind::Io => ConvertErrorKind::Io,
            GgufErrorKind::Unsupported => ConvertErrorKind::Unsupported,
            _ => ConvertErrorKind::Invalid,
        };
        ConvertError { kind, message: error.to_string(), source: Some(Box::new(error)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stands_once_before_a_message() {
        let told = |message: &str, path: &str| ConvertError::invalid(message).at(Path::new(path)).to_string();
        assert_eq!(told("tensor 'a' is gone", "t"), "t: tensor 'a' is gone");
        assert_eq!(told("t: has no tokenizer.json", "t"), "t: has no tokenizer.json");
        assert_eq!(told("t/config.json: is no object", "t"), "t/config.json: is no object");
    }
}
