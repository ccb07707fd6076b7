//! `/v1/embeddings`: its table, and its answers.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ruvllm_engine::Pooling;
use serde_json::{Value, json};

use crate::adapters::{ADAPTER, ADAPTERS};
use crate::error::ApiError;
use crate::fields::{Field, Kind, ValidBody, optional, required};
use crate::generation::{MODEL, POOLING, USER};
use crate::input::INPUT;

/// Fields of a request.
pub const FIELDS: &[Field] = &[
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

/// Checks that the embeddings have as many numbers as are asked for.
///
/// # Errors
/// 400: the model has another number of them.
pub fn check_dimensions(given: &ValidBody, n_embd: usize) -> Result<(), ApiError> {
    match given.count("dimensions").filter(|&n| n != n_embd) {
        Some(n) => {
            let line = format!("'dimensions' is {n}; the model's embeddings have {n_embd} and cannot be cut");
            Err(ApiError::bad("dimensions", line))
        }
        None => Ok(()),
    }
}

/// Returns the way of pooling that a request asks for.
pub fn pooling(given: &ValidBody) -> Option<Pooling> {
    given.text(POOLING.name).map(|name| match name {
        "none" => Pooling::None,
        "cls" => Pooling::Cls,
        "last" => Pooling::Last,
        _ => Pooling::Mean,
    })
}

/// Returns the answer of a model of this name with the embeddings of texts of so many tokens.
pub fn answer(given: &ValidBody, model: &str, embeddings: Vec<Vec<f32>>, n_tokens: usize) -> Value {
    let is_base64 = given.text("encoding_format") == Some("base64");
    let one = |(i, embedding): (usize, Vec<f32>)| {
        let embedding = if is_base64 { json!(base64(&embedding)) } else { json!(embedding) };
        json!({ "object": "embedding", "index": i, "embedding": embedding })
    };
    let data: Vec<Value> = embeddings.into_iter().enumerate().map(one).collect();
    let usage = json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens });
    json!({ "object": "list", "data": data, "model": model, "usage": usage })
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
