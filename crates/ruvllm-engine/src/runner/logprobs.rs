//! Logits and log-probabilities of a text that is given.

use ruvllm_backend::{LogitRows, Segment};
use ruvllm_lora::AdapterSet;

use super::{ModelRunner, check_writes};
use crate::sampler::{TokenLogprobs, logprobs_of};
use crate::{EngineError, ErrorKind};

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

    /// Returns what [`Readout::Logits`](super::Readout::Logits) says.
    pub(super) fn logits_of(
        &mut self,
        tokens: &[u32],
        n_last: usize,
        adapters: &AdapterSet,
    ) -> Result<Vec<f32>, EngineError> {
        check_writes(self.info())?;
        if tokens.is_empty() {
            return Err(EngineError::new(ErrorKind::Prompt, "no tokens to compute; the list is empty"));
        }
        let (n_rows, n_vocab) = (n_last.min(tokens.len()), self.info().n_vocab);
        let mut values = Vec::new();
        values.try_reserve_exact(n_rows.saturating_mul(n_vocab)).map_err(|_| {
            let n_mib = n_rows.saturating_mul(n_vocab) / (1 << 18);
            let line =
                format!("the logits of {n_rows} tokens take {n_mib} MiB, which are not there; ask for the last few");
            EngineError::new(ErrorKind::Options, line)
        })?;
        self.with_sequence(adapters, |runner, seq| {
            let mut n_left = tokens.len();
            for chunk in tokens.chunks(N_ROWS) {
                n_left -= chunk.len();
                let logits = LogitRows::Tail(n_last).before(n_left);
                values.extend_from_slice(runner.forward(&[Segment { seq, tokens: chunk, logits }])?);
            }
            Ok(values)
        })
    }
}
