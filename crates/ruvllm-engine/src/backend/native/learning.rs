//! What learning asks of the native backend: the head and the last block as they are stored, and logits of states that no pass
//! came to.

use std::sync::Arc;

use ruvllm_lora::micro::Block;

use super::NativeBackend;
use crate::adapters::HeadWeights;
use crate::kernels::Compute;
use crate::model::{ForwardState, LastBlock, Model};
use crate::{EngineError, ErrorKind};

impl NativeBackend {
    /// Returns the rows of the output head.
    ///
    /// # Errors
    /// The model has none, or bends its logits (Gemma 2), so that they are no gradient.
    pub fn head_weights(&self) -> Result<HeadWeights, EngineError> {
        if self.model.output.softcap.is_some() || self.model.output.head.is_none() {
            let line = format!(
                "a MicroLoRA cannot learn with architecture {}: its logits are bent or missing",
                self.info.arch
            );
            return Err(EngineError::new(ErrorKind::Unsupported, line));
        }
        HeadWeights::new(self.compute.kernels.dequant, &self.file, self.model.output.scale)
    }

    /// Returns the model's last block, for a MicroLoRA to sit inside; none where it has a form that nothing can sit inside of.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn last_block(&self) -> Result<Option<Arc<dyn Block>>, EngineError> {
        let loader = self.adapter_loader();
        let block = LastBlock::of(&self.model, &self.compute, |id| loader.weights_of(id))?;
        Ok(block.map(|block| Arc::new(block) as Arc<dyn Block>))
    }

    /// Returns what it computes with, for what learns between passes.
    pub fn learning_compute(&self) -> ruvllm_sona::Compute {
        ruvllm_sona::Compute { isa: self.compute.isa, team: Arc::clone(&self.compute.team) }
    }

    /// Multiplies final hidden states with the output head alone: `[n, n_embd]` gives `[n, n_vocab]`, bit for bit as a pass
    /// would have that came to them.
    pub(crate) fn logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) {
        self.for_passes(hidden, logits, ForwardState::logits_of);
    }

    /// Does the same with the head's high bits alone, of which its screen is made where it is not there yet: what
    /// [`States::rough`](super::super::States::rough) has. Returns whether the head is of a kind that has one.
    pub(crate) fn rough_logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> bool {
        let has_screen = self.make_screen();
        if has_screen {
            self.for_passes(hidden, logits, ForwardState::rough_logits_of);
        }
        has_screen
    }

    /// Has `f` compute the logits of so many final hidden states at once as a pass has rows at most.
    fn for_passes(
        &mut self,
        hidden: &[f32],
        logits: &mut Vec<f32>,
        f: impl Fn(&mut ForwardState, &Model, &Compute, &[f32], &mut [f32]),
    ) {
        let (n_embd, n_vocab) = (self.model.hparams.n_embd, self.model.n_vocab);
        logits.resize(hidden.len() / n_embd * n_vocab, 0.0);
        let n_rows = self.state.n_rows_max();
        for (hidden, logits) in hidden.chunks(n_rows * n_embd).zip(logits.chunks_mut(n_rows * n_vocab)) {
            f(&mut self.state, &self.model, &self.compute, hidden, logits);
        }
    }

    /// Makes the head's screen, if it is not there yet and can be made; returns whether it is there.
    pub(super) fn make_screen(&mut self) -> bool {
        if self.state.screen.make(&self.model, &self.compute) {
            self.model.link(self.info.n_threads, self.state.screen.get());
        }
        self.state.screen.made().is_some()
    }
}
