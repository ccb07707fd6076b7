//! Sessions: the field that names one, and a session as JSON.

use ruvllm_sona::session::SessionRecord;
use serde_json::{Value, json};

use crate::fields::{Field, Kind, optional};

/// Values of the hashed words that sessions are found by.
pub const SESSION_DIM: usize = 256;

/// The field of a request that is a turn of a session.
pub const SESSION: Field = optional(
    "session",
    Kind::Text,
    "what to call the conversation that this is a turn of, for /v1/sessions; the answer does not depend on it",
);

/// Returns a session as clients and `ruvllm session` see it.
pub fn session_json(name: &str, session: &SessionRecord, used_ms: Option<u64>) -> Value {
    json!({
        "name": name,
        "user": session.user,
        "model": hex::encode(session.model),
        "adapter": session.adapter,
        "generation": session.adapter_generation,
        "turns": session.n_turns,
        "tokens": session.n_tokens,
        "used_ms": used_ms,
    })
}
