//! What a caller has of what is kept, read into memory that is counted.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::server::Server;
use ruvllm_server_state::shared::Share;
use ruvllm_server_state::witness::tenant_name;
use ruvllm_sona::documents::{Documents, Order};
use ruvllm_sona::now_ms;
use serde_json::{Value, json};

use crate::call::response::{held, json_response};
use crate::call::{HandlerFuture, ServerCall, body};
use crate::handlers::openai::stored::{failed, not_found};

/// How ids of answers begin.
pub(super) const RESPONSE: &str = "resp_";
/// How ids of conversations begin.
pub(super) const CONVERSATION: &str = "conv_";

/// Beginning of the ids of calls that are to be approved.
const APPROVAL: &str = "mcpr";

/// Characters of what names a call, as `Server::new_id` makes it.
const ID_CHARS: usize = 24;

/// The parts of an answer: the answer without its output, what was put in, and what came out.
pub(super) const BODY: u64 = 1;
pub(super) const INPUT: u64 = 2;
pub(super) const OUTPUT: u64 = 3;

/// What one caller has, for one request.
pub(super) struct Own {
    pub server: Arc<Server>,
    tenant: Tenant,
    pub now_ms: u64,
    /// Bytes of items that were read, and the most of them.
    n_read: usize,
    pub n_max: usize,
    /// Memory for what was read.
    pub parts: Vec<Share>,
}

/// Items of a conversation, and the number of the last.
#[derive(Default)]
pub(super) struct Items {
    pub items: Vec<Value>,
    pub last: u64,
}

impl Own {
    pub(super) fn new(server: &Arc<Server>, tenant: &Tenant) -> Own {
        // An answer was made from as much as a body may be, and a body; names of items make both longer.
        let (n_read, n_max) = (0, 3 * server.options().body_bytes_max);
        let (server, tenant) = (Arc::clone(server), tenant.clone());
        Own { server, tenant, now_ms: now_ms(), n_read, n_max, parts: Vec::new() }
    }

    pub(super) fn documents(&self) -> &Documents {
        &self.server.stored.documents
    }

    pub(super) fn tenant(&self) -> &str {
        tenant_name(&self.tenant)
    }

    /// Counts bytes among those of bodies.
    ///
    /// # Errors
    /// 503: the memory is used by others.
    pub(super) fn count(&mut self, n_bytes: usize) -> Result<(), ApiError> {
        self.parts.push(body::room(&self.server.bodies, self.tenant.id, n_bytes)?);
        Ok(())
    }

    /// Parses what was kept, in memory of bodies.
    ///
    /// # Errors
    /// 503: the memory is used by others.
    pub(super) fn parse(&mut self, bytes: Vec<u8>) -> Result<Value, ApiError> {
        let (value, part) = body::parse_more(bytes, &self.server.bodies, self.tenant.id)?;
        self.parts.push(part);
        Ok(value)
    }

    /// Parses what a prompt is made of.
    ///
    /// # Errors
    /// 400: it is more than is read; as [`Own::parse`].
    fn parse_input(&mut self, bytes: Vec<u8>) -> Result<Value, ApiError> {
        self.n_read += bytes.len();
        let max = self.n_max;
        if self.n_read > max {
            let line = format!("the conversation so far has more than {max} bytes; begin another one");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, line).code("context_length_exceeded"));
        }
        self.parse(bytes)
    }

    /// Returns the head of an answer or a conversation, whose ids begin with `prefix`.
    ///
    /// # Errors
    /// 500: it cannot be read.
    pub(super) fn head(&mut self, prefix: &str, id: &str) -> Result<Option<Value>, ApiError> {
        if !id.starts_with(prefix) {
            return Ok(None);
        }
        let head = self.documents().head(self.tenant(), id, self.now_ms).map_err(failed)?;
        head.map(|bytes| self.parse(bytes)).transpose()
    }

    /// Returns a part of an answer as it lies there; null if it is gone.
    ///
    /// # Errors
    /// 500: it cannot be read.
    pub(super) fn bytes(&self, id: &str, part: u64) -> Result<Vec<u8>, ApiError> {
        let bytes = self.documents().part(self.tenant(), id, part, self.now_ms).map_err(failed)?;
        Ok(bytes.unwrap_or_else(|| b"null".to_vec()))
    }

    /// Returns a part of an answer that a prompt is made of.
    ///
    /// # Errors
    /// As [`Own::bytes`] and [`Own::parse_input`].
    pub(super) fn part(&mut self, id: &str, part: u64) -> Result<Value, ApiError> {
        let bytes = self.bytes(id, part)?;
        self.parse_input(bytes)
    }

    /// Returns the items of a conversation up to a number.
    ///
    /// # Errors
    /// 404: there is none; 400: they are too many.
    pub(super) fn items(&mut self, id: &str, up_to: Option<u64>) -> Result<Items, ApiError> {
        let (mut found, mut n_bytes, n_max) = (Vec::new(), 0, self.n_max);
        let order = Order { newest_first: false, now_ms: self.now_ms };
        let mut last = 0;
        let is_there = self.documents().visit(self.tenant(), id, order, &mut |number, part| {
            if up_to.is_some_and(|up_to| number > up_to) {
                return Ok(false);
            }
            last = number;
            n_bytes += part.len();
            found.push(item_of(part).1.to_vec());
            // What is too much is told when it is parsed.
            Ok(n_bytes <= n_max)
        });
        if !is_there.map_err(failed)? {
            return Err(no_conversation(id));
        }
        let items = found.into_iter().map(|bytes| self.parse_input(bytes)).collect::<Result<_, _>>()?;
        Ok(Items { items, last })
    }

    /// Returns the input of a request with the items that it refers to.
    ///
    /// # Errors
    /// 400: one is not kept; as [`Own::part`].
    pub(super) fn referred(&mut self, input: Option<Value>) -> Result<Option<Value>, ApiError> {
        let Some(Value::Array(mut items)) = input else { return Ok(input) };
        for (i, item) in items.iter_mut().enumerate().filter(|(_, item)| item["type"] == "item_reference") {
            let id = item["id"].as_str().unwrap_or_default().to_owned();
            *item = self.item(&id)?.ok_or_else(|| {
                let line = format!("'input[{i}]' refers to the item '{id}', which is not kept; send the item");
                ApiError::bad(format!("input[{i}].id"), line).code("item_not_found")
            })?;
        }
        Ok(Some(Value::Array(items)))
    }

    /// Finds an item of an answer, or of what it was made from: ids of items begin with what names the answer.
    fn item(&mut self, id: &str) -> Result<Option<Value>, ApiError> {
        let Some(name) = id.split_once('_').and_then(|(_, rest)| rest.get(..ID_CHARS)) else { return Ok(None) };
        let response = format!("{RESPONSE}{name}");
        for part in [OUTPUT, INPUT] {
            let items = self.part(&response, part)?;
            if let Some(item) = items.as_array().and_then(|items| items.iter().find(|item| item["id"] == id)) {
                return Ok(Some(item.clone()));
            }
        }
        Ok(None)
    }

    /// Returns the items that an answer or a request goes on from, the first first. `link` says what that is.
    ///
    /// # Errors
    /// 400: an answer is not kept, or they are too many; 404: a conversation is not kept.
    pub(super) fn earlier(&mut self, link: &Value) -> Result<Vec<Value>, ApiError> {
        let (mut turns, mut link) = (Vec::new(), link.clone());
        while let Some(id) = link["previous"].as_str() {
            let Some(head) = self.head(RESPONSE, id)? else { return Err(no_previous(id, turns.is_empty())) };
            turns.push([self.part(id, OUTPUT)?, self.part(id, INPUT)?]);
            link = head;
        }
        let mut items = match link["conversation"].as_str() {
            Some(id) => self.items(id, link["up_to"].as_u64())?.items,
            None => Vec::new(),
        };
        let in_order = turns.into_iter().flatten().rev();
        in_order.for_each(|part| items.extend(part.as_array().cloned().unwrap_or_default()));
        Ok(items)
    }
}

/// Returns a part of a conversation: its item, behind the id by which it is found.
pub(super) fn part_of(item: &Value) -> Vec<u8> {
    format!("{}\n{item}", item["id"].as_str().unwrap_or_default()).into_bytes()
}

/// Returns the id and the JSON of such a part.
pub(super) fn item_of(part: &[u8]) -> (&str, &[u8]) {
    let end = part.iter().position(|&byte| byte == b'\n').unwrap_or(part.len());
    (std::str::from_utf8(&part[..end]).unwrap_or_default(), part.get(end + 1..).unwrap_or_default())
}

/// Returns items as they are kept and listed: each with an id of its own, a type, and its content in parts. `id` names the
/// request that they came with.
pub(super) fn named(items: Option<Value>, id: &str) -> Vec<Value> {
    let items = match items {
        Some(Value::Array(items)) => items,
        Some(text) => vec![json!({ "role": "user", "content": text })],
        None => Vec::new(),
    };
    items.into_iter().enumerate().map(|(i, item)| one_named(item, &format!("{id}i{i:x}"))).collect()
}

/// Returns parts of a conversation as a list of their items.
pub(super) fn list_of(parts: &[Vec<u8>]) -> Vec<u8> {
    let items: Vec<&[u8]> = parts.iter().map(|part| item_of(part).1).collect();
    [&b"["[..], &items.join(&b","[..]), b"]"].concat()
}

fn one_named(mut item: Value, id: &str) -> Value {
    let Some(fields) = item.as_object_mut() else { return item };
    fields.retain(|_, value| !value.is_null());
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
    let prefix = match kind.as_str() {
        "function_call" => "fc",
        "function_call_output" => "fco",
        "reasoning" => "rs",
        "mcp_list_tools" => "mcpl",
        "mcp_call" => "mcp",
        "mcp_approval_request" => APPROVAL,
        "mcp_approval_response" => "mcpa",
        _ => "msg",
    };
    let id = match fields.get("id").and_then(Value::as_str).filter(|_| prefix == APPROVAL) {
        // What approves it names it so.
        Some(given) if is_approval(given) => given.to_owned(),
        _ => format!("{prefix}_{id}"),
    };
    let is_of_model = fields.get("role").is_some_and(|role| role == "assistant");
    if let Some(Value::String(text)) = fields.get("content").filter(|_| prefix == "msg") {
        let part = match is_of_model {
            true => json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }),
            false => json!({ "type": "input_text", "text": text }),
        };
        fields.insert("content".to_owned(), json!([part]));
    }
    if prefix == "rs" {
        fields.entry("summary").or_insert_with(|| json!([]));
    }
    fields.entry("status").or_insert_with(|| json!("completed"));
    fields.insert("type".to_owned(), json!(kind));
    fields.insert("id".to_owned(), json!(id));
    item
}

/// Returns whether a text is an id of a call that is to be approved, as answers have it.
fn is_approval(id: &str) -> bool {
    let rest = id.strip_prefix(APPROVAL).and_then(|rest| rest.strip_prefix('_'));
    rest.is_some_and(|rest| rest.len() <= 64 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// There is no such conversation of the caller's.
pub(super) fn no_conversation(id: &str) -> ApiError {
    not_found("Conversation", id, "conversation_not_found")
}

/// The answer that a request goes on from is not kept, or one further back.
fn no_previous(id: &str, is_first: bool) -> ApiError {
    let line = match is_first {
        true => not_found("Previous response", id, "").message,
        false => {
            format!("the previous response goes on from '{id}', which is not kept any more; send the conversation")
        }
    };
    ApiError::bad(super::PREVIOUS.name, line).code("previous_response_not_found")
}

/// Does what reads or writes what is kept where it holds up nobody.
pub(super) fn with_own(
    mut call: ServerCall,
    work: impl FnOnce(&mut Own, &mut ServerCall) -> Result<Value, ApiError> + Send + 'static,
) -> HandlerFuture {
    Box::pin(async move {
        offload(move || {
            let mut own = Own::new(&call.server, &call.tenant);
            let answer = work(&mut own, &mut call)?;
            Ok::<Response<Body>, _>(held(json_response(StatusCode::OK, &answer), own.parts))
        })
        .await
    })
}
