//! A call of the native backend, cut into passes: what is checked before, and what goes into each.

use ruvllm_backend::pooling::VectorPool;
use ruvllm_backend::{BackendError, BackendErrorKind, LogitRows, Pooling, Segment, SeqId, TokenModel};
use ruvllm_kernels::attention;
use ruvllm_lora::AdapterSet;
use ruvllm_lora::gate::{Gate, GateScratch};

use super::{NativeBackend, quantizer};
use crate::kernels::Compute;
use crate::model::{Batch, Model, RowCounts, Rows};

impl NativeBackend {
    /// Checks a call before anything is computed.
    pub(super) fn check(&self, segments: &[Segment<'_>]) -> Result<(), BackendError> {
        let error = |kind, line: String| Err(BackendError::new(kind, line));
        for (i, segment) in segments.iter().enumerate() {
            let open = self.kv.get(segment.seq).is_some();
            if !open || segments[..i].iter().any(|other| other.seq == segment.seq) {
                return error(
                    BackendErrorKind::Options,
                    format!("sequence {} is not open, or stands twice", segment.seq.0),
                );
            }
            if segment.tokens.is_empty() {
                return error(BackendErrorKind::Prompt, "no tokens to compute; the prompt is empty".to_owned());
            }
            let n_known = self.model.input.tokens.n_rows;
            if let Some(id) = segment.tokens.iter().find(|&&id| id as usize >= n_known) {
                return error(
                    BackendErrorKind::Prompt,
                    format!("token id {id} is outside the vocabulary of {n_known}"),
                );
            }
            let len = self.n_tokens(segment.seq) + segment.tokens.len();
            if len > self.info.n_ctx {
                return error(BackendErrorKind::ContextLength, self.info.context_line(len));
            }
        }
        Ok(())
    }

    /// Fills the batch lists with up to `n_rows_max` rows, from `next` on, which it moves behind them.
    pub(super) fn fill_batch(&mut self, segments: &[Segment<'_>], next: &mut Place) {
        self.rows.clear();
        self.wanted.clear();
        self.tokens.clear();
        while let Some(segment) = segments.get(next.segment) {
            let room = self.state.n_rows_max() - self.tokens.len();
            let n = room.min(segment.tokens.len() - next.token);
            if n == 0 {
                return;
            }
            let pos = self.n_tokens(segment.seq);
            self.rows.push(Rows { first: self.tokens.len(), n, pos, state_idx: segment.seq.0 });
            self.tokens.extend_from_slice(&segment.tokens[next.token..next.token + n]);
            next.token += n;
            self.wanted.push(segment.logits.before(segment.tokens.len() - next.token));
            if next.token == segment.tokens.len() {
                *next = Place { segment: next.segment + 1, token: 0 };
            }
        }
    }

    /// Computes the batch in the lists, for which blocks are reserved, and appends what its rows want behind what is
    /// `known`. Returns how many rows that is. `keeps_all`: the residual stream of all rows is wanted as well.
    pub(super) fn run_batch(&mut self, known: RowCounts, keeps_all: bool) -> RowCounts {
        let (pool, sequences) = self.kv.parts();
        let mut views = recycle(std::mem::take(&mut self.views));
        let mut tails = recycle(std::mem::take(&mut self.tails));
        views.extend(self.rows.iter().map(|rows| {
            let open = sequences[rows.state_idx].as_ref().expect("checked to be open");
            open.sequence.segment(rows.first, rows.n)
        }));
        self.adapted.clear();
        self.micros.clear();
        for rows in &self.rows {
            let open = sequences[rows.state_idx].as_ref().expect("checked to be open");
            let set = &open.salt.adapters;
            match set.gate() {
                None => self.adapted.push(rows.n, set),
                Some(gate) => {
                    let new = &self.tokens[rows.first..rows.first + rows.n];
                    let weights = self.gating.weigh(gate, &open.tokens, new, &self.model, &self.compute);
                    self.adapted.push_gated(rows.n, set, weights);
                }
            }
            self.micros.push(open.micro.clone());
        }
        for (view, wanted) in views.iter().zip(&self.wanted) {
            let n_rows = wanted.n_states(view.n_rows);
            let first_row = tails.last().map_or(0, |tail: &attention::Segment<'_>| tail.first_row + tail.n_rows);
            if n_rows > 0 {
                tails.push(attention::Segment { first_row, n_rows, pos: view.n_kv - n_rows, ..*view });
            }
        }
        let n_wanted = tails.last().map_or(0, |tail| tail.first_row + tail.n_rows);
        let (tokens, rows, wanted) = (&self.tokens, &self.rows, &self.wanted);
        let (adapted, micros) = (&self.adapted, &self.micros);
        let tail = (!keeps_all && n_wanted < tokens.len()).then_some(&tails[..]);
        let batch = Batch { tokens, rows, wanted, segments: &views, adapted, micros, tails: tail };
        let counts = self.state.run(&self.model, &self.compute, pool, &batch, known);
        self.views = recycle(views);
        self.tails = recycle(tails);
        // Adapters of requests that end with this pass can be evicted then, not with the next one.
        self.adapted.clear();
        for rows in &self.rows {
            self.kv.advance(SeqId(rows.state_idx), &self.tokens[rows.first..rows.first + rows.n]);
        }
        counts
    }

    /// Computes a sequence of its own and returns its vector by `pooling`: `[n_embd]`, of any length.
    pub(super) fn pooled(
        &mut self,
        tokens: &[u32],
        pooling: Pooling,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, BackendError> {
        let seq = self.open_adapted(adapters)?;
        let segment = [Segment { seq, tokens, logits: LogitRows::None }];
        let result = self.check(&segment).and_then(|()| {
            self.kv.reserve(quantizer(&self.compute), std::iter::once((seq, tokens.len())))?;
            let (mut next, mut pool) = (Place::default(), VectorPool::new(pooling, self.model.spec.n_embd));
            while next.segment < segment.len() {
                self.fill_batch(&segment, &mut next);
                self.run_batch(RowCounts::default(), true);
                let n = self.tokens.len();
                pool.add(self.state.normed_hidden(&self.model, &self.compute, n));
            }
            self.check_files()?;
            Ok(pool.finish())
        });
        self.close(seq);
        result
    }
}

/// Token of a step at which its next pass begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Index of the segment.
    pub segment: usize,
    /// Index of the token in it.
    pub token: usize,
}

/// Has gates weigh adapters. What it keeps is for the next pass to find its memory.
#[derive(Default)]
pub(super) struct Gating {
    scratch: GateScratch,
    tokens: Vec<u32>,
    weights: Vec<f32>,
}

impl Gating {
    /// Returns what a gate says to the rows of `new` tokens behind those that are `known`: `[new, n_adapters]`.
    fn weigh(&mut self, gate: &Gate, known: &[u32], new: &[u32], model: &Model, compute: &Compute) -> &[f32] {
        self.tokens.clear();
        self.tokens.extend_from_slice(&known[known.len().saturating_sub(gate.shape().window - 1)..]);
        self.tokens.extend_from_slice(new);
        self.weights.clear();
        let mut embed = |token: u32, out: &mut [f32]| model.input.tokens.row(&compute.kernels, token as usize, out);
        gate.weigh(&self.tokens, new.len(), &mut embed, &mut self.scratch, &mut self.weights);
        &self.weights
    }
}

/// Empties a list of views and gives its allocation a new lifetime (the collect happens in place).
fn recycle<'a>(mut views: Vec<attention::Segment<'_>>) -> Vec<attention::Segment<'a>> {
    views.clear();
    views.into_iter().map(|_| unreachable!("the list is empty")).collect()
}
