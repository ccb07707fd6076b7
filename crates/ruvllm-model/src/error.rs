//! The error of a file that is no model, or none that is known.

use std::error::Error;
use std::fmt;

use ruvllm_gguf::GgufError;

/// An error of reading a model's description: one line for people.
#[derive(Debug)]
#[non_exhaustive]
pub enum ModelError {
    /// The file cannot be read, or a key has another type than it must.
    File(GgufError),
    /// The file lacks something that a model must have, or contradicts itself.
    Damaged(String),
    /// The file asks for what is not known here.
    Unsupported(String),
}

impl ModelError {
    pub(crate) fn damaged(line: impl Into<String>) -> ModelError {
        ModelError::Damaged(line.into())
    }
}

impl fmt::Display for ModelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::File(error) => error.fmt(f),
            ModelError::Damaged(line) | ModelError::Unsupported(line) => f.write_str(line),
        }
    }
}

impl Error for ModelError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ModelError::File(error) => error.source(),
            ModelError::Damaged(_) | ModelError::Unsupported(_) => None,
        }
    }
}

impl From<GgufError> for ModelError {
    fn from(error: GgufError) -> ModelError {
        ModelError::File(error)
    }
}
