//! Times of kernels, by the device's own clock.

use std::collections::BTreeMap;

use ruvllm_backend::{BackendError, BackendErrorKind, CacheSalt, LogitRows, Segment, TokenModel};

use super::{Piece, WgpuBackend};

/// Time of all dispatches of a kernel in a pass.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// Name of the kernel.
    pub kernel: String,
    /// Number of its dispatches.
    pub n_dispatches: usize,
    /// Milliseconds that they took on the device together.
    pub ms: f64,
}

impl WgpuBackend {
    /// Computes `n_rows` tokens after `n_before` others, with each dispatch timed by itself, and returns the kernels, the one
    /// that took longest first. Dispatches do not overlap then: their sum is more than the pass takes.
    ///
    /// # Errors
    /// The device has no timestamps; the tokens are more than the context or a pass holds; those of
    /// [`TokenModel::forward`].
    pub fn profile(&mut self, n_before: usize, n_rows: usize) -> Result<Vec<KernelTime>, BackendError> {
        let n_rows_max = self.model.rows.n_rows;
        if n_rows == 0 || n_rows > n_rows_max || !self.model.has_head() {
            let line = format!("a pass of this model has 1 to {n_rows_max} rows and gives tokens, not {n_rows} rows");
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        let (seq, _) = self.open(None, &CacheSalt::default())?;
        let n_vocab = self.info.n_vocab;
        let tokens: Vec<u32> = (0..n_before + n_rows).map(|i| ((i * 7919 + 13) % n_vocab) as u32).collect();
        let (before, tokens) = tokens.split_at(n_before);
        let timed = self.time_pass(Segment { seq, tokens: before, logits: LogitRows::None }, tokens);
        self.close(seq);
        let mut kernels: BTreeMap<String, KernelTime> = BTreeMap::new();
        for step in timed?.into_iter().filter(|step| step.ns > 0.0) {
            let new = KernelTime { kernel: step.kernel.clone(), n_dispatches: 0, ms: 0.0 };
            let kernel = kernels.entry(step.kernel).or_insert(new);
            kernel.n_dispatches += 1;
            kernel.ms += step.ns / 1e6;
        }
        let mut kernels: Vec<KernelTime> = kernels.into_values().collect();
        kernels.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        Ok(kernels)
    }

    fn time_pass(&mut self, before: Segment<'_>, tokens: &[u32]) -> Result<Vec<ruvllm_gpu::StepTime>, BackendError> {
        let seq = before.seq;
        if !before.tokens.is_empty() {
            self.forward(&[before])?;
        }
        self.check(&[Segment { seq, tokens, logits: LogitRows::Last }])?;
        self.make_room(&[(seq, tokens.len())])?;
        self.fill_pass(&[Piece { seq, tokens, wanted: LogitRows::Last }], usize::MAX)?;
        // Once to warm up.
        self.model.time(&mut self.pass)?;
        self.model.time(&mut self.pass)
    }
}
