//! Errors of what is below: the engine's error says them all.

use ruvllm_engine::{EngineError, ErrorKind};
use ruvllm_sona::SonaError;

/// Makes an error of the engine of what `ruvllm-sona` or its store says.
pub fn of_sona(error: impl Into<SonaError>) -> EngineError {
    let error = error.into();
    EngineError::new(ErrorKind::Learning, error.to_string()).with_source(error)
}
