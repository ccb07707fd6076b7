//! Final hidden states: the head and the last block as they are stored, and logits of states that no pass came to.

use std::sync::Arc;

use ruvllm_backend::{BackendError, BackendErrorKind, HiddenStates, SeqId};
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::Isa;
use ruvllm_lora::loader::HeadWeights;
use ruvllm_lora::micro::{FinalBlock, MicroLora};

use super::NativeBackend;
use crate::kernels::Compute;
use crate::model::{ForwardState, LastBlock, Model, has_last_block};

impl HiddenStates for NativeBackend {
    fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) -> Result<(), BackendError> {
        let n_embd = self.model.spec.n_embd;
        if let Some(other) = micro.as_ref().map(|micro| micro.n_embd()).filter(|&other| other != n_embd) {
            let line = format!("the MicroLoRA is for states of {other} values; this model's have {n_embd}");
            return Err(BackendError::new(BackendErrorKind::Adapter, line));
        }
        if micro.as_ref().is_some_and(|micro| micro.is_inside()) && !has_last_block(&self.model) {
            let line =
                format!("the MicroLoRA sits inside a block, and architecture {} has none for it", self.info.arch);
            return Err(BackendError::new(BackendErrorKind::Adapter, line));
        }
        self.kv.set_micro(seq, micro);
        Ok(())
    }

    fn logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), BackendError> {
        self.for_passes(hidden, logits, ForwardState::logits_of);
        self.check_files()
    }

    fn approx_logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), BackendError> {
        if !self.make_shortlist() {
            return Err(BackendError::unsupported("the model's head has no shortlist, so no approximate logits"));
        }
        self.for_passes(hidden, logits, ForwardState::approx_logits_of);
        self.check_files()
    }

    fn has_shortlist(&self, n_best: usize) -> bool {
        self.state.shortlist.saves(n_best)
    }

    fn prepare_shortlist(&mut self, direction: &[f32]) {
        self.state.shortlist.tell(direction);
        if self.state.shortlist.is_wanted() {
            self.make_shortlist();
        }
    }

    fn head_weights(&self) -> Result<HeadWeights, BackendError> {
        if self.model.output.softcap.is_some() || self.model.output.head.is_none() {
            let arch = &self.info.arch;
            let line = format!("a MicroLoRA cannot learn with architecture {arch}: its logits are bent or missing");
            return Err(BackendError::unsupported(line));
        }
        Ok(HeadWeights::new(self.compute.kernels.dequant, &self.file, self.model.output.scale)?)
    }

    fn last_block(&self) -> Result<Option<Arc<dyn FinalBlock>>, BackendError> {
        let loader = self.adapter_loader();
        let block = LastBlock::of(&self.model, &self.compute, |id| loader.weights_of(id).map_err(BackendError::from))?;
        Ok(block.map(|block| Arc::new(block) as Arc<dyn FinalBlock>))
    }

    fn compute(&self) -> (Isa, Arc<ThreadPool>) {
        (self.compute.isa, Arc::clone(&self.compute.threads))
    }
}

impl NativeBackend {
    /// Has `f` compute the logits of so many final hidden states at once as a pass has rows at most.
    fn for_passes(
        &mut self,
        hidden: &[f32],
        logits: &mut Vec<f32>,
        f: impl Fn(&mut ForwardState, &Model, &Compute, &[f32], &mut [f32]),
    ) {
        let (n_embd, n_vocab) = (self.model.spec.n_embd, self.model.spec.n_vocab);
        logits.resize(hidden.len() / n_embd * n_vocab, 0.0);
        let n_rows = self.state.n_rows_max();
        for (hidden, logits) in hidden.chunks(n_rows * n_embd).zip(logits.chunks_mut(n_rows * n_vocab)) {
            f(&mut self.state, &self.model, &self.compute, hidden, logits);
        }
    }

    /// Makes the head's shortlist, if it is not there yet and can be made; returns whether it is there.
    pub(super) fn make_shortlist(&mut self) -> bool {
        if self.state.shortlist.make(&self.model, &self.compute) {
            self.model.link(self.info.device.n_threads, self.state.shortlist.get());
        }
        self.state.shortlist.made().is_some()
    }
}
