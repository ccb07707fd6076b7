//! `/lora-adapters`: which adapters there are, and how strong each is where a request does not say.

use axum::http::{Method, StatusCode};
use ruvllm_api::adapters::{LORA, Strength};
use ruvllm_api::fields::{Field, required};
use ruvllm_api::generation::MODEL;
use serde_json::{Value, json};

use crate::call::adapters::numbered;
use crate::call::response::json_response;
use crate::call::{Call, Endpoint, Handler, HandlerFuture, Lists};

const SCALES: &[Field] = &[
    required(
        LORA.name,
        LORA.kind,
        "how strong adapters are, by their ids, where a request names none; those left out have no effect",
    ),
    MODEL,
];

/// The endpoint that lists them.
pub(super) const LIST: Endpoint = Endpoint {
    method: Method::GET,
    path: "/lora-adapters",
    summary: "Returns the adapters that a request may name, and how strong each is where it names none",
    answers: &["id", "path", "scale"],
    lists: Lists::Always,
    run: Handler::Model(list),
    ..Endpoint::POST
};

/// The endpoint that says how strong they are.
pub(super) const SET: Endpoint = Endpoint {
    path: "/lora-adapters",
    summary: "Sets how strong adapters are where a request of the same key names none; the body may be the list alone",
    fields: &[SCALES],
    list_field: Some(LORA.name),
    answers: &["success"],
    run: Handler::Model(set),
    ..Endpoint::POST
};

fn list(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let adapters = &call.model.adapters;
        let defaults = adapters.defaults(&call.tenant);
        let scale =
            |name: &str| defaults.iter().find(|default| default.name == name).map_or(0.0, |default| default.scale);
        let known = adapters.visible(&call.tenant);
        let known = known.iter().enumerate();
        let all: Vec<Value> =
            known.map(|(id, info)| json!({ "id": id, "path": info.name, "scale": scale(&info.name) })).collect();
        Ok(json_response(StatusCode::OK, &json!(all)))
    })
}

fn set(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let scales: Vec<Strength> = numbered(&call)?;
        call.model.adapters.set_defaults(&call.tenant, scales);
        Ok(json_response(StatusCode::OK, &json!({ "success": true })))
    })
}
