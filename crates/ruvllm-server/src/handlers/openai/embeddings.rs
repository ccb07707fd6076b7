//! `/v1/embeddings`.

use axum::http::StatusCode;
use ruvllm_api::openai::embeddings;

use crate::call::embed::embed;
use crate::call::response::json_response;
use crate::call::{Call, HandlerFuture};

/// Embeds texts.
pub(super) fn answer(call: Call) -> HandlerFuture {
    Box::pin(async move {
        if let Some(service) = call.model.engine() {
            embeddings::check_dimensions(&call.body, service.info().n_embd)?;
        }
        let (embeddings, n_tokens) = embed(&call, "input").await?;
        Ok(json_response(StatusCode::OK, &embeddings::answer(&call.body, &call.model_name, embeddings, n_tokens)))
    })
}
