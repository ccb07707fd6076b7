//! The items of kept conversations: `/v1/conversations/ID/items`.

use ruvllm_api::error::ApiError;
use ruvllm_sona::documents::Order;
use serde_json::Value;

use crate::call::{HandlerFuture, ServerCall};
use crate::handlers::openai::stored::conversations::{described, found, unkept};
use crate::handlers::openai::stored::own::{Own, item_of, named, no_conversation, part_of, with_own};
use crate::handlers::openai::stored::pages::{Page, listed};
use crate::handlers::openai::stored::{failed, not_found};

/// An item where it lies.
struct Placed {
    number: u64,
    bytes: Vec<u8>,
}

/// Returns the item in the path.
///
/// # Errors
/// 404: the conversation has none of this id.
fn placed(own: &Own, call: &ServerCall, conversation: &str) -> Result<Placed, ApiError> {
    let id = call.part_behind("items");
    let (mut found, order) = (None, Order { newest_first: true, now_ms: own.now_ms });
    let seen = own.documents().visit(own.tenant(), conversation, order, &mut |number, part| {
        let (of_part, bytes) = item_of(part);
        found = (of_part == id).then(|| Placed { number, bytes: bytes.to_vec() });
        Ok(found.is_none())
    });
    seen.map_err(failed)?;
    found.ok_or_else(|| not_found("Item", &id, "item_not_found"))
}

/// Lists items.
pub(super) fn list(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, _) = found(own, call)?;
        let mut page = Page::of(&call.body);
        let order = Order { newest_first: !page.is_ascending, now_ms: own.now_ms };
        let seen = own.documents().visit(own.tenant(), &id, order, &mut |_, part| {
            let (id, bytes) = item_of(part);
            Ok(page.take(id, || bytes.to_vec()))
        });
        seen.map_err(failed)?;
        let (items, has_more) = page.end()?;
        let items = items.into_iter().map(|bytes| own.parse(bytes)).collect::<Result<_, _>>()?;
        Ok(listed(items, has_more))
    })
}

/// Adds items.
pub(super) fn add(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, _) = found(own, call)?;
        let items = named(call.body.take("items"), &own.server.new_id());
        let parts: Vec<Vec<u8>> = items.iter().map(part_of).collect();
        let added = own.documents().append(own.tenant(), &id, &parts, own.now_ms).map_err(unkept)?;
        added.map(|_| listed(items, false)).ok_or_else(|| no_conversation(&id))
    })
}

/// Returns an item.
pub(super) fn one(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| -> Result<Value, ApiError> {
        let (id, _) = found(own, call)?;
        let item = placed(own, call, &id)?;
        own.parse(item.bytes)
    })
}

/// Removes an item; the answer is its conversation.
pub(super) fn remove(call: ServerCall) -> HandlerFuture {
    with_own(call, |own, call| {
        let (id, head) = found(own, call)?;
        let item = placed(own, call, &id)?;
        own.documents().remove_part(own.tenant(), &id, item.number, own.now_ms).map_err(failed)?;
        Ok(described(&id, &head))
    })
}
