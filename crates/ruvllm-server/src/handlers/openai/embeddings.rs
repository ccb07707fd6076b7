//! `/v1/embeddings`.

use axum::http::StatusCode;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use ruvllm_api::generation::{MODEL, POOLING, USER};
use ruvllm_api::input::INPUT;
use serde_json::{Value, json};

use crate::call::embed::embed;
use crate::call::response::json_response;
use crate::call::{Call, HandlerFuture};

/// What a request may say.
pub(super) const FIELDS: &[Field] = &[
    required("input", INPUT, "a text, or its tokens; or several of them"),
    MODEL,
    optional(
        "encoding_format",
        Kind::Word(&["float", "base64"]),
        "numbers, or the base64 of their 32-bit little-endian bytes",
    ),
    optional("dimensions", Kind::Int(1, 1 << 20), "the model's own number of them; it has no other"),
    POOLING,
    ADAPTER,
    ADAPTERS,
    USER,
];

/// Embeds texts.
pub(super) fn answer(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let n_embd = call.model.engine().map(|service| service.info().n_embd);
        if let Some((n, n_embd)) = call.body.count("dimensions").zip(n_embd).filter(|(n, n_embd)| n != n_embd) {
            let line = format!("'dimensions' is {n}; the model's embeddings have {n_embd} and cannot be cut");
            return Err(ApiError::bad("dimensions", line));
        }
        let is_base64 = call.body.text("encoding_format") == Some("base64");
        let (embeddings, n_tokens) = embed(&call, "input").await?;
        let one = |(i, embedding): (usize, Vec<f32>)| {
            let embedding = if is_base64 { json!(base64(&embedding)) } else { json!(embedding) };
            json!({ "object": "embedding", "index": i, "embedding": embedding })
        };
        let data: Vec<Value> = embeddings.into_iter().enumerate().map(one).collect();
        let usage = json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens });
        let model = &*call.model_name;
        let answer = json!({ "object": "list", "data": data, "model": model, "usage": usage });
        Ok(json_response(StatusCode::OK, &answer))
    })
}

/// Returns the base64 (RFC 4648) of little-endian numbers.
fn base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_bytes() {
        // Python: base64.b64encode(struct.pack('<f', 1.0)) and of 1, -2 and 1, -2, 0.5
        assert_eq!(base64(&[1.0]), "AACAPw==");
        assert_eq!(base64(&[1.0, -2.0]), "AACAPwAAAMA=");
        assert_eq!(base64(&[1.0, -2.0, 0.5]), "AACAPwAAAMAAAAA/");
    }
}
