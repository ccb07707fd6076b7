//! `/v1/embeddings`.

use axum::http::StatusCode;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{Pooling, Readout};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::input::{INPUT, read_input};
use crate::adapters::{ADAPTER, ADAPTERS};
use crate::app::{Answer, Call};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{MODEL, USER, check_fits, offload, with_retry};

/// How the vectors of a text's tokens become one.
pub(crate) const POOLING: Field = optional(
    "pooling",
    Kind::Word(&["mean", "cls", "last"]),
    "how token vectors become one: their mean, the first or the last; the model's own way where nothing is said",
);

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
pub(super) fn answer(call: Call) -> Answer {
    Box::pin(async move {
        let n_embd = call.model.service.info().n_embd;
        if let Some(n) = call.given.count("dimensions").filter(|&n| n != n_embd) {
            let line = format!("'dimensions' is {n}; the model's embeddings have {n_embd} and cannot be cut");
            return Err(ApiError::bad("dimensions", line));
        }
        let is_base64 = call.given.text("encoding_format") == Some("base64");
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

/// Embeds the texts of a field, those of each token one after the other where none are pooled; also returns how many tokens they have.
///
/// # Errors
/// What the field says cannot be read, or as [`read_out`].
pub(crate) async fn embed(call: &Call, field: &'static str) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let _place = call.tenant.enter()?;
    let (text, input) = (call.model.service.text().clone(), call.given.get(field).cloned().unwrap_or_default());
    let encode = move || {
        read_input(&input, field, |part| {
            let between = EncodeOptions { add_special: false, ..EncodeOptions::EMBEDDED };
            let options = if part.is_whole { EncodeOptions::EMBEDDED } else { between };
            Ok(text.tokenizer().encode(part.text, options)?)
        })
    };
    let inputs = offload(encode).await?;
    let n_tokens = inputs.iter().map(Vec::len).sum();
    let mut embeddings = Vec::new();
    // One after the other: what others asked for is computed in between.
    for tokens in inputs {
        embeddings.push(read_out(call, tokens, Readout::Embedding(pooling(call))).await?);
    }
    Ok((embeddings, n_tokens))
}

/// Returns the way of pooling that a request asks for.
pub(crate) fn pooling(call: &Call) -> Option<Pooling> {
    call.given.text("pooling").map(|name| match name {
        "none" => Pooling::None,
        "cls" => Pooling::Cls,
        "last" => Pooling::Last,
        _ => Pooling::Mean,
    })
}

/// Has the engine read something out of a text.
///
/// # Errors
/// As [`check_fits`], or what the engine says.
pub(crate) async fn read_out(call: &Call, tokens: Vec<u32>, readout: Readout) -> Result<Vec<f32>, ApiError> {
    check_fits(call, tokens.len(), 0).map_err(|error| {
        let message = format!("the input is too large to process: {}", error.message);
        ApiError { message, ..error }
    })?;
    let (sender, receiver) = oneshot::channel();
    // One that nobody waits for any more is computed for nobody.
    let sink = Box::new(move |result| drop(sender.send(result)));
    let ticket = call.model.service.read_out(call.tenant.id, tokens, readout, call.adapters.clone(), sink);
    let _ticket = ticket.map_err(|error| with_retry(call, error.into()))?;
    let ended = |_| {
        let line = "the engine has ended by an internal error; the server's log tells more";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line)
    };
    Ok(receiver.await.map_err(ended)??)
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
