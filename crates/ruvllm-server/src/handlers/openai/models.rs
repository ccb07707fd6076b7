//! `/v1/models`.

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_server_state::models::ModelStatus;
use ruvllm_server_state::server::Server;
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::{HandlerFuture, ServerCall};

/// Lists what is served.
pub(super) fn list(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let statuses = call.server.models.statuses();
        let of_adapters = |model: &ModelStatus| {
            let adapters = model.adapters.visible(&call.tenant);
            adapters.iter().map(|info| adapted(&call.server, model, &info.name)).collect::<Vec<_>>()
        };
        let models = statuses.iter().map(|model| describe(&call.server, model));
        let data: Vec<Value> = models.chain(statuses.iter().flat_map(of_adapters)).collect();
        Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
    })
}

/// Describes one model.
pub(super) fn one(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let asked = call.path_behind("/v1/models/");
        let models = &call.server.models;
        let (name, adapter) = models.split(Some(&asked));
        let statuses = models.statuses();
        let found = statuses.iter().find(|model| name.is_some_and(|name| model.is_called(name)));
        let unknown = || ApiError { param: None, ..models.unknown(&asked) };
        let found = found.ok_or_else(unknown)?;
        let answer = match adapter {
            None => describe(&call.server, found),
            Some(adapter) => {
                let visible = found.adapters.visible(&call.tenant);
                visible.iter().find(|info| info.name == adapter).ok_or_else(unknown)?;
                adapted(&call.server, found, adapter)
            }
        };
        Ok(json_response(StatusCode::OK, &answer))
    })
}

/// Describes a model with an adapter.
fn adapted(server: &Server, model: &ModelStatus, adapter: &str) -> Value {
    let mut answer = describe(server, model);
    answer["id"] = json!(format!("{}:{adapter}", model.name));
    answer["parent"] = json!(&*model.name);
    answer
}

fn describe(server: &Server, model: &ModelStatus) -> Value {
    let has_failed = model.state == "failed";
    let mut answer = json!({
        "id": &*model.name,
        "object": "model",
        "created": server.created_s,
        "owned_by": "ruvllm",
        "aliases": model.labels.aliases,
        "tags": model.labels.tags,
        "state": model.state,
        // As llama.cpp has it.
        "status": { "value": if has_failed { "unloaded" } else { model.state }, "failed": has_failed },
    });
    if let Some(info) = &model.info {
        answer["meta"] = json!({
            "name": info.name,
            "architecture": info.arch,
            "n_params": info.n_params,
            "n_vocab": info.n_vocab,
            "n_embd": info.n_embd,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "quantization": info.quantization,
            "makes": if info.is_encoder { "embeddings" } else { "text" },
        });
    }
    answer
}
