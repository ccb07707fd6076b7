//! `/v1/adapters`: what is loaded, and loading, pinning and removing it while requests run.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use ruvllm_api::adapters::ADAPTER;
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use ruvllm_api::generation::MODEL;
use ruvllm_lora::LoraErrorKind;
use ruvllm_lora::manager::AdapterInfo;
use ruvllm_server_state::adapters::Adapters;
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::models::ServedModel;
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, ServerCall};

const PATH: &str = "/v1/adapters/";

const LOAD: &[Field] = &[
    required("name", Kind::Text, "what to call it; one that has the name already is replaced"),
    optional(
        "path",
        Kind::Text,
        "a GGUF file or PEFT folder in the server's folder of adapters; the one of that name if it is left out",
    ),
    optional("pinned", Kind::Bool, "keep it ready for use, whoever asks for others"),
    MODEL,
];

const PIN: &[Field] = &[required("pinned", Kind::Bool, "keep it ready for use from now on, or no longer")];

const ANSWERS: &[&str] = &["name", "model", "generation", "tier", "bytes", "rank", "pinned", "tenant", "uses"];

const POST: Endpoint = Endpoint {
    path: "/v1/adapters",
    summary: "Loads an adapter of the server's folder under a name",
    fields: &[LOAD],
    answers: ANSWERS,
    run: Handler::Server(load),
    ..Endpoint::POST
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    POST,
    Endpoint {
        method: Method::GET,
        summary: "Lists the adapters that requests may name",
        fields: &[],
        answers: &["object", "data"],
        run: Handler::Server(list),
        ..POST
    },
    Endpoint {
        path: "/v1/adapters/{*adapter}",
        summary: "Pins an adapter, or lets it go when memory is short; it is named NAME or MODEL:NAME",
        fields: &[PIN],
        run: Handler::Server(pin),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/adapters/{*adapter}",
        summary: "Removes an adapter; requests that have it go on with it",
        fields: &[],
        answers: &["name", "model", "deleted"],
        run: Handler::Server(remove),
        ..POST
    },
];

/// Returns an adapter as clients see it. The tenant is that of the caller, or none for everybody's.
fn describe(model: &str, info: &AdapterInfo, tenant: &Tenant) -> Value {
    json!({
        "name": info.name,
        "model": model,
        "generation": info.generation,
        "tier": info.residency.as_str(),
        "bytes": info.n_bytes,
        "rank": info.rank,
        "pinned": info.is_pinned,
        "tenant": (info.tenant != 0).then_some(&*tenant.name),
        "uses": info.n_uses,
    })
}

fn list(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let models = call.server.models.adapters();
        let of_model = |(model, adapters): &(Arc<str>, Arc<Adapters>)| {
            let visible = adapters.visible(&call.tenant);
            visible.iter().map(|info| describe(model, info, &call.tenant)).collect::<Vec<_>>()
        };
        let data: Vec<Value> = models.iter().flat_map(of_model).collect();
        Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
    })
}

/// Returns the answer that describes an adapter.
fn one(model: &ServedModel, name: &str, tenant: &Tenant) -> Result<Response<Body>, ApiError> {
    let info = model.adapters.manager()?.find(name, tenant.id);
    let info = info.ok_or_else(|| model.adapters.unknown(name, tenant))?;
    Ok(json_response(StatusCode::OK, &describe(&model.name, &info, tenant)))
}

fn load(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let model = call.server.model(call.body.text("model"), call.deadline).await?;
        let is_pinned = call.body.get("pinned").and_then(Value::as_bool);
        may_pin(&call.tenant, is_pinned)?;
        // Reading, checking and bringing it into form: nobody else waits for it.
        offload(move || {
            let (name, adapters) = (call.body.text("name").unwrap_or_default(), &model.adapters);
            let path = adapters.locate(name, call.body.text("path"))?;
            let (manager, tenant) = (adapters.manager()?, call.tenant.id);
            let refused = |error| adapters.refused(&error, "path");
            let generation = manager.add(name, &path, tenant).map_err(refused)?;
            if let Some(is_pinned) = is_pinned {
                manager.pin(name, tenant, is_pinned).map_err(refused)?;
            }
            match manager.get(name, tenant) {
                Ok(_) => {}
                // It is there, and gets its place when others have ended.
                Err(error) if error.kind() == LoraErrorKind::Budget => {}
                Err(error) => return Err(refused(error)),
            }
            tracing::info!(model = &*model.name, adapter = name, generation, "adapter loaded");
            one(&model, name, &call.tenant)
        })
        .await
    })
}

/// Finds the model and the adapter that the path of a request names.
async fn of_path(call: &ServerCall) -> Result<(Arc<ServedModel>, String), ApiError> {
    let asked = call.path_behind(PATH);
    let (model, name) = match asked.rsplit_once(':') {
        Some((model, name)) => (Some(model), name),
        None => (None, asked.as_str()),
    };
    Ok((call.server.model(model, call.deadline).await?, name.to_owned()))
}

fn pin(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let (model, name) = of_path(&call).await?;
        let is_pinned = call.body.is_set("pinned");
        may_pin(&call.tenant, Some(is_pinned))?;
        let adapters = &model.adapters;
        adapters.check(&name, &call.tenant)?;
        let pinned = adapters.manager()?.pin(&name, call.tenant.id, is_pinned);
        pinned.map_err(|error| adapters.refused(&error, ADAPTER.name))?;
        one(&model, &name, &call.tenant)
    })
}

/// A key may keep from others as much memory as it may have, so it must be said how much that is.
fn may_pin(tenant: &Tenant, is_pinned: Option<bool>) -> Result<(), ApiError> {
    if is_pinned != Some(true) || tenant.id == 0 || tenant.adapter_bytes_max.is_some() {
        return Ok(());
    }
    let line =
        "this key has no quota of memory for adapters, so it may pin none; adapter_mib=N in the key file sets one";
    Err(ApiError { param: Some("pinned".to_owned()), ..ApiError::new(StatusCode::FORBIDDEN, line).code("no_quota") })
}

fn remove(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let (model, name) = of_path(&call).await?;
        let adapters = &model.adapters;
        adapters.check(&name, &call.tenant)?;
        let removed = adapters.manager()?.remove(&name, call.tenant.id);
        removed.map_err(|error| adapters.refused(&error, ADAPTER.name))?;
        tracing::info!(model = &*model.name, adapter = name, "adapter removed");
        Ok(json_response(StatusCode::OK, &json!({ "name": name, "model": &*model.name, "deleted": true })))
    })
}
