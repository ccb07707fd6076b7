//! Kept answers: `/v1/responses/ID`, and what they were made from.

use ruvllm_api::error::ApiError;
use serde_json::{Value, json};

use crate::call::{HandlerFuture, ServerCall};
use crate::handlers::openai::stored::own::{BODY, INPUT, OUTPUT, Own, RESPONSE, with_own};
use crate::handlers::openai::stored::pages::{Page, listed};
use crate::handlers::openai::stored::{failed, not_found};

fn unknown(id: &str) -> ApiError {
    not_found("Response", id, "response_not_found")
}

/// Returns the id in the path, if it can be one, and its head.
fn found(own: &mut Own, call: &ServerCall) -> Result<(String, Value), ApiError> {
    let id = call.part_behind("responses");
    own.head(RESPONSE, &id)?.ok_or_else(|| unknown(&id)).map(|head| (id, head))
}

/// Returns a kept answer.
pub(super) fn one(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, _) = found(own, call)?;
        let (body, output) = (own.bytes(&id, BODY)?, own.bytes(&id, OUTPUT)?);
        let mut response = own.parse(body)?;
        if !response.is_object() {
            return Err(unknown(&id));
        }
        response["output"] = own.parse(output)?;
        Ok(response)
    })
}

/// Removes a kept answer.
pub(super) fn remove(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, _) = found(own, call)?;
        match own.documents().remove(own.tenant(), &id).map_err(failed)? {
            true => Ok(json!({ "id": id, "object": "response", "deleted": true })),
            false => Err(unknown(&id)),
        }
    })
}

/// Lists what a kept answer was made from.
pub(super) fn input_items(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, head) = found(own, call)?;
        let mut items = own.earlier(&head)?;
        items.extend(own.part(&id, INPUT)?.as_array().cloned().unwrap_or_default());
        let mut page = Page::of(&call.body);
        if !page.is_ascending {
            items.reverse();
        }
        for item in items {
            let id = item["id"].as_str().unwrap_or_default().to_owned();
            if !page.take(&id, || item) {
                break;
            }
        }
        page.end().map(|(items, has_more)| listed(items, has_more))
    })
}

/// Forgets all that is kept for the caller.
pub(super) fn forget(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, _| Ok(json!({ "deleted": own.documents().forget_tenant(own.tenant()).map_err(failed)? })))
}
