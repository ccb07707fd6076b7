//! What a model thinks of a text that is given: the log-probability of each of its tokens.

use ruvllm_lora::AdapterSet;

use super::{LlmBackend, NativeBackend, Segment, SeqId};
use crate::error::EngineError;
use crate::model::LogitRows;
use crate::sampler::{TokenLogprobs, logprobs_of};

/// Tokens of a pass: each has a row of logits.
const N_ROWS: usize = 64;

impl NativeBackend {
    /// Returns, for every token but the first, what [`Readout::Logprobs`](super::Readout::Logprobs) says.
    pub(super) fn logprobs_of_given(
        &mut self,
        tokens: &[u32],
        n_top: usize,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, EngineError> {
        let seq = self.new_adapted_sequence(adapters)?;
        let result = self.logprobs_in(seq, tokens, n_top);
        self.free_sequence(seq);
        result
    }

    fn logprobs_in(&mut self, seq: SeqId, tokens: &[u32], n_top: usize) -> Result<Vec<f32>, EngineError> {
        let n_vocab = self.info().n_vocab;
        let mut values = Vec::with_capacity(tokens.len().saturating_sub(1) * (1 + 2 * n_top));
        for (i, chunk) in tokens.chunks(N_ROWS).enumerate() {
            let states = self.forward_states(&[Segment { seq, tokens: chunk, logits: LogitRows::All }])?;
            let followers = tokens[i * N_ROWS..].iter().skip(1);
            for (row, &next) in states.logits.chunks(n_vocab).zip(followers) {
                let TokenLogprobs { logprob, top } = logprobs_of(row, next, n_top);
                values.push(logprob);
                // A vocabulary is smaller than what a number of 24 bits holds exactly.
                values.extend(top.into_iter().flat_map(|(id, logprob)| [id as f32, logprob]));
            }
        }
        Ok(values)
    }
}
