//! `/v1/models`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::app::{Answer, Plain, Server};
use crate::error::{ApiError, json_response};
use crate::models::Standing;

/// Lists what is served.
pub(super) fn list(call: Plain) -> Answer {
    Box::pin(async move {
        let data: Vec<Value> =
            call.server.models.standings().iter().map(|model| describe(&call.server, model)).collect();
        Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": data })))
    })
}

/// Describes one model.
pub(super) fn one(call: Plain) -> Answer {
    Box::pin(async move {
        let asked = call.uri.path().trim_start_matches("/v1/models/").replace("%3A", ":").replace("%2F", "/");
        let models = &call.server.models;
        let standings = models.standings();
        let found = standings.iter().find(|model| *model.name == *asked);
        let found = found.ok_or_else(|| ApiError { param: None, ..models.unknown(&asked) })?;
        Ok(json_response(StatusCode::OK, &describe(&call.server, found)))
    })
}

fn describe(server: &Server, model: &Standing) -> Value {
    let mut answer = json!({
        "id": &*model.name,
        "object": "model",
        "created": server.created_s,
        "owned_by": "ruvllm",
        "state": model.state,
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
