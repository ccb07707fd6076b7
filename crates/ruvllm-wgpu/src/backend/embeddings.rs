//! Vectors and scores of texts: final hidden states are read back and pooled on the host.

use ruvllm_backend::pooling::{VectorPool, unit};
use ruvllm_backend::{BackendError, CacheSalt, Embeddings, LogitRows, Pooling, Segment, SeqId, TokenModel};
use ruvllm_lora::AdapterSet;

use super::{Piece, WgpuBackend};
use crate::device_model::Readout;

impl WgpuBackend {
    /// Computes a sequence of its own and returns its vector by `pooling`; a second text begins at token `second_from`.
    fn pooled(
        &mut self,
        tokens: &[u32],
        pooling: Pooling,
        second_from: usize,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, BackendError> {
        let (seq, _) = self.open(None, &CacheSalt::from(adapters))?;
        let vector = self.pool_states(seq, tokens, pooling, second_from);
        self.close(seq);
        vector
    }

    fn pool_states(
        &mut self,
        seq: SeqId,
        tokens: &[u32],
        pooling: Pooling,
        second_from: usize,
    ) -> Result<Vec<f32>, BackendError> {
        self.check(&[Segment { seq, tokens, logits: LogitRows::None }])?;
        self.make_room(&[(seq, tokens.len())])?;
        self.ready_adapters(&[Segment { seq, tokens, logits: LogitRows::None }])?;
        let mut pool = VectorPool::new(pooling, self.spec.n_embd);
        for tokens in tokens.chunks(self.model.rows.n_rows) {
            self.fill_pass(&[Piece { seq, tokens, wanted: LogitRows::All }], second_from)?;
            self.model.run(&mut self.pass, Readout::States, &mut |words| {
                let states: Vec<f32> = words[0].iter().map(|word| f32::from_bits(*word)).collect();
                pool.add(&states);
            })?;
            self.kv.advance(seq, tokens);
        }
        Ok(pool.finish())
    }
}

impl Embeddings for WgpuBackend {
    fn embed(
        &mut self,
        tokens: &[u32],
        pooling: Option<Pooling>,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, BackendError> {
        let pooling = pooling.unwrap_or(self.spec.pooling);
        let vector = self.pooled(tokens, pooling, usize::MAX, adapters)?;
        Ok(if pooling == Pooling::None { vector } else { unit(vector) })
    }

    fn score(&mut self, tokens: &[u32], n_first: usize, adapters: &AdapterSet) -> Result<f32, BackendError> {
        if self.ranker.is_none() {
            let line = format!("model '{}' scores no pairs of texts; use a cross-encoder", self.info.name);
            return Err(BackendError::unsupported(line));
        }
        let vector = self.pooled(tokens, Pooling::Cls, n_first, adapters)?;
        Ok(self.ranker.as_ref().map_or(0.0, |ranker| ranker.score(&vector)))
    }
}
