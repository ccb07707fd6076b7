//! Errors on their way to JavaScript: a line of JSON that `js/src/errors.js` makes a class of.

use ruvllm_api::error::{ApiError, Shape};
use ruvllm_server::ServerError;
use serde_json::json;

/// Returns an error of loading, of the kind that the exit code tells.
pub(crate) fn of_command(error: &ruvllm_cli::Error) -> napi::Error {
    let message = error.line().unwrap_or_else(|| "interrupted".to_owned());
    let kind = if error.exit_code() == 2 { "usage" } else { "load" };
    napi::Error::from_reason(json!({ "kind": kind, "message": message }).to_string())
}

/// Returns an error of starting or stopping the server.
pub(crate) fn of_server(error: &ServerError) -> napi::Error {
    napi::Error::from_reason(json!({ "kind": "load", "message": error.to_string() }).to_string())
}

/// Returns an error that the HTTP API would answer with.
pub(crate) fn of_api(error: &ApiError) -> napi::Error {
    let mut body = error.body(Shape::OpenAi);
    body["status"] = json!(error.status.as_u16());
    napi::Error::from_reason(body.to_string())
}

/// Returns the error of a fault of this crate's caller or of the runtime.
pub(crate) fn internal(line: &str) -> napi::Error {
    napi::Error::from_reason(json!({ "kind": "internal", "message": line }).to_string())
}
