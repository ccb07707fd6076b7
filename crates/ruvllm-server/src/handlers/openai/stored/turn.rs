//! A request for an answer: what it goes on from, and the answer on its way to where it is kept.

use std::sync::{Arc, PoisonError};

use ruvllm_api::error::{ApiError, without_numbers};
use ruvllm_api::fields::ValidBody;
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::witness::tenant_name;
use ruvllm_sona::documents::{Documents, NewDocument};
use ruvllm_sona::{SonaError, SonaErrorKind, now_ms};
use serde_json::{Value, json};

use crate::call::Call;
use crate::handlers::openai::stored::own::{CONVERSATION, Own, list_of, named, no_conversation, part_of};
use crate::handlers::openai::stored::{CONVERSATION as GIVEN_CONVERSATION, PREVIOUS, STORE};

/// What is to be kept of a request and its answer.
pub(crate) struct Keeping {
    /// Whether anything is.
    is_kept: bool,
    /// What it goes on from: an answer (`previous`), or a `conversation` as far as it went (`up_to`).
    link: Value,
    /// The items that came with the request, as parts of a conversation.
    input: Vec<Vec<u8>>,
}

impl Keeping {
    /// Puts what a request goes on from in front of its input.
    ///
    /// # Errors
    /// 400: there is no input at all, or an earlier answer is not kept; 404: a conversation is not.
    pub(crate) async fn begin(call: &mut Call) -> Result<Keeping, ApiError> {
        let (is_kept, link) = (call.body.flag(STORE.name, true), link_of(&call.body)?);
        if let Some(id) = link["conversation"].as_str() {
            call.body.set(GIVEN_CONVERSATION.name, json!({ "id": id }));
        }
        let (given, id, mut own) = (call.body.take("input"), call.id.clone(), Own::new(&call.server, &call.tenant));
        let mut keeping = Keeping { is_kept, link, input: Vec::new() };
        own.n_max = call.server.options().body_bytes_max;
        let (keeping, items, parts) = offload(move || {
            let input = named(own.referred(given)?, &id);
            if is_kept {
                keeping.input = input.iter().map(part_of).collect();
                own.count(keeping.input.iter().map(Vec::len).sum())?;
            }
            let mut items = keeping.read(&mut own)?;
            items.extend(input);
            Ok((keeping, items, own.parts))
        })
        .await?;
        if items.is_empty() {
            let line = "'input' is missing: a text, or a conversation with calls and what they returned";
            return Err(ApiError::bad("input", line).code("missing_field"));
        }
        call.body.set("input", Value::Array(items));
        call.held.lock().unwrap_or_else(PoisonError::into_inner).extend(parts);
        Ok(keeping)
    }

    /// Reads what the request goes on from.
    fn read(&mut self, own: &mut Own) -> Result<Vec<Value>, ApiError> {
        let Some(id) = self.link["conversation"].as_str() else { return own.earlier(&self.link) };
        if !id.starts_with(CONVERSATION) {
            return Err(no_conversation(id));
        }
        let found = own.items(id, None)?;
        self.link["up_to"] = json!(found.last);
        Ok(found.items)
    }

    /// Keeps an answer that is over, once; returns when it is kept. An answer that cannot be kept says so in its `store`, and
    /// is given all the same.
    pub(crate) async fn keep(&mut self, call: &Call, response: &mut Value) {
        if !std::mem::take(&mut self.is_kept) {
            return;
        }
        let output = response["output"].take();
        let ending = Ending {
            tenant: tenant_name(&call.tenant).to_owned(),
            id: response["id"].as_str().unwrap_or_default().to_owned(),
            link: self.link.take(),
            input: std::mem::take(&mut self.input),
            output: output.as_array().into_iter().flatten().map(part_of).collect(),
            body: response.to_string().into_bytes(),
        };
        response["output"] = output;
        let stored = Arc::clone(&call.server.stored);
        let saved = tokio::task::spawn_blocking(move || {
            let saved = ending.save(&stored.documents);
            // One that is too large says nothing about the disk.
            if saved.as_ref().err().is_none_or(|error| error.kind() != SonaErrorKind::Limit) {
                stored.saves.note(saved.as_ref().err().map(|error| without_numbers(&error.to_string())));
            }
            saved.inspect_err(|error| tracing::error!(%error, "an answer was not kept")).is_ok()
        });
        if !saved.await.unwrap_or(false) {
            response["store"] = json!(false);
        }
    }
}

/// Returns what a request says that it goes on from.
///
/// # Errors
/// 400: it names two things.
fn link_of(given: &ValidBody) -> Result<Value, ApiError> {
    let conversation = given.get(GIVEN_CONVERSATION.name).map(|given| given.as_str().or_else(|| given["id"].as_str()));
    match (given.text(PREVIOUS.name), conversation) {
        (Some(_), Some(_)) => {
            let line = "a request goes on from 'previous_response_id' or with a 'conversation'; send one of them";
            Err(ApiError::bad(PREVIOUS.name, line).code("invalid_value"))
        }
        (Some(id), None) => Ok(json!({ "previous": id })),
        (None, Some(id)) => Ok(json!({ "conversation": id.unwrap_or_default() })),
        (None, None) => Ok(json!({})),
    }
}

/// An answer that is over, with what it was made from.
struct Ending {
    tenant: String,
    id: String,
    link: Value,
    input: Vec<Vec<u8>>,
    output: Vec<Vec<u8>>,
    /// The answer without its output.
    body: Vec<u8>,
}

impl Ending {
    fn save(mut self, documents: &Documents) -> Result<(), SonaError> {
        let (now_ms, head) = (now_ms(), self.link.to_string());
        let parts = [self.body, list_of(&self.input), list_of(&self.output)];
        if let Some(id) = self.link["conversation"].as_str() {
            self.input.append(&mut self.output);
            // One that was removed meanwhile stays so.
            documents.append(&self.tenant, id, &self.input, now_ms)?;
        }
        let new = NewDocument { head: head.as_bytes(), parts: &parts, is_lasting: false };
        documents.put(&self.tenant, &self.id, &new, now_ms)
    }
}
