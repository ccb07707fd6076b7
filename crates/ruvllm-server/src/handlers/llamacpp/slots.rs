//! `/slots`: which places are taken, and what of their last requests is kept under a name.
//!
//! Places are alike here: any computes any request, and prompts are found by how they begin. A request that names one (`id_slot`)
//! is remembered as its last, so that it can be saved, brought back after a restart, and forgotten.

use std::time::Instant;

use axum::http::{Method, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, ValidBody, optional, required};
use ruvllm_api::generation::MODEL;
use ruvllm_engine::{CacheSalt, ErrorKind, SavedPrompt};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::slots::Last;
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::slot::NamedSlot;
use crate::call::{Endpoint, Handler, HandlerFuture, Lists, ServerCall};

const QUERY: &[Field] =
    &[super::WHICH, optional("fail_on_no_slot", Kind::Int(0, 1), "1 answers with 503 where all places are taken")];

const ACTION: &[Field] = &[required(
    "action",
    Kind::Word(&["save", "restore", "erase"]),
    "save keeps the last request of the place and its answer, restore brings them back, erase has the next one computed whole",
)];

const FILENAME: &[Field] = &[optional("filename", Kind::Text, "the name under which it is kept; not for erase"), MODEL];

/// The endpoint that lists places.
pub(super) const LIST: Endpoint = Endpoint {
    method: Method::GET,
    path: "/slots",
    summary: "Returns which places of the model are taken; none while it sleeps",
    query: QUERY,
    answers: &["id", "n_ctx", "is_processing"],
    lists: Lists::Always,
    run: Handler::Server(list),
    ..Endpoint::POST
};

/// The endpoint that keeps what a place had.
pub(super) const KEEP: Endpoint = Endpoint {
    path: "/slots/{id}",
    summary: "Saves, restores or erases the last request of a place, in the folder of --cache-dir",
    query: ACTION,
    fields: &[FILENAME],
    answers: &["id_slot"],
    run: Handler::Server(keep),
    ..Endpoint::POST
};

/// Tells which places are taken.
fn list(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        if !call.server.options().has_slots {
            let line = "the server does not tell which places are taken; start it without --no-slots";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, line).code("not_supported"));
        }
        let (_, model) = call.server.models.look(call.body.text("model"))?;
        let Some(model) = model else { return Ok(json_response(StatusCode::OK, &json!([]))) };
        let service = model.service()?;
        let n_ctx = service.info().n_ctx;
        let (n_running, n_max) = (service.stats().n_running, service.n_running_max());
        if call.body.int("fail_on_no_slot") == Some(1) && n_running >= n_max {
            let line = format!("all {n_max} places are taken; a request waits for one, or try again later");
            let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("no_slot");
            return Err(ApiError { retry_after_s: Some(1), ..error });
        }
        let slot = |id: usize| json!({ "id": id, "n_ctx": n_ctx, "is_processing": id < n_running });
        let slots: Vec<Value> = (0..n_max).map(slot).collect();
        Ok(json_response(StatusCode::OK, &json!(slots)))
    })
}

/// Saves, restores or erases what a place had.
fn keep(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let query = ValidBody::of_query(call.uri.query().unwrap_or_default(), ACTION)?;
        let model = call.server.model(call.body.text("model"), call.deadline).await?;
        let n_places = model.service()?.n_running_max();
        let id = call.part_behind("slots");
        let id = id.parse().ok().filter(|&id: &usize| id < n_places).ok_or_else(|| {
            let line = format!("'{id}' is no place; they go from 0 to {}", n_places - 1);
            ApiError::bad("", line).code("invalid_slot")
        })?;
        let place = NamedSlot { model, tenant: call.tenant.id, id };
        let filename = call.body.text("filename").map(str::to_owned);
        let action = query.text("action").unwrap_or_default().to_owned();
        let answer = offload(move || match (&*action, filename) {
            ("erase", _) => Ok(erase(&place)),
            (_, None) => Err(ApiError::bad("filename", "'filename' is missing: the name under which it is kept")),
            ("save", Some(name)) => save(&place, &name),
            (_, Some(name)) => restore(&place, &name),
        });
        Ok(json_response(StatusCode::OK, &answer.await?))
    })
}

fn erase(place: &NamedSlot) -> Value {
    let n_erased = match place.model.slots.lock().insert((place.tenant, place.id), Last::Erased) {
        Some(Last::Tokens(tokens)) => tokens.len(),
        _ => 0,
    };
    json!({ "id_slot": place.id, "n_erased": n_erased })
}

fn save(place: &NamedSlot, name: &str) -> Result<Value, ApiError> {
    let start = Instant::now();
    let tokens = match place.model.slots.lock().get(&(place.tenant, place.id)) {
        Some(Last::Tokens(tokens)) => tokens.clone(),
        _ => Vec::new(),
    };
    if tokens.is_empty() {
        let line = format!("there is nothing to save: no request has named place {} by 'id_slot' yet", place.id);
        return Err(ApiError::new(StatusCode::BAD_REQUEST, line).code("empty_slot"));
    }
    let saved = place.model.service()?.save_prompt(&name_in_store(place, name), tokens).map_err(refused)?;
    Ok(json!({
        "id_slot": place.id,
        "filename": name,
        "n_saved": saved.tokens.len(),
        "n_written": saved.n_bytes,
        "timings": { "save_ms": start.elapsed().as_secs_f64() * 1e3 },
    }))
}

fn restore(place: &NamedSlot, name: &str) -> Result<Value, ApiError> {
    let start = Instant::now();
    let scope = CacheSalt { tenant: place.tenant, ..CacheSalt::default() };
    let restored = place.model.service()?.restore_prompt(&name_in_store(place, name), scope).map_err(refused)?;
    let Some(SavedPrompt { tokens, n_bytes, n_ready }) = restored else {
        let line = format!("nothing is saved under the name '{name}'");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, line).code("unknown_file"));
    };
    let n_restored = tokens.len();
    place.model.slots.lock().insert((place.tenant, place.id), Last::Tokens(tokens));
    Ok(json!({
        "id_slot": place.id,
        "filename": name,
        "n_restored": n_restored,
        "n_ready": n_ready,
        "n_read": n_bytes,
        "timings": { "restore_ms": start.elapsed().as_secs_f64() * 1e3 },
    }))
}

/// Returns the name in the cache folder, where sessions and other tenants have names too.
fn name_in_store(place: &NamedSlot, name: &str) -> String {
    format!("slot {:x} {name}", place.tenant)
}

/// Says why nothing was saved: mostly because there is no folder for it.
fn refused(error: ruvllm_engine::EngineError) -> ApiError {
    let is_missing = error.kind() == ErrorKind::Cache && error.to_string().contains("load the model with one");
    match is_missing {
        true => {
            let line = "the server keeps nothing of places; start it with --cache-dir DIR";
            ApiError::new(StatusCode::NOT_IMPLEMENTED, line).code("not_supported")
        }
        false if error.kind() == ErrorKind::Cache => ApiError::bad("filename", error.to_string()).code("not_kept"),
        false => error.into(),
    }
}
