//! Items of a response, which are told as events where it is streamed.

use std::sync::Arc;

use ruvllm_api::error::ApiError;
use ruvllm_api::reading::ToolCall;
use ruvllm_api::tools::call_id;
use serde_json::{Value, json};

use crate::call::Call;
use crate::call::stream::{Disconnected, Events};

/// Reason for which a response ends early.
pub(super) enum Stop {
    /// The client is gone.
    Disconnected,
    /// It failed.
    Failed(ApiError),
}

impl From<Disconnected> for Stop {
    fn from(_: Disconnected) -> Stop {
        Stop::Disconnected
    }
}

impl From<ApiError> for Stop {
    fn from(error: ApiError) -> Stop {
        Stop::Failed(error)
    }
}

/// The items of a response.
#[derive(Default)]
pub(super) struct Output {
    /// Items that are whole.
    pub done: Vec<Value>,
    events: Option<Numbered>,
}

/// Events that are sent with their numbers.
struct Numbered {
    events: Arc<Events>,
    n_sent: u64,
}

impl Output {
    /// Makes one that is told.
    pub(super) fn streamed(events: Arc<Events>) -> Output {
        Output { done: Vec::new(), events: Some(Numbered { events, n_sent: 0 }) }
    }

    /// Sends an event.
    pub(super) async fn send(&mut self, name: &str, mut event: Value) -> Result<(), Disconnected> {
        let Some(numbered) = &mut self.events else { return Ok(()) };
        event["type"] = json!(name);
        event["sequence_number"] = json!(numbered.n_sent);
        numbered.n_sent += 1;
        numbered.events.send_named(name, &event).await
    }

    /// Sends an event about the item that comes next.
    pub(super) async fn send_of(&mut self, item: &Value, name: &str, mut event: Value) -> Result<(), Disconnected> {
        event["item_id"] = item["id"].clone();
        event["output_index"] = json!(self.done.len());
        self.send(name, event).await
    }

    /// Tells that an item has begun.
    pub(super) async fn added(&mut self, item: Value) -> Result<(), Disconnected> {
        let event = json!({ "output_index": self.done.len(), "item": item });
        self.send("response.output_item.added", event).await
    }

    /// Adds an item that is whole.
    pub(super) async fn is_done(&mut self, item: Value) -> Result<(), Disconnected> {
        let event = json!({ "output_index": self.done.len(), "item": item });
        self.done.push(item);
        self.send("response.output_item.done", event).await
    }
}

/// Returns the id of a thing of which a round has one.
fn round_id(call: &Call, prefix: &str) -> String {
    match call.round {
        0 => format!("{prefix}_{}", call.id),
        round => call_id(&call.id, prefix, round, 0),
    }
}

/// Returns the message of a round, with its text when it is over.
pub(super) fn message(call: &Call, status: &str, text: Option<&str>) -> Value {
    json!({
        "type": "message",
        "id": round_id(call, "msg"),
        "status": status,
        "role": "assistant",
        "content": text.map(part).into_iter().collect::<Vec<_>>(),
    })
}

/// Returns what the model thought, with its text when it is over.
pub(super) fn reasoning(call: &Call, status: &str, text: Option<&str>) -> Value {
    json!({
        "type": "reasoning",
        "id": round_id(call, "rs"),
        "status": status,
        "summary": [],
        "content": text.map(thought_part).into_iter().collect::<Vec<_>>(),
    })
}

pub(super) fn thought_part(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}

/// Returns the id of the `i`th call of a function in a round.
pub(super) fn function_id(call: &Call, i: usize) -> String {
    call_id(&call.id, "fc", call.round, i)
}

/// Returns the `i`th call of a function in a round.
pub(super) fn function_call(call: &Call, i: usize, status: &str, called: &ToolCall) -> Value {
    json!({
        "type": "function_call",
        "id": function_id(call, i),
        "call_id": call_id(&call.id, "call", call.round, i),
        "name": called.name,
        "arguments": called.arguments,
        "status": status,
    })
}

pub(super) fn part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}
