//! `/api/pull` and `/api/delete`: what is served is there already; files come and go by the program.

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, unheeded};
use serde_json::json;

use crate::call::response::json_response;
use crate::call::{HandlerFuture, ServerCall, stream};
use crate::handlers::ollama::names::find;

/// What a request to download may say.
pub(super) const FIELDS: &[Field] = &[
    optional("model", Kind::Text, "the model's name").also(&["name"]),
    unheeded("insecure", Kind::Bool, "nothing is downloaded"),
    optional("stream", Kind::Bool, "send the status as a line of JSON; so unless this is false"),
];

/// Says that a served model is there.
pub(super) fn pull(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let name = call.body.text("model").unwrap_or_default();
        if find(&call.server, &call.tenant, name).is_none() {
            let line = format!(
                "this server downloads no models: run `ruvllm pull {name}`, and serve it with `ruvllm serve --model {name}`"
            );
            return Err(ApiError::bad("model", line).code("unsupported"));
        }
        let status = json!({ "status": "success" });
        match call.body.flag("stream", true) {
            true => Ok(stream::respond(&stream::LINES, |lines| async move { lines.send_line(&status).await })),
            false => Ok(json_response(StatusCode::OK, &status)),
        }
    })
}

/// Says how a model is deleted.
pub(super) fn delete(_: ServerCall) -> HandlerFuture {
    Box::pin(async {
        let line = "this server deletes no models: stop serving it, and run `ruvllm rm NAME`";
        Err(ApiError::new(StatusCode::BAD_REQUEST, line).code("unsupported"))
    })
}
