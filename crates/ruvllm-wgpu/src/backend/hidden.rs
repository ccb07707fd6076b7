//! Final hidden states: what changes them on their way to the head, and logits of states that no pass came to.

use std::sync::Arc;

use ruvllm_backend::{BackendError, BackendErrorKind, HiddenStates, SeqId, StateRows};
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::{Isa, dequant};
use ruvllm_lora::loader::HeadWeights;
use ruvllm_lora::micro::{FinalBlock, MicroLora};

use super::{Piece, WgpuBackend, extend};
use crate::device_model::Readout;

impl WgpuBackend {
    /// Runs the pass at hand in two steps: the states of the rows that want them, then the logits of those that want logits,
    /// changed where their sequence has something that does.
    pub(super) fn run_changed(&mut self, pieces: &[Piece<'_>]) -> Result<(), BackendError> {
        let (n_embd, mut states) = (self.spec.n_embd, Vec::new());
        self.model.run(&mut self.pass, Readout::States, &mut |words| extend(&mut states, &words[0]))?;
        // Rows of the pass whose logits are wanted: the last ones of each piece.
        let (mut changed, mut rows_of, mut first) = (Vec::new(), Vec::new(), 0);
        for Piece { seq, tokens, wanted } in pieces {
            let (n_states, n) = (wanted.n_states(tokens.len()), wanted.count(tokens.len()));
            let rows = &states[(first + n_states - n) * n_embd..(first + n_states) * n_embd];
            rows_of.extend_from_slice(&self.pass.wanted[first + n_states - n..first + n_states]);
            let start = changed.len();
            changed.extend_from_slice(rows);
            if let Some(micro) = self.kv.get(*seq).and_then(|open| open.micro.as_deref()).filter(|_| n > 0) {
                micro.forward(StateRows { hidden: rows, stream: &[] }, &mut changed[start..]);
            }
            first += n_states;
        }
        self.hidden.append(&mut states);
        let logits = &mut self.logits;
        self.model.head_of(&changed, Some((&self.pass, &rows_of)), &mut |words| extend(logits, &words[0]))
    }
}

impl HiddenStates for WgpuBackend {
    fn set_micro(&mut self, seq: SeqId, micro: Option<Arc<MicroLora>>) -> Result<(), BackendError> {
        let n_embd = self.spec.n_embd;
        let refuse = |line: String| Err(BackendError::new(BackendErrorKind::Adapter, line));
        if self.kv.get(seq).is_none() {
            return Err(BackendError::not_open(seq));
        }
        if let Some(other) = micro.as_ref().map(|micro| micro.n_embd()).filter(|&other| other != n_embd) {
            return refuse(format!("the MicroLoRA is for states of {other} values; this model's have {n_embd}"));
        }
        if micro.as_ref().is_some_and(|micro| micro.is_inside()) {
            return refuse("the MicroLoRA sits inside a block, and backend gpu has none for it; use native".to_owned());
        }
        self.kv.set_micro(seq, micro);
        Ok(())
    }

    fn logits_of(&mut self, hidden: &[f32], logits: &mut Vec<f32>) -> Result<(), BackendError> {
        logits.clear();
        self.model.head_of(hidden, None, &mut |words| extend(logits, &words[0]))?;
        self.finish_logits(logits);
        Ok(())
    }

    fn approx_logits_of(&mut self, _: &[f32], _: &mut Vec<f32>) -> Result<(), BackendError> {
        Err(BackendError::unsupported("backend gpu has no shortlist of the head, so no approximate logits"))
    }

    fn has_shortlist(&self, _: usize) -> bool {
        false
    }

    fn prepare_shortlist(&mut self, _: &[f32]) {}

    fn head_weights(&self) -> Result<HeadWeights, BackendError> {
        if self.spec.output.softcap.is_some() || !self.model.has_head() {
            let arch = &self.info.arch;
            let line = format!("a MicroLoRA cannot learn with architecture {arch}: its logits are bent or missing");
            return Err(BackendError::unsupported(line));
        }
        Ok(HeadWeights::new(dequant::pick(Isa::best()), &self.file, self.spec.output.scale)?)
    }

    fn last_block(&self) -> Result<Option<Arc<dyn FinalBlock>>, BackendError> {
        Ok(None)
    }

    fn compute(&self) -> (Isa, Arc<ThreadPool>) {
        let n_threads = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.get_or_init(|| Arc::new(ThreadPool::new(n_threads())));
        (Isa::best(), Arc::clone(threads))
    }
}
