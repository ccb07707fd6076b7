//! Log-probabilities of a text that is given.

use ruvllm_backend::{LogitRows, Segment};
use ruvllm_lora::AdapterSet;

use super::ModelRunner;
use crate::EngineError;
use crate::sampler::{TokenLogprobs, logprobs_of};

/// Tokens of a pass: each has a row of logits.
const N_ROWS: usize = 64;

impl ModelRunner {
    /// Returns, for every token but the first, what [`Readout::Logprobs`](super::Readout::Logprobs) says.
    pub(super) fn logprobs_of(
        &mut self,
        tokens: &[u32],
        n_top: usize,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, EngineError> {
        let n_vocab = self.info().n_vocab;
        let mut values = Vec::with_capacity(tokens.len().saturating_sub(1) * (1 + 2 * n_top));
        self.with_sequence(adapters, |runner, seq| {
            for (i, chunk) in tokens.chunks(N_ROWS).enumerate() {
                let logits = runner.forward(&[Segment { seq, tokens: chunk, logits: LogitRows::All }])?;
                let followers = tokens[i * N_ROWS..].iter().skip(1);
                for (row, &next) in logits.chunks(n_vocab).zip(followers) {
                    let TokenLogprobs { logprob, top } = logprobs_of(row, next, n_top);
                    values.push(logprob);
                    // A vocabulary is smaller than what a number of 24 bits holds exactly.
                    values.extend(top.into_iter().flat_map(|(id, logprob)| [id as f32, logprob]));
                }
            }
            Ok(values)
        })
    }
}
