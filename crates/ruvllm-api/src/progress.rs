//! How far a prompt is computed, told in a stream before the answer begins, as llama.cpp tells it.

use ruvllm_engine::PromptProgress;
use serde_json::{Value, json};

use crate::fields::{Field, Kind, ValidBody, optional};

/// Whether a stream tells how far its prompt is computed.
pub const RETURN_PROGRESS: Field = optional(
    "return_progress",
    Kind::Bool,
    "tell in a stream how much of the prompt is computed, before the answer begins",
);

/// Returns whether a request wants to know how far its prompt is computed.
pub fn is_asked(given: &ValidBody) -> bool {
    given.is_set("stream") && given.is_set(RETURN_PROGRESS.name)
}

/// Adds how far the prompt is computed to an event of a stream.
pub fn with_progress(mut event: Value, progress: &PromptProgress) -> Value {
    event["prompt_progress"] = json!({
        "total": progress.n_prompt,
        "cache": progress.n_cached,
        "processed": progress.n_processed,
        "time_ms": progress.took_ms,
    });
    event
}
