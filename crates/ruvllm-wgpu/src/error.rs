//! Failures of a device as errors of a backend.

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
