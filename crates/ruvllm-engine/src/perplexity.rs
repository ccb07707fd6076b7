//! Perplexity as llama.cpp computes it: windows of the context's length, the second half of each one scored.

use std::ops::ControlFlow;

use crate::backend::Segment;
use crate::model::LogitRows;
use crate::{Engine, EngineError, ErrorKind};

/// The result over all windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// `exp(nll)`.
    pub ppl: f64,
    /// Mean negative log likelihood of a scored token, in nats.
    pub nll: f64,
    /// Scored tokens.
    pub n_tokens: usize,
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

impl Engine {
    /// Returns the perplexity of `tokens` (with BOS in front where the model wants one) in windows of `n_ctx`.
    ///
    /// Every window starts from an empty context, its first token replaced by BOS where the model wants one; positions
    /// `n_ctx/2 .. n_ctx-1` predict their successors.
    ///
    /// # Errors
    /// Fewer tokens than two windows' worth, a window beyond the engine's context, an interrupted run.
    pub fn perplexity(
        &mut self,
        tokens: &[u32],
        n_ctx: usize,
        max_chunks: Option<usize>,
        on_chunk: &mut dyn FnMut(PerplexityProgress) -> ControlFlow<()>,
    ) -> Result<Perplexity, EngineError> {
        let bos = self.tokenizer()?.bos_to_add();
        let n_vocab = self.info().n_vocab;
        let options = |line: String| Err(EngineError::new(ErrorKind::Options, line));
        if n_ctx < 4 || n_ctx > self.info().n_ctx {
            return options(format!("windows of {n_ctx} tokens; choose 4 to {} (the context)", self.info().n_ctx));
        }
        if tokens.len() < 2 * n_ctx {
            return options(format!(
                "{} tokens; perplexity over windows of {n_ctx} needs at least {}",
                tokens.len(),
                2 * n_ctx
            ));
        }
        let n_chunks = (tokens.len() / n_ctx).min(max_chunks.unwrap_or(usize::MAX));
        let (mut nll, mut n_scored) = (0.0, 0);
        for (chunk, window) in tokens.chunks_exact(n_ctx).take(n_chunks).enumerate() {
            let mut window = window.to_vec();
            if let Some(bos) = bos {
                window[0] = bos;
            }
            nll += self.window_nll(&window, n_vocab)?;
            n_scored += n_ctx - n_ctx / 2 - 1;
            let ppl = (nll / n_scored as f64).exp();
            if on_chunk(PerplexityProgress { chunk: chunk + 1, n_chunks, ppl }).is_break() {
                return Err(EngineError::new(
                    ErrorKind::Cancelled,
                    format!("stopped after {} of {n_chunks} windows", chunk + 1),
                ));
            }
        }
        let nll = nll / n_scored as f64;
        Ok(Perplexity { ppl: nll.exp(), nll, n_tokens: n_scored })
    }

    /// Returns the summed negative log likelihood of the second half of a window.
    fn window_nll(&mut self, window: &[u32], n_vocab: usize) -> Result<f64, EngineError> {
        let backend = self.backend();
        let seq = backend.new_sequence()?;
        let half = window.len() / 2;
        let mut score = || -> Result<f64, EngineError> {
            backend.forward(&[Segment { seq, tokens: &window[..half], logits: LogitRows::None }])?;
            let mut nll = 0.0;
            for (i, tokens) in window[half..window.len() - 1].chunks(ROWS).enumerate() {
                let logits = backend.forward(&[Segment { seq, tokens, logits: LogitRows::All }])?;
                for (row, logits) in logits.chunks_exact(n_vocab).enumerate() {
                    nll -= log_probability(logits, window[half + i * ROWS + row + 1]);
                }
            }
            Ok(nll)
        };
        let result = score();
        backend.free_sequence(seq);
        result
    }
}

/// Returns the natural log of a token's probability under `logits`.
fn log_probability(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&x| f64::from(x - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}
