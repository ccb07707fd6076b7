//! `/v1/models`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::app::{Answer, Call};
use crate::error::{ApiError, json_response};

/// Lists what is served.
pub(super) fn list(call: Call) -> Answer {
    Box::pin(async move { Ok(json_response(StatusCode::OK, &json!({ "object": "list", "data": [model(&call)] }))) })
}

/// Describes one model.
pub(super) fn one(call: Call) -> Answer {
    Box::pin(async move {
        let asked = call.uri.path().trim_start_matches("/v1/models/").replace("%3A", ":").replace("%2F", "/");
        let served = &call.server.options.model;
        if asked != *served {
            let line = format!("the model '{asked}' is not served here; '{served}' is");
            return Err(ApiError::new(StatusCode::NOT_FOUND, line).code("model_not_found"));
        }
        Ok(json_response(StatusCode::OK, &model(&call)))
    })
}

fn model(call: &Call) -> Value {
    let info = call.server.service.info();
    json!({
        "id": call.server.options.model,
        "object": "model",
        "created": call.server.created_s,
        "owned_by": "ruvllm",
        "meta": {
            "name": info.name,
            "architecture": info.arch,
            "n_params": info.n_params,
            "n_vocab": info.n_vocab,
            "n_embd": info.n_embd,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "quantization": info.quantization,
            "makes": if info.is_encoder { "embeddings" } else { "text" },
        },
    })
}
