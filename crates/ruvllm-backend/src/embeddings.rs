//! Vectors and scores of texts.

use ruvllm_lora::AdapterSet;

use crate::{BackendError, Pooling};

/// Vectors and scores of texts.
pub trait Embeddings {
    /// Returns the vector of a text, of unit length: `[n_embd]`, pooled as the model's file says (the mean where it says
    /// nothing), or in another way; with [`Pooling::None`] those of its tokens as they are: `[n, n_embd]`.
    ///
    /// # Errors
    /// The tokens do not fit the model; the adapters are for another one.
    fn embed(
        &mut self,
        tokens: &[u32],
        pooling: Option<Pooling>,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, BackendError>;

    /// Returns how well the second text of a pair fits the first: the logit of a cross-encoder. The first `n_first` tokens
    /// are the first text's, with the separator.
    ///
    /// # Errors
    /// As [`Embeddings::embed`]; [`BackendErrorKind::Unsupported`](crate::BackendErrorKind::Unsupported) if the model is
    /// no cross-encoder.
    fn score(&mut self, tokens: &[u32], n_first: usize, adapters: &AdapterSet) -> Result<f32, BackendError>;
}
