//! Learned state of a tenant as JSON: its numbers, its log and its patterns; and the field that asks for patterns.

use ruvllm_learning::{Correctness, Evaluation, Generation, Item, LearnOptions, MaintenanceOutcome, TenantStats};
use ruvllm_sona::bank::{Pattern, Step};
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{Field, Kind, optional, required};
use crate::generation::MODEL;

/// The field of a request that has patterns put into its prompt.
pub const PATTERNS: Field = optional(
    "patterns",
    Kind::Int(0, 8),
    "put up to so many patterns of tasks like this one in front of the question; it takes --learn",
);

/// Beginnings of the ids of answers in the APIs.
const PREFIXES: [&str; 4] = ["chatcmpl-", "cmpl-", "resp_", "msg_"];

/// Fields of a request that judges or corrects an answer.
pub const FEEDBACK: &[Field] = &[
    required("id", Kind::Text, "of the answer, as it came back with it"),
    optional("choice", Kind::Int(0, 1 << 20), "which of several answers; the first one if it is left out"),
    optional("score", Kind::Number(0.0, 1.0), "what it was worth: it is learned by as much, and at 0 not given again"),
    optional("correction", Kind::Text, "what it should have been; it is given when the same is asked again"),
    MODEL,
];

/// Fields of a request that has an answer remembered.
pub const MEMORY: &[Field] = &[
    required("question", Kind::Text, "what is asked, as the only message of a conversation"),
    required("answer", Kind::Text, "what is to be answered"),
    optional("wrong", Kind::Bool, "it is what is not to be answered"),
    optional(
        "pattern",
        Kind::Bool,
        "keep question and answer as text too, as a pattern: GET /v1/memory lists them then",
    ),
    MODEL,
];

/// Returns the number of a request by the id of its answer.
pub fn own_id(id: &str) -> &str {
    PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(id)
}

/// Returns the name by which an answer of a request waits to be judged.
pub fn answer_id(call: &str, choice: usize) -> String {
    match choice {
        0 => call.to_owned(),
        choice => format!("{call}.{choice}"),
    }
}

/// Checks that a text says something: what says nothing would be given as the answer to whatever is nearly as empty.
///
/// # Errors
/// 400: it does not.
pub fn not_empty(name: &str, text: &str) -> Result<(), ApiError> {
    match text.trim().is_empty() {
        true => Err(ApiError::bad(name, format!("'{name}' is empty; say what is to be remembered"))),
        false => Ok(()),
    }
}

/// Adds numbers of what a tenant has learned to a JSON object.
///
/// # Panics
/// If `object` is none.
pub fn with_stats(mut object: Value, stats: &TenantStats) -> Value {
    let numbers = [
        ("tokens", json!(stats.n_tokens)),
        ("entries", json!(stats.n_entries)),
        ("entry_bytes", json!(stats.n_bytes)),
        ("evicted", json!(stats.n_evicted)),
        ("corrections", json!(stats.n_corrections)),
        ("micro_steps", json!(stats.n_micro_steps)),
    ];
    let map = object.as_object_mut().expect("the caller gives an object");
    map.extend(numbers.map(|(name, number)| (name.to_owned(), number)));
    object
}

/// Returns a generation as JSON.
pub fn generation_json(generation: &Generation) -> Value {
    json!({
        "number": generation.number,
        "parent": generation.parent,
        "at_ms": generation.unix_ms,
        "why": generation.why,
        "figures": figures(&generation.figures),
        "first_item": generation.first,
        "last_item": generation.end.saturating_sub(1),
        "is_oldest": generation.is_oldest,
    })
}

/// Returns an item of the log as JSON: what kind it is and how large, nothing of what was said.
pub fn item_json((id, unix_ms, item): &(u64, u64, Item)) -> Value {
    let mut object = match item {
        Item::Read { span, quality } => {
            let n_learned = span.tokens.len() - span.n_read;
            let what = match () {
                () if span.n_step > 0 => "document",
                () if span.n_remembered < span.tokens.len() => "answer",
                () => "prompt",
            };
            json!({ "kind": "read", "what": what, "tokens": n_learned, "quality": quality })
        }
        Item::Corrected { answer, verdict, .. } => {
            json!({ "kind": "told", "tokens": answer.len(), "right": *verdict == Correctness::Right })
        }
        Item::Rehearsed { .. } => json!({ "kind": "rehearsed" }),
        Item::Configured(LearnOptions { datastore, micro, .. }) => {
            json!({ "kind": "configured", "memory": datastore.is_some(), "micro": micro.is_some() })
        }
        Item::Consolidated(how) => {
            json!({ "kind": "consolidated", "rank": how.rank, "share": how.share, "strength": how.strength })
        }
        Item::Adopted { sources, .. } => json!({ "kind": "adopted", "sources": sources.len() }),
        Item::Discarded { why, figures: of } => json!({ "kind": "discarded", "why": why, "figures": figures(of) }),
        Item::Holdout { span } => {
            json!({ "kind": "held_back", "tokens": span.tokens.len() - span.n_read })
        }
        Item::RolledBack { generation } => json!({ "kind": "rolled_back", "generation": generation }),
        Item::TookBack { item } => json!({ "kind": "took_back", "of": item }),
        Item::Undone => json!({ "kind": "undone" }),
        _ => json!({ "kind": "unknown" }),
    };
    (object["item"], object["at_ms"]) = ((*id).into(), (*unix_ms).into());
    object["can_undo"] = item.has_effect().into();
    object
}

/// Returns a pattern of the ReasoningBank as JSON.
pub fn pattern_json(id: u64, pattern: &Pattern) -> Value {
    let step = |step: &Step| json!({ "action": step.action, "outcome": step.outcome });
    json!({
        "id": id,
        "task": pattern.task,
        "steps": pattern.steps.iter().map(step).collect::<Vec<_>>(),
        "verdict": pattern.verdict.name(),
        "quality": pattern.quality,
        "uses": pattern.n_uses,
        "members": pattern.n_members,
        "created_ms": pattern.created_ms,
        "items": pattern.items,
    })
}

/// Returns what the gate said last as JSON.
pub fn judged_json(Evaluation { unix_ms, outcome }: &Evaluation) -> Value {
    let (verdict, judgement) = match outcome {
        MaintenanceOutcome::Consolidated => return Value::Null,
        MaintenanceOutcome::Published(_, judgement) => ("published", judgement),
        MaintenanceOutcome::Discarded(judgement) => ("discarded", judgement),
        MaintenanceOutcome::Unsure(judgement) => ("unsure", judgement),
    };
    json!({
        "at_ms": unix_ms,
        "verdict": verdict,
        "why": judgement.why,
        "figures": figures(&judgement.figures()),
    })
}

fn figures(figures: &[(String, f64)]) -> Value {
    Value::Object(figures.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<Map<_, _>>())
}
