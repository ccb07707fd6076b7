//! The one error type.

use std::fmt;

/// Kind of a [`GpuError`], for callers that branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuErrorKind {
    /// This machine has no GPU, or none of the name that was asked for.
    NoAdapter,
    /// The device grants less than is needed.
    Unsupported,
    /// The device's memory, or the budget, is used up.
    OutOfMemory,
    /// The device was lost; everything on it is gone.
    DeviceLost,
    /// Inputs that do not fit together.
    InvalidInput,
}

/// A failure of a device.
#[derive(Clone, Debug)]
pub struct GpuError {
    kind: GpuErrorKind,
    message: String,
}

impl GpuError {
    pub(crate) fn new(kind: GpuErrorKind, message: impl Into<String>) -> GpuError {
        GpuError { kind, message: message.into() }
    }

    /// Kind of the failure.
    pub fn kind(&self) -> GpuErrorKind {
        self.kind
    }
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for GpuError {}
