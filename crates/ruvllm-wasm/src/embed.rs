//! `/v1/embeddings`: texts one after the other, between the steps of those that write.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_api::error::ApiError;
use ruvllm_api::fields::ValidBody;
use ruvllm_api::generation::check_fits;
use ruvllm_api::input::read_input;
use ruvllm_api::openai::embeddings;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{AdapterSet, EngineError, Readout, Service, Ticket};
use serde_json::Value;

/// Vectors that were computed, and which text each is of.
type Found = Arc<Mutex<Vec<(usize, Result<Vec<f32>, EngineError>)>>>;

/// Embeddings on their way.
pub(crate) struct Embedding {
    given: ValidBody,
    model: String,
    n_tokens: usize,
    n_texts: usize,
    found: Found,
    _tickets: Vec<Ticket>,
}

impl Embedding {
    /// Hands texts to the engine.
    ///
    /// # Errors
    /// A text does not fit the context, the queue is full, or the numbers that are asked for are not the model's.
    pub(crate) fn start(service: &Service, model: &str, given: ValidBody) -> Result<Embedding, ApiError> {
        embeddings::check_dimensions(&given, service.info().n_embd)?;
        let input = given.get("input").cloned().unwrap_or_default();
        let inputs = read_input(&input, "input", |part| {
            let between = EncodeOptions { add_special: false, ..EncodeOptions::EMBEDDED };
            let options = if part.is_whole { EncodeOptions::EMBEDDED } else { between };
            Ok(service.text().tokenizer().encode(part.text, options)?)
        })?;
        for tokens in &inputs {
            check_fits(service.info(), tokens.len(), 0).map_err(|error| {
                let message = format!("the input is too large to process: {}", error.message);
                ApiError { message, ..error }
            })?;
        }
        let readout = Readout::Embedding(embeddings::pooling(&given));
        let (n_tokens, n_texts) = (inputs.iter().map(Vec::len).sum(), inputs.len());
        let found = Found::default();
        let submit = |(i, tokens): (usize, Vec<u32>)| {
            let found = Arc::clone(&found);
            let sink = move |result| found.lock().unwrap_or_else(PoisonError::into_inner).push((i, result));
            service.read_out(0, tokens, readout, AdapterSet::default(), Box::new(sink))
        };
        let tickets = inputs.into_iter().enumerate().map(submit).collect::<Result<_, _>>()?;
        Ok(Embedding { given, model: model.to_owned(), n_tokens, n_texts, found, _tickets: tickets })
    }

    /// Returns the answer, once all of it is there.
    pub(crate) fn take(&mut self) -> Option<Result<Value, ApiError>> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if found.len() < self.n_texts && found.iter().all(|(_, result)| result.is_ok()) {
            return None;
        }
        let mut found = std::mem::take(&mut *found);
        found.sort_by_key(|(i, _)| *i);
        let vectors: Result<Vec<_>, EngineError> = found.into_iter().map(|(_, result)| result).collect();
        let answer = |vectors| embeddings::answer(&self.given, &self.model, vectors, self.n_tokens);
        Some(vectors.map(answer).map_err(ApiError::from))
    }
}
