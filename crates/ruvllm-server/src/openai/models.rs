//! `/v1/models`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::app::{Answer, Plain, Server};
use crate::error::{ApiError, json_response};
use crate::models::Standing;

/// Lists what is served.
pub(super) fn list(call: Plain) -> Answer {
    Box::pin(async move {
        let standings = call.server.models.standings();
        let of_adapters = |model: &Standing| {
            let adapters = model.adapters.visible(&call.tenant);
            adapters.iter().map(|info| adapted(&call.server, model, &info.name)).collect::<Vec<_>>()
        };
        let models = standings.iter().map(|model| describe(&call.server, model));
        let data: Vec<Value> = models.chain(standings.iter().flat_map(of_adapters)).collect();
        Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
    })
}

/// Describes one model.
pub(super) fn one(call: Plain) -> Answer {
    Box::pin(async move {
        let asked = call.path_behind("/v1/models/");
        let models = &call.server.models;
        let (name, adapter) = models.split(Some(&asked));
        let standings = models.standings();
        let found = standings.iter().find(|model| name.is_some_and(|name| model.is_called(name)));
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
fn adapted(server: &Server, model: &Standing, adapter: &str) -> Value {
    let mut answer = describe(server, model);
    answer["id"] = json!(format!("{}:{adapter}", model.name));
    answer["parent"] = json!(&*model.name);
    answer
}

fn describe(server: &Server, model: &Standing) -> Value {
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
