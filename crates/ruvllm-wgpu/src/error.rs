//! Failures of a device as errors of a backend.

use std::error::Error;

use ruvllm_backend::{BackendError, BackendErrorKind};
use ruvllm_gpu::{GpuError, GpuErrorKind};

/// Makes a backend's error of a device's: one line each, which says what to do.
pub(crate) fn failed(error: GpuError) -> BackendError {
    let (kind, advice) = match error.kind() {
        GpuErrorKind::NoAdapter => (BackendErrorKind::Options, ""),
        GpuErrorKind::OutOfMemory => {
            (BackendErrorKind::Options, "; use a smaller model or context, fewer sequences, or the native backend")
        }
        GpuErrorKind::Unsupported => (BackendErrorKind::Unsupported, ""),
        _ => (BackendErrorKind::Model, ""),
    };
    BackendError::new(kind, format!("backend gpu: {error}{advice}")).with_source(error)
}

/// The source of an error of a model that is larger than the memory that is allowed.
#[derive(Debug)]
pub(crate) struct MemoryExceeded;

impl std::fmt::Display for MemoryExceeded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the memory that is allowed on the GPU does not suffice")
    }
}

impl Error for MemoryExceeded {}

/// Returns whether a model did not load because the device's memory does not suffice.
pub(crate) fn is_memory_full(error: &BackendError) -> bool {
    error.source().is_some_and(|source| {
        let is_full = |error: &GpuError| error.kind() == GpuErrorKind::OutOfMemory;
        source.is::<MemoryExceeded>() || source.downcast_ref().is_some_and(is_full)
    })
}
