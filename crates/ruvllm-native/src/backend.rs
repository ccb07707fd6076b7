//! The native backend: packed weights, paged KV cache, SIMD kernels on the CPU.

mod hidden;
mod hooks;
mod paged;
mod pass;

use std::sync::Arc;

use ruvllm_backend::{
    BackendError, BackendErrorKind, CacheSalt, Embeddings, ForwardHooks, HiddenStates, LogitRows, ModelInfo, ModelSpec,
    PagedKv, Pooling, Segment, SeqId, StateRows, States, TokenModel, pooling,
};
use ruvllm_gguf::GgufFile;
use ruvllm_kernels::attention;
use ruvllm_kvcache::{KvPolicy, Quantizer};
use ruvllm_lora::loader::AdapterLoader;
use ruvllm_lora::micro::MicroLora;
use ruvllm_lora::{AdaptedRows, AdapterSet, Targets};

use crate::kernels::Compute;
use crate::kv::KvStore;
use crate::model::{ForwardState, Model, RowCounts, Rows};
use crate::packed::Saver;
use pass::{Gating, Place};

/// The most tokens that are taken back at once.
const REWIND_TOKENS_MAX: usize = 32;

/// A model on this machine's CPU.
pub struct NativeBackend {
    compute: Compute,
    model: Model,
    state: ForwardState,
    kv: KvStore,
    info: ModelInfo,
    file: Arc<GgufFile>,
    /// Batch lists, reused: what of which segment goes into the pass at hand.
    rows: Vec<Rows>,
    wanted: Vec<LogitRows>,
    tokens: Vec<u32>,
    /// Kept for their allocation: the attention kernel's view of the batch, and of its rows that want logits.
    views: Vec<attention::Segment<'static>>,
    tails: Vec<attention::Segment<'static>>,
    adapted: AdaptedRows,
    gating: Gating,
    micros: Vec<Option<Arc<MicroLora>>>,
    targets: Arc<Targets>,
    /// Keeps the repacked weights for the next process.
    saver: Saver,
}

/// Loaded parts that make a backend.
pub(crate) struct BackendParts {
    pub compute: Compute,
    pub model: Model,
    pub state: ForwardState,
    pub kv: KvStore,
    pub info: ModelInfo,
    pub file: Arc<GgufFile>,
    pub targets: Targets,
    pub saver: Saver,
}

impl NativeBackend {
    pub(crate) fn assemble(parts: BackendParts) -> Result<NativeBackend, BackendError> {
        let BackendParts { compute, model, state, kv, info, file, targets, saver } = parts;
        let (n_rows, n_seq_max) = (state.n_rows_max(), state.states.len());
        let mut backend = NativeBackend {
            compute,
            model,
            state,
            kv,
            info,
            file,
            rows: Vec::with_capacity(n_seq_max),
            wanted: Vec::with_capacity(n_seq_max),
            tokens: Vec::with_capacity(n_rows),
            views: Vec::with_capacity(n_seq_max),
            tails: Vec::with_capacity(n_seq_max),
            adapted: AdaptedRows::new(n_rows, n_seq_max),
            gating: Gating::default(),
            micros: Vec::with_capacity(n_seq_max),
            targets: Arc::new(targets),
            saver,
        };
        backend.info.n_rewind_max = if backend.can_rewind() { REWIND_TOKENS_MAX } else { 0 };
        Ok(backend)
    }

    pub(crate) fn compute(&self) -> &Compute {
        &self.compute
    }

    pub(crate) fn set_load_ms(&mut self, load_ms: f64) {
        self.info.load_ms = load_ms;
    }

    /// Opens an empty sequence with adapters, outside the prefix cache.
    ///
    /// # Errors
    /// As [`TokenModel::open`].
    fn open_adapted(&mut self, adapters: &AdapterSet) -> Result<SeqId, BackendError> {
        Ok(self.open(None, &adapters.into())?.0)
    }

    /// Returns the model's file.
    pub fn file(&self) -> &Arc<GgufFile> {
        &self.file
    }

    /// Returns whether sequences can go back by a few tokens: recurrent state cannot, and blocks that age at once cannot be
    /// written to again.
    fn can_rewind(&self) -> bool {
        let ages_at_once = matches!(self.kv.policy, KvPolicy::Tiered { hot, .. } if hot < REWIND_TOKENS_MAX);
        self.model.state_len == 0 && !ages_at_once
    }

    /// Returns what reads adapters for this model, on any thread.
    pub fn adapter_loader(&self) -> AdapterLoader {
        AdapterLoader::new(Arc::clone(&self.targets), Arc::clone(&self.file), self.compute.kernels.dequant)
    }

    /// Returns whether all that was read of the model's files so far was there.
    ///
    /// # Errors
    /// A file was cut short while it was in use: what was computed of it is worth nothing.
    fn check_files(&self) -> Result<(), BackendError> {
        self.file.check()?;
        match self.saver.is_cut() {
            false => Ok(()),
            true => {
                let line = "the repacked weights in the cache folder were cut short while they were in use; load the model again";
                Err(BackendError::new(BackendErrorKind::Model, line))
            }
        }
    }

    fn check_adapters(&self, adapters: &AdapterSet) -> Result<(), BackendError> {
        if !adapters.fits(&self.targets) {
            return Err(BackendError::new(BackendErrorKind::Adapter, "the adapters were loaded for another model"));
        }
        let n_embd = self.model.spec.n_embd;
        match adapters.gate().map(|gate| gate.shape().n_embd).filter(|&other| other != n_embd) {
            None => Ok(()),
            Some(other) => {
                let line = format!("the gate is for embeddings of {other} values; this model's have {n_embd}");
                Err(BackendError::new(BackendErrorKind::Adapter, line))
            }
        }
    }
}

impl TokenModel for NativeBackend {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, prompt: Option<&[u32]>, salt: &CacheSalt) -> Result<(SeqId, usize), BackendError> {
        self.check_adapters(&salt.adapters)?;
        // Outside the prefix cache blocks may stay as they are written, whatever the policy of the others.
        let is_exact = prompt.is_none() && salt.kv == Some(KvPolicy::F16);
        if let Some(kv) = salt.kv.filter(|kv| !is_exact && self.kv.policies().all(|known| known != *kv)) {
            let known: Vec<String> = self.kv.policies().map(|policy| policy.to_string()).collect();
            let line = format!("keys and values as {kv} were not loaded for; there is {}", known.join(", "));
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        let seq = match prompt {
            Some(tokens) => self.kv.add_known(tokens, salt)?,
            None => self.kv.add(salt)?,
        };
        self.state.states[seq.0].fill(0.0);
        Ok((seq, self.n_tokens(seq)))
    }

    fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, BackendError> {
        let n = self.n_tokens(seq);
        if self.kv.get(seq).is_none() || len > n {
            let line = format!("sequence {} cannot be forked at {len}; it is closed or holds {n} tokens", seq.0);
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        if self.model.state_len > 0 && len < n {
            let line = format!("a sequence with recurrent state forks at its end only ({n} tokens), not at {len}");
            return Err(BackendError::new(BackendErrorKind::Unsupported, line));
        }
        let child = self.kv.fork(seq, len)?;
        let state = std::mem::take(&mut self.state.states[seq.0]);
        self.state.states[child.0].copy_from_slice(&state);
        self.state.states[seq.0] = state;
        Ok(child)
    }

    fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), BackendError> {
        let n = self.n_tokens(seq);
        let fits = self.kv.get(seq).is_some() && len <= n && n - len <= REWIND_TOKENS_MAX;
        if len < n && !(fits && self.can_rewind()) || len > n {
            let line =
                format!("sequence {} cannot be rewound to {len}; it is closed, or holds {n} tokens that stay", seq.0);
            return Err(BackendError::new(BackendErrorKind::Unsupported, line));
        }
        if len < n {
            self.kv.truncate(seq, len);
        }
        Ok(())
    }

    fn close(&mut self, seq: SeqId) {
        if self.check_files().is_err() {
            // Nobody is to find what was computed of zeros.
            self.kv.stay_out(seq);
        }
        self.kv.remove(quantizer(&self.compute), seq);
    }

    fn n_tokens(&self, seq: SeqId) -> usize {
        self.kv.get(seq).map_or(0, |open| open.sequence.len())
    }

    fn n_free(&self) -> usize {
        self.kv.n_free()
    }

    fn forward(&mut self, segments: &[Segment<'_>]) -> Result<States<'_>, BackendError> {
        self.check(segments)?;
        let wants_logits = segments.iter().any(|segment| segment.logits.count(segment.tokens.len()) > 0);
        if self.model.output.head.is_none() && (wants_logits || self.model.spec.is_encoder) {
            let line = format!("architecture {} makes embeddings, not tokens", self.info.arch);
            return Err(BackendError::new(BackendErrorKind::Unsupported, line));
        }
        // What aged in the last step is due now: nobody waits for logits that are there already.
        let n_rows = segments.iter().map(|segment| segment.tokens.len()).sum::<usize>().min(self.state.n_rows_max());
        self.kv.age(quantizer(&self.compute), segments.iter().map(|segment| segment.seq), n_rows);
        let wanted = segments.iter().map(|segment| (segment.seq, segment.tokens.len()));
        self.kv.reserve(quantizer(&self.compute), wanted)?;
        let (mut next, mut known) = (Place::default(), RowCounts::default());
        // Of all rows with logits, in whichever of the passes: nobody has to know which those are.
        let wants_approx = segments.iter().any(|segment| matches!(segment.logits, LogitRows::Approx { .. }));
        self.state.has_approx = wants_approx && self.state.shortlist.get().is_some();
        while next.segment < segments.len() {
            self.fill_batch(segments, &mut next);
            let counts = self.run_batch(known, false);
            known =
                RowCounts { n_logits: known.n_logits + counts.n_logits, n_states: known.n_states + counts.n_states };
            if self.state.shortlist.is_due() {
                self.make_shortlist();
            }
            if next.segment < segments.len() {
                let seqs = self.rows.iter().map(|rows| SeqId(rows.state_idx));
                self.kv.age(quantizer(&self.compute), seqs, self.tokens.len());
            }
        }
        self.check_files()?;
        Ok(States {
            logits: &mut self.state.logits[..known.n_logits * self.model.spec.n_vocab],
            approx: match self.state.has_approx {
                true => &self.state.approx[..known.n_logits * self.model.spec.n_vocab],
                false => &[],
            },
            rows: StateRows {
                hidden: &self.state.hidden[..known.n_states * self.model.spec.n_embd],
                stream: self.state.stream.get(..known.n_states * self.model.spec.n_embd).unwrap_or_default(),
            },
        })
    }

    fn idle(&mut self) -> bool {
        self.saver.start();
        self.kv.idle()
    }

    fn paged_kv(&self) -> Option<&dyn PagedKv> {
        Some(self)
    }

    fn paged_kv_mut(&mut self) -> Option<&mut dyn PagedKv> {
        Some(self)
    }

    fn hidden_states(&self) -> Option<&dyn HiddenStates> {
        Some(self)
    }

    fn hidden_states_mut(&mut self) -> Option<&mut dyn HiddenStates> {
        Some(self)
    }

    fn embeddings(&mut self) -> Option<&mut dyn Embeddings> {
        Some(self)
    }

    fn forward_hooks(&mut self) -> Option<&mut dyn ForwardHooks> {
        Some(self)
    }

    fn adapters(&self) -> Option<AdapterLoader> {
        Some(self.adapter_loader())
    }

    fn model_spec(&self) -> Option<&ModelSpec> {
        Some(&self.model.spec)
    }
}

impl Embeddings for NativeBackend {
    fn embed(
        &mut self,
        tokens: &[u32],
        pooling: Option<Pooling>,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, BackendError> {
        let pooling = pooling.unwrap_or(self.model.spec.pooling);
        let vector = self.pooled(tokens, pooling, adapters)?;
        Ok(if pooling == Pooling::None { vector } else { pooling::unit(vector) })
    }

    fn score(&mut self, tokens: &[u32], n_first: usize, adapters: &AdapterSet) -> Result<f32, BackendError> {
        if self.model.ranker.is_none() {
            let line = format!("model '{}' scores no pairs of texts; use a cross-encoder", self.info.name);
            return Err(BackendError::unsupported(line));
        }
        self.state.second_from = n_first;
        let vector = self.pooled(tokens, Pooling::Cls, adapters);
        self.state.second_from = usize::MAX;
        let vector = vector?;
        Ok(self.model.ranker.as_ref().map_or(0.0, |ranker| ranker.score(&vector)))
    }
}

/// Returns the kernels that quantise blocks, with the threads of the passes.
fn quantizer(compute: &Compute) -> Quantizer<'_> {
    Quantizer { table: compute.kernels.attention, threads: &compute.threads }
}

#[cfg(test)]
mod conformance;
#[cfg(test)]
mod numerics;
#[cfg(test)]
mod tests;
