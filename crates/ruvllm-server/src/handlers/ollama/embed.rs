//! `/api/embed` and `/api/embeddings`.

use axum::http::StatusCode;
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use ruvllm_api::generation::{MODEL, POOLING, USER};
use ruvllm_api::openai::embeddings::pooling;
use ruvllm_api::remote;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{ModelText, Readout};
use ruvllm_server_state::gate::offload;
use serde_json::json;

use crate::call::embed::read_out;
use crate::call::response::json_response;
use crate::call::{Call, HandlerFuture};
use crate::handlers::ollama::answer::{load_duration, nanoseconds};
use crate::handlers::ollama::names::of_answer;
use crate::handlers::ollama::{KEEP_ALIVE, TRUNCATE, options};

/// The texts.
pub(super) const FIELDS: &[Field] = &[
    required("input", Kind::Either(&[Kind::Text, Kind::List(&Kind::Text, 0, 2048)]), "a text, or several of them"),
    TRUNCATE,
    optional("dimensions", Kind::Int(1, 1 << 20), "keep the first so many, brought to unit length again"),
];

/// The text of the older request.
pub(super) const OLDER: &[Field] = &[optional("prompt", Kind::Text, "the text")];

/// What both may say.
pub(super) const COMMON: &[Field] = &[MODEL, options::FIELD, KEEP_ALIVE, POOLING, ADAPTER, ADAPTERS, USER];

/// Embeds texts.
pub(super) fn answer(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let mut texts = call.body.texts("input");
        if call.body.text("input") == Some("") {
            texts.clear();
        }
        let (n_tokens, embeddings) = embed(&call, texts, call.body.flag("truncate", true)).await?;
        let answer = json!({
            "model": of_answer(&call),
            "embeddings": embeddings,
            "total_duration": nanoseconds(call.asked_at.elapsed()),
            "load_duration": nanoseconds(load_duration(&call)),
            "prompt_eval_count": n_tokens,
        });
        Ok(json_response(StatusCode::OK, &answer))
    })
}

/// Embeds a text.
pub(super) fn older(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let texts = call.body.texts("prompt").into_iter().filter(|text| !text.is_empty()).collect();
        let (_, embeddings) = embed(&call, texts, true).await?;
        let embedding = embeddings.into_iter().next().unwrap_or_default();
        Ok(json_response(StatusCode::OK, &json!({ "embedding": embedding })))
    })
}

/// Returns how many tokens texts have, and their embeddings.
async fn embed(call: &Call, texts: Vec<String>, is_truncated: bool) -> Result<(usize, Vec<Vec<f32>>), ApiError> {
    if let Some(remote) = call.model.remote() {
        remote::check(&call.body, &call.model_name)?;
        let _slot = call.tenant.enter()?;
        // The other side does not count the tokens of texts.
        return Ok((0, remote.embed(call.tenant.id, texts, call.deadline).await?));
    }
    let info = call.model.service()?.info();
    let n_wanted = call.body.count("dimensions").unwrap_or(info.n_embd);
    if n_wanted > info.n_embd {
        let line = format!("'dimensions' is {n_wanted}; the model's embeddings have {}", info.n_embd);
        return Err(ApiError::bad("dimensions", line));
    }
    let _slot = call.tenant.enter()?;
    let text = call.text()?.clone();
    let n_max = if is_truncated { info.n_ctx } else { usize::MAX };
    let inputs = offload(move || texts.iter().map(|given| encode(&text, given, n_max)).collect::<Result<Vec<_>, _>>());
    let inputs = inputs.await?;
    let n_tokens = inputs.iter().map(Vec::len).sum();
    let mut embeddings = Vec::new();
    // One after the other: what others asked for is computed in between.
    for tokens in inputs {
        let embedding = read_out(call, tokens, Readout::Embedding(pooling(&call.body))).await?;
        embeddings.push(if n_wanted < embedding.len() { cut(&embedding[..n_wanted]) } else { embedding });
    }
    Ok((n_tokens, embeddings))
}

/// Returns the tokens of a text, at most so many; one that ends every text stays.
fn encode(text: &ModelText, given: &str, n_max: usize) -> Result<Vec<u32>, ApiError> {
    let tokenizer = text.tokenizer();
    let mut tokens = tokenizer.encode(given, EncodeOptions::EMBEDDED)?;
    if tokens.len() > n_max {
        let end = tokenizer.encode("", EncodeOptions::EMBEDDED)?.last().copied();
        let end = end.filter(|end| tokens.last() == Some(end));
        tokens.truncate(n_max - usize::from(end.is_some()));
        tokens.extend(end);
    }
    Ok(tokens)
}

/// Returns a part of an embedding at unit length.
fn cut(part: &[f32]) -> Vec<f32> {
    let norm = part.iter().map(|x| x * x).sum::<f32>().sqrt();
    part.iter().map(|x| if norm > 0.0 { x / norm } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_unit_length() {
        assert_eq!(cut(&[3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(cut(&[0.0, 0.0]), [0.0, 0.0]);
    }
}
