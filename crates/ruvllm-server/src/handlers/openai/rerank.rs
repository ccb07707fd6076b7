//! `/v1/rerank`, as Jina, Cohere and text-embeddings-inference have it: documents in the order in which they fit a query.
//!
//! A cross-encoder reads query and document together and scores them; the score is its logit brought between 0 and 1. With
//! any other model the score is the cosine of their embeddings.

use axum::http::StatusCode;
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required, unheeded};
use ruvllm_api::generation::{MODEL, POOLING, USER};
use ruvllm_api::openai::embeddings::pooling;
use ruvllm_engine::Readout;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_server_state::gate::offload;
use serde_json::{Value, json};

use crate::call::embed::read_out;
use crate::call::response::json_response;
use crate::call::{Call, HandlerFuture};

/// A document: its text, or an object with it.
const DOCUMENT: Kind = Kind::Either(&[Kind::Text, Kind::Object(&[required("text", Kind::Text, "the text")])]);

/// What a request may say.
pub(super) const FIELDS: &[Field] = &[
    required("query", Kind::Text, "what is sought"),
    optional("documents", Kind::List(&DOCUMENT, 1, 1000), "the texts to be put in order"),
    optional(
        "texts",
        Kind::List(&Kind::Text, 1, 1000),
        "the same in the API of text-embeddings-inference, whose answer is a list of index and score",
    ),
    optional("raw_scores", Kind::Bool, "tell the logits of a cross-encoder, not brought between 0 and 1"),
    optional("return_text", Kind::Bool, "tell each text as well, where 'texts' are given"),
    unheeded("truncate", Kind::Bool, "texts that are too long are refused"),
    MODEL,
    optional("top_n", Kind::Int(1, 1000), "tell only so many of them, the best"),
    optional("return_documents", Kind::Bool, "tell each document's text as well"),
    POOLING,
    ADAPTER,
    ADAPTERS,
    USER,
];

/// Puts documents in order.
pub(super) fn answer(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let _slot = call.tenant.enter()?;
        let query = call.body.text("query").unwrap_or_default().to_owned();
        let documents = documents(&call)?;
        let (scores, n_tokens) = match call.model.service()?.info().is_ranker {
            true => score_pairs(&call, query, &documents).await?,
            false => score_by_cosine(&call, query, &documents).await?,
        };
        let mut order: Vec<usize> = (0..documents.len()).collect();
        // The better first; among equals the order in which they came.
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        order.truncate(call.body.count("top_n").unwrap_or(usize::MAX));
        if call.body.get("texts").is_some() {
            return Ok(json_response(StatusCode::OK, &json!(in_short(&call, &documents, &scores, &order))));
        }
        let result = |i: usize| {
            let mut result = json!({ "index": i, "relevance_score": scores[i] });
            if call.body.is_set("return_documents") {
                result["document"] = json!({ "text": documents[i] });
            }
            result
        };
        Ok(json_response(
            StatusCode::OK,
            &json!({
                "id": format!("rerank-{}", call.id),
                "object": "list",
                "model": &*call.model_name,
                "results": order.into_iter().map(result).collect::<Vec<_>>(),
                "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
            }),
        ))
    })
}

/// Reads the documents, by either of their names.
fn documents(call: &Call) -> Result<Vec<String>, ApiError> {
    let (documents, texts) = (call.body.list("documents"), call.body.list("texts"));
    match (documents, texts) {
        (Some(_), Some(_)) => {
            let line = "'documents' and 'texts' are the same in two APIs; send one of them";
            Err(ApiError::bad("texts", line).code("invalid_value"))
        }
        (None, None) => {
            let line = "'documents' is missing: the texts to be put in order";
            Err(ApiError::bad("documents", line).code("missing_field"))
        }
        (Some(all), None) | (None, Some(all)) => Ok(all.iter().map(|document| text_of(document).to_owned()).collect()),
    }
}

/// Returns an answer of text-embeddings-inference.
fn in_short(call: &Call, documents: &[String], scores: &[f32], order: &[usize]) -> Vec<Value> {
    let result = |&i: &usize| {
        let mut result = json!({ "index": i, "score": scores[i] });
        if call.body.is_set("return_text") {
            result["text"] = json!(documents[i]);
        }
        result
    };
    order.iter().map(result).collect()
}

fn text_of(document: &Value) -> &str {
    document.as_str().or_else(|| document["text"].as_str()).unwrap_or_default()
}

/// Scores each document together with the query; also tells how many tokens were read.
async fn score_pairs(call: &Call, query: String, documents: &[String]) -> Result<(Vec<f32>, usize), ApiError> {
    let (text, documents) = (call.text()?.clone(), documents.to_vec());
    let encode = move || -> Result<Vec<(Vec<u32>, usize)>, ApiError> {
        documents.iter().map(|document| Ok(text.encode_pair(&query, document)?)).collect()
    };
    let (mut scores, mut n_tokens) = (Vec::new(), 0);
    for (tokens, n_first) in offload(encode).await? {
        n_tokens += tokens.len();
        let logit = read_out(call, tokens, Readout::Score { n_first }).await?;
        let logit = logit.first().copied().unwrap_or(0.0);
        scores.push(if call.body.is_set("raw_scores") { logit } else { 1.0 / (1.0 + (-logit).exp()) });
    }
    Ok((scores, n_tokens))
}

/// Scores each document by the cosine of its embedding with the query's.
async fn score_by_cosine(call: &Call, query: String, documents: &[String]) -> Result<(Vec<f32>, usize), ApiError> {
    let text = call.text()?.clone();
    let texts: Vec<String> = std::iter::once(query).chain(documents.iter().cloned()).collect();
    let encode = move || -> Result<Vec<Vec<u32>>, ApiError> {
        let options = EncodeOptions { add_special: true, parse_special: false };
        texts.iter().map(|text_of| Ok(text.tokenizer().encode(text_of, options)?)).collect()
    };
    let (mut vectors, mut n_tokens) = (Vec::new(), 0);
    for tokens in offload(encode).await? {
        n_tokens += tokens.len();
        vectors.push(read_out(call, tokens, Readout::Embedding(pooling(&call.body))).await?);
    }
    let cosine = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>().clamp(-1.0, 1.0);
    Ok((vectors[1..].iter().map(|vector| cosine(&vectors[0], vector)).collect(), n_tokens))
}
