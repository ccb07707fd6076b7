//! `/api/pull` and `/api/delete`: what is served is there already; files come and go by the program.

use axum::http::StatusCode;
use serde_json::json;

use super::names::find;
use crate::app::{Answer, Plain};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Kind, optional, unheeded};
use crate::stream;

/// What a request to download may say.
pub(super) const FIELDS: &[Field] = &[
    optional("model", Kind::Text, "the model's name").also(&["name"]),
    unheeded("insecure", Kind::Bool, "nothing is downloaded"),
    optional("stream", Kind::Bool, "send the status as a line of JSON; so unless this is false"),
];

/// Says that a served model is there.
pub(super) fn pull(call: Plain) -> Answer {
    Box::pin(async move {
        let name = call.given.text("model").unwrap_or_default();
        if find(&call.server, &call.tenant, name).is_none() {
            let line = format!(
                "this server downloads no models: run `ruvllm pull {name}`, and serve it with `ruvllm serve --model {name}`"
            );
            return Err(ApiError::bad("model", line).code("unsupported"));
        }
        let status = json!({ "status": "success" });
        match call.given.flag("stream", true) {
            true => Ok(stream::respond(&stream::LINES, |lines| async move { lines.send_line(&status).await })),
            false => Ok(json_response(StatusCode::OK, &status)),
        }
    })
}

/// Says how a model is deleted.
pub(super) fn delete(_: Plain) -> Answer {
    Box::pin(async {
        let line = "this server deletes no models: stop serving it, and run `ruvllm rm NAME`";
        Err(ApiError::new(StatusCode::BAD_REQUEST, line).code("unsupported"))
    })
}
