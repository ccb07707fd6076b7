//! Final hidden states, for what learns from them and changes them.

use std::sync::Arc;

use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::Isa;
use ruvllm_lora::loader::HeadWeights;
use ruvllm_lora::micro::{FinalBlock, MicroLora};

use crate::{BackendError, SeqId};

/// Access to final hidden states. A backend that has it fills [`States::rows`](crate::States::rows) in every pass.
pub trait HiddenStates {
    /// Changes the final hidden states of a sequence and of its forks from the next pass on. Its KV blocks stay what they
    /// are. `None` ends the change.
    ///
    /// # Errors
    /// [`BackendErrorKind::Adapter`](crate::BackendErrorKind::Adapter): it is for another model.
    fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) -> Result<(), BackendError>;

    /// Multiplies final hidden states with the output head: `[n, n_embd]` gives `[n, n_vocab]`, bit for bit as a pass
    /// that came to them.
    ///
    /// # Errors
    /// The model's files changed while they were in use.
    fn logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Multiplies final hidden states with the approximate head, as [`States::approx`](crate::States::approx).
    ///
    /// # Errors
    /// [`BackendErrorKind::Unsupported`](crate::BackendErrorKind::Unsupported): there is none.
    fn approx_logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), BackendError>;

    /// Returns whether the `n_best` largest logits of few rows come without reading all of the head, with approximate ones
    /// of all tokens.
    fn has_shortlist(&self, n_best: usize) -> bool;

    /// Makes the approximate head for states that point in a `direction`, `[n_embd]`, if passes are to use it.
    fn prepare_shortlist(&mut self, direction: &[f32]);

    /// Returns the rows of the output head.
    ///
    /// # Errors
    /// The model has none, or its logits are soft-capped, so that its rows are no gradients.
    fn head_weights(&self) -> Result<HeadWeights, BackendError>;

    /// Returns the model's last block, for a [`MicroLora`] to sit inside; `None` where its form allows none.
    ///
    /// # Errors
    /// The file cannot be read any more.
    fn last_block(&self) -> Result<Option<Arc<dyn FinalBlock>>, BackendError>;

    /// Returns the instruction set and the threads of the passes, for work between them.
    fn compute(&self) -> (Isa, Arc<ThreadPool>);
}
