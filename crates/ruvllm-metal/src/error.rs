//! The one error type.

use std::fmt;

use objc2_foundation::NSError;

/// Kind of a [`MetalError`], for callers that branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetalErrorKind {
    /// This machine has no Metal device.
    NoDevice,
    /// The device's memory is used up, or a buffer is longer than it grants.
    OutOfMemory,
    /// Apple's compiler refuses a kernel, or the device grants fewer threads than it has.
    Kernel,
    /// A pass ended with an error.
    Pass,
    /// Inputs that do not fit together.
    InvalidInput,
}

/// A failure of Metal.
#[derive(Clone, Debug)]
pub struct MetalError {
    kind: MetalErrorKind,
    message: String,
}

impl MetalError {
    pub(crate) fn new(kind: MetalErrorKind, message: impl Into<String>) -> MetalError {
        MetalError { kind, message: message.into() }
    }

    /// Returns what failed, with the reason that Metal gives.
    pub(crate) fn of(kind: MetalErrorKind, what: &str, error: &NSError) -> MetalError {
        MetalError::new(kind, format!("{what}: {}", error.localizedDescription()))
    }

    /// Kind of the failure.
    pub fn kind(&self) -> MetalErrorKind {
        self.kind
    }
}

impl fmt::Display for MetalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MetalError {}
