//! The first layers of a model, where another backend computes them: the residual stream behind them crosses over with each pass.

use ruvllm_backend::{BackendError, BackendErrorKind, CacheSalt, LogitRows, Segment, SeqId, TokenModel};

use super::{Piece, WgpuBackend};
use crate::device_model::DeviceSizes;

/// Backend of the first layers, and its sequences by those of the device.
pub(crate) struct ComputedFirst {
    model: Box<dyn TokenModel>,
    seqs: Vec<Option<SeqId>>,
}

impl ComputedFirst {
    /// Takes a backend that was loaded for so many layers.
    ///
    /// # Errors
    /// It has others, or less room.
    pub(crate) fn new(
        model: Box<dyn TokenModel>,
        n_layers: usize,
        sizes: DeviceSizes,
    ) -> Result<ComputedFirst, BackendError> {
        let info = model.info();
        if info.n_layers != n_layers || info.n_ctx < sizes.n_ctx || info.n_seq_max < sizes.n_seq_max {
            let line = format!(
                "the first layers were loaded as {} with a context of {} for {} sequences, not as {n_layers} with {} for {}",
                info.n_layers, info.n_ctx, info.n_seq_max, sizes.n_ctx, sizes.n_seq_max
            );
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        Ok(ComputedFirst { model, seqs: vec![None; sizes.n_seq_max] })
    }

    /// Returns how many tokens can be taken back at once.
    pub(super) fn n_rewind_max(&self) -> usize {
        self.model.info().n_rewind_max
    }

    /// Returns the name of what it computes on.
    pub(super) fn device_name(&self) -> &str {
        &self.model.info().device.name
    }

    fn of(&self, seq: SeqId) -> Result<SeqId, BackendError> {
        self.seqs.get(seq.0).copied().flatten().ok_or_else(|| BackendError::not_open(seq))
    }

    pub(super) fn open(&mut self, seq: SeqId) -> Result<(), BackendError> {
        self.seqs[seq.0] = Some(self.model.open(None, &CacheSalt::default())?.0);
        Ok(())
    }

    pub(super) fn fork(&mut self, seq: SeqId, len: usize, child: SeqId) -> Result<(), BackendError> {
        self.seqs[child.0] = Some(self.model.fork(self.of(seq)?, len)?);
        Ok(())
    }

    pub(super) fn rewind(&mut self, seq: SeqId, len: usize) -> Result<(), BackendError> {
        let own = self.of(seq)?;
        if self.model.n_tokens(own) > len { self.model.rewind(own, len) } else { Ok(()) }
    }

    pub(super) fn close(&mut self, seq: SeqId) {
        if let Some(own) = self.seqs.get_mut(seq.0).and_then(Option::take) {
            self.model.close(own);
        }
    }

    /// Computes the rows of a pass, and returns the residual stream behind the first layers: `[n, n_embd]`.
    fn run(&mut self, pieces: &[Piece<'_>]) -> Result<&[f32], BackendError> {
        let mut segments = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let seq = self.of(piece.seq)?;
            segments.push(Segment { seq, tokens: piece.tokens, logits: LogitRows::TailOfStates(0) });
        }
        Ok(self.model.forward(&segments)?.rows.hidden)
    }
}

impl WgpuBackend {
    /// Has the first layers computed, if they are elsewhere, and writes the residual stream behind them to the device.
    pub(super) fn run_first(&mut self, pieces: &[Piece<'_>]) -> Result<(), BackendError> {
        let Some(first) = &mut self.first else { return Ok(()) };
        self.model.write_stream(first.run(pieces)?)
    }

    /// Closes a sequence; what it computed goes to the prefix cache, if it `is_kept`.
    pub(super) fn remove(&mut self, seq: SeqId, is_kept: bool) {
        if let Some(first) = &mut self.first {
            first.close(seq);
        }
        self.kv.remove(seq, is_kept);
    }
}
