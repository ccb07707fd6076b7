//! Embeddings, as the engine reads them out.

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::input::read_input;
use ruvllm_api::openai::embeddings::pooling;
use ruvllm_api::remote;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{AdapterSet, Readout};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::models::ServedModel;
use tokio::sync::oneshot;

use super::Call;
use super::generate::{check_fits, with_retry};
use super::prompt::texts;

/// Embeds the texts of a field, those of each token one after the other where none are pooled; also returns how many tokens they have, as far as that is
/// known.
///
/// # Errors
/// What the field says cannot be read, or as [`read_out`].
pub(crate) async fn embed(call: &Call, field: &'static str) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let _slot = call.tenant.enter()?;
    if let Some(remote) = call.model.remote() {
        remote::check(&call.body, &call.model_name)?;
        // The other side does not count the tokens of texts.
        return Ok((remote.embed(call.tenant.id, texts(call, field)?, call.deadline).await?, 0));
    }
    let (text, input) = (call.text()?.clone(), call.body.get(field).cloned().unwrap_or_default());
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
        embeddings.push(read_out(call, tokens, Readout::Embedding(pooling(&call.body))).await?);
    }
    Ok((embeddings, n_tokens))
}

/// Has the engine read something out of a text.
///
/// # Errors
/// As [`check_fits`], or what the engine says.
pub(crate) async fn read_out(call: &Call, tokens: Vec<u32>, readout: Readout) -> Result<Vec<f32>, ApiError> {
    let reading = Reading { model: &call.model, tenant: call.tenant.id, adapters: call.adapters.clone() };
    reading.read_out(tokens, readout).await
}

/// A model, and whose requests have it read something out, with adapters.
pub(crate) struct Reading<'a> {
    pub model: &'a ServedModel,
    pub tenant: u64,
    pub adapters: AdapterSet,
}

impl Reading<'_> {
    /// Has the engine read something out of a text.
    ///
    /// # Errors
    /// As [`check_fits`], or what the engine says.
    pub(crate) async fn read_out(self, tokens: Vec<u32>, readout: Readout) -> Result<Vec<f32>, ApiError> {
        let Reading { model, tenant, adapters } = self;
        check_fits(model, tokens.len(), 0).map_err(|error| {
            let message = format!("the input is too large to process: {}", error.message);
            ApiError { message, ..error }
        })?;
        let (sender, receiver) = oneshot::channel();
        // One that nobody waits for any more is computed for nobody.
        let sink = Box::new(move |result| drop(sender.send(result)));
        let ticket = model.service()?.read_out(tenant, tokens, readout, adapters, sink);
        let _ticket = ticket.map_err(|error| with_retry(model, error.into()))?;
        let ended = |_| {
            let line = "the engine has ended by an internal error; the server's log tells more";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line)
        };
        Ok(receiver.await.map_err(ended)??)
    }
}
