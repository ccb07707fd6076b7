//! Kept conversations: `/v1/conversations`.

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::ValidBody;
use ruvllm_api::openai::now_s;
use ruvllm_sona::documents::NewDocument;
use ruvllm_sona::{SonaError, SonaErrorKind};
use serde_json::{Value, json};

use crate::call::{HandlerFuture, ServerCall};
use crate::handlers::openai::stored::failed;
use crate::handlers::openai::stored::own::{CONVERSATION, Own, named, no_conversation, part_of, with_own};

/// Labels of a conversation, and bytes of their names and values.
const LABELS_MAX: usize = 16;
const LABEL_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 512;

/// Returns the labels that a request has.
///
/// # Errors
/// 400: they are more or longer than is kept.
pub(in crate::handlers::openai) fn labels(given: &ValidBody) -> Result<Value, ApiError> {
    let Some(Value::Object(labels)) = given.get("metadata") else { return Ok(json!({})) };
    let is_long = |(name, value): (&String, &Value)| {
        name.len() > LABEL_BYTES_MAX || value.as_str().is_some_and(|value| value.len() > VALUE_BYTES_MAX)
    };
    if labels.len() > LABELS_MAX || labels.iter().any(is_long) {
        let line = format!(
            "'metadata' has at most {LABELS_MAX} labels, of {LABEL_BYTES_MAX} bytes with {VALUE_BYTES_MAX} of the value"
        );
        return Err(ApiError::bad("metadata", line).code("invalid_value"));
    }
    Ok(Value::Object(labels.clone()))
}

/// Returns the id of the conversation in the path, and its head.
///
/// # Errors
/// 404: the caller has none of this id.
pub(super) fn found(own: &mut Own, call: &ServerCall) -> Result<(String, Value), ApiError> {
    let id = call.part_behind("conversations");
    own.head(CONVERSATION, &id)?.ok_or_else(|| no_conversation(&id)).map(|head| (id, head))
}

/// Returns a conversation as clients see it.
pub(super) fn described(id: &str, head: &Value) -> Value {
    json!({
        "id": id,
        "object": "conversation",
        "created_at": head["created_at"],
        "metadata": head["metadata"],
    })
}

/// Returns why something was not kept: there is no room for so much, or the disk fails.
pub(super) fn unkept(error: SonaError) -> ApiError {
    match error.kind() {
        SonaErrorKind::Limit => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).code("conversation_too_large")
        }
        _ => failed(error),
    }
}

/// Begins a conversation.
pub(super) fn create(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let request = own.server.new_id();
        let id = format!("{CONVERSATION}{request}");
        let head = json!({ "created_at": now_s(), "metadata": labels(&call.body)? });
        let items = named(call.body.take("items"), &request);
        let (bytes, parts) = (head.to_string(), items.iter().map(part_of).collect::<Vec<_>>());
        let new = NewDocument { head: bytes.as_bytes(), parts: &parts, is_lasting: true };
        own.documents().put(own.tenant(), &id, &new, own.now_ms).map_err(unkept)?;
        Ok(described(&id, &head))
    })
}

/// Describes a conversation.
pub(super) fn one(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| found(own, call).map(|(id, head)| described(&id, &head)))
}

/// Changes the labels of a conversation.
pub(super) fn update(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, mut head) = found(own, call)?;
        head["metadata"] = labels(&call.body)?;
        let bytes = head.to_string();
        match own.documents().set_head(own.tenant(), &id, bytes.as_bytes(), own.now_ms).map_err(unkept)? {
            true => Ok(described(&id, &head)),
            false => Err(no_conversation(&id)),
        }
    })
}

/// Removes a conversation.
pub(super) fn remove(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, _) = found(own, call)?;
        match own.documents().remove(own.tenant(), &id).map_err(failed)? {
            true => Ok(json!({ "id": id, "object": "conversation.deleted", "deleted": true })),
            false => Err(no_conversation(&id)),
        }
    })
}
