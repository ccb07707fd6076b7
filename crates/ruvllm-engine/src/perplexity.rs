//! Perplexity as llama.cpp computes it: windows of the context's length, the second half of each one scored.

use std::ops::ControlFlow;

use ruvllm_kvcache::KvPolicy;

use crate::{Engine, EngineError, ErrorKind};
use ruvllm_backend::{LogitRows, Segment, SeqId};

/// Options of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Length of a window in tokens.
    pub n_ctx: usize,
    /// Windows; all of the text by default.
    pub max_chunks: Option<usize>,
    /// Also compute every window with the KV cache in half precision, and compare. It takes two sequences
    /// ([`LoadOptions::n_seq_max`](crate::LoadOptions::n_seq_max)) and twice the time.
    pub against_f16: bool,
}

/// The result over all windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// `exp(nll)`.
    pub ppl: f64,
    /// Mean negative log likelihood of a scored token, in nats.
    pub nll: f64,
    /// Scored tokens.
    pub n_tokens: usize,
    /// Bytes of KV cache per token at the end of the last window.
    pub kv_bytes_per_token: f64,
    /// Price of the cache's policy, if that was asked for.
    pub against_f16: Option<KvPrice>,
}

/// Price of a KV cache in fewer bits, measured on the same windows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KvPrice {
    /// Perplexity with the KV cache in half precision.
    pub ppl_f16: f64,
    /// Mean Kullback-Leibler divergence of a scored token's distribution from that in half precision, in nats.
    pub mean_kl: f64,
    /// Scored tokens of which the most likely one is the same, 0 to 1.
    pub same_top1: f64,
    /// Bytes of KV cache per token in half precision.
    pub f16_bytes_per_token: f64,
}

/// The running result after a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerplexityProgress {
    /// Windows done.
    pub chunk: usize,
    /// Windows in all.
    pub n_chunks: usize,
    /// Perplexity so far.
    pub ppl: f64,
}

/// Rows whose logits are held at once.
const ROWS: usize = 128;

/// Sums over the scored tokens of the windows so far.
#[derive(Default)]
struct Sums {
    nll: f64,
    nll_f16: f64,
    kl: f64,
    n_same: usize,
    n_scored: usize,
    /// Of the last window, per token.
    bytes: [f64; 2],
}

impl Engine {
    /// Returns the perplexity of `tokens` (with BOS in front where the model wants one) in windows of `n_ctx`.
    ///
    /// Every window starts from an empty context, its first token replaced by BOS where the model wants one; positions
    /// `n_ctx/2 .. n_ctx-1` predict their successors. They see the KV cache as its policy keeps it.
    ///
    /// # Errors
    /// Fewer tokens than two windows' worth, a window beyond the engine's context, an interrupted run; a comparison with
    /// half precision where the cache is in single precision.
    pub fn perplexity(
        &mut self,
        tokens: &[u32],
        options: &PerplexityOptions,
        on_chunk: &mut dyn FnMut(PerplexityProgress) -> ControlFlow<()>,
    ) -> Result<Perplexity, EngineError> {
        let PerplexityOptions { n_ctx, max_chunks, against_f16 } = *options;
        let bos = self.tokenizer()?.bos_to_add();
        self.check_windows(tokens.len(), options)?;
        let n_chunks = (tokens.len() / n_ctx).min(max_chunks.unwrap_or(usize::MAX));
        let mut sums = Sums::default();
        for (chunk, window) in tokens.chunks_exact(n_ctx).take(n_chunks).enumerate() {
            let mut window = window.to_vec();
            if let Some(bos) = bos {
                window[0] = bos;
            }
            self.score_window(&window, against_f16, &mut sums)?;
            let ppl = (sums.nll / sums.n_scored as f64).exp();
            if on_chunk(PerplexityProgress { chunk: chunk + 1, n_chunks, ppl }).is_break() {
                return Err(EngineError::new(
                    ErrorKind::Cancelled,
                    format!("stopped after {} of {n_chunks} windows", chunk + 1),
                ));
            }
        }
        let n = sums.n_scored as f64;
        Ok(Perplexity {
            ppl: (sums.nll / n).exp(),
            nll: sums.nll / n,
            n_tokens: sums.n_scored,
            kv_bytes_per_token: sums.bytes[0],
            against_f16: against_f16.then(|| KvPrice {
                ppl_f16: (sums.nll_f16 / n).exp(),
                mean_kl: sums.kl / n,
                same_top1: sums.n_same as f64 / n,
                f16_bytes_per_token: sums.bytes[1],
            }),
        })
    }

    fn check_windows(&self, n_tokens: usize, options: &PerplexityOptions) -> Result<(), EngineError> {
        let (n_ctx, n_ctx_max) = (options.n_ctx, self.info().n_ctx);
        let error = |line: String| Err(EngineError::new(ErrorKind::Options, line));
        if n_ctx < 4 || n_ctx > n_ctx_max {
            return error(format!("windows of {n_ctx} tokens; choose 4 to {n_ctx_max} (the context)"));
        }
        if n_tokens < 2 * n_ctx {
            let least = 2 * n_ctx;
            return error(format!("{n_tokens} tokens; perplexity over windows of {n_ctx} needs at least {least}"));
        }
        if options.against_f16 && self.kv_policy() == KvPolicy::F32 {
            return error("a cache in f32 has no f16 to compare with; choose another policy".to_owned());
        }
        Ok(())
    }

    /// Adds the second half of a window to the sums.
    fn score_window(&mut self, window: &[u32], against_f16: bool, sums: &mut Sums) -> Result<(), EngineError> {
        let mut seqs = vec![self.runner.open_empty()?];
        let result = (|| {
            if against_f16 {
                seqs.push(self.new_exact_sequence()?);
            }
            self.score_sequences(window, &seqs, sums)
        })();
        for (bytes, &seq) in sums.bytes.iter_mut().zip(&seqs) {
            *bytes = self.sequence_bytes(seq) as f64 / self.sequence_len(seq).max(1) as f64;
        }
        seqs.into_iter().for_each(|seq| self.free_sequence(seq));
        result
    }

    /// Computes a window in all sequences: the one that is measured, then perhaps the one in half precision.
    fn score_sequences(&mut self, window: &[u32], seqs: &[SeqId], sums: &mut Sums) -> Result<(), EngineError> {
        let (half, n_vocab) = (window.len() / 2, self.info().n_vocab);
        let segments = |tokens, logits| seqs.iter().map(|&seq| Segment { seq, tokens, logits }).collect::<Vec<_>>();
        self.forward(&segments(&window[..half], LogitRows::None))?;
        for (i, tokens) in window[half..window.len() - 1].chunks(ROWS).enumerate() {
            let logits = self.forward(&segments(tokens, LogitRows::All))?;
            let (measured, exact) = logits.split_at(tokens.len() * n_vocab);
            for (row, logits) in measured.chunks_exact(n_vocab).enumerate() {
                let next = window[half + i * ROWS + row + 1];
                sums.nll -= log_probability(logits, next);
                if let Some(exact) = exact.chunks_exact(n_vocab).nth(row) {
                    sums.nll_f16 -= log_probability(exact, next);
                    sums.kl += divergence(exact, logits);
                    sums.n_same += usize::from(top1(exact) == top1(logits));
                }
                sums.n_scored += 1;
            }
        }
        Ok(())
    }
}

/// Returns the Kullback-Leibler divergence of `softmax(q)` from `softmax(p)`, in nats.
fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let normaliser = |logits: &[f32]| {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        f64::from(max) + logits.iter().map(|&x| f64::from((x - max).exp())).sum::<f64>().ln()
    };
    let (p_norm, q_norm) = (normaliser(p), normaliser(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let log_p = f64::from(p) - p_norm;
        log_p.exp() * (log_p - (f64::from(q) - q_norm))
    });
    terms.sum::<f64>().max(0.0)
}

fn top1(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)))
}

/// Returns the natural log of a token's probability under `logits`.
fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergences_are_those_of_the_distributions() {
        let (p, q) = ([0.0, 0.0], [2f32.ln(), 0.0]);
        let expected = 0.5 * (0.5 / (2.0 / 3.0f64)).ln() + 0.5 * (0.5 / (1.0 / 3.0f64)).ln();
        assert!((divergence(&p, &q) - expected).abs() < 1e-7);
        assert_eq!((divergence(&q, &q), top1(&[1.0, 3.0, 3.0])), (0.0, Some(1)));
        assert!(divergence(&[5.0, -80.0], &[5.0, 3.0]) > 0.1);
    }
}
