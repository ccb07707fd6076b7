//! Perplexity as llama.cpp computes it: windows of the context's length, the second half of each one scored.

use std::ops::ControlFlow;

use ruvllm_kvcache::KvPolicy;

use crate::divergence::{divergence, log_probability, top1};
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
        self.check_windows(tokens.len(), options)?;
        let windows = self.windows(tokens, n_ctx, max_chunks)?;
        let (n_chunks, mut sums) = (windows.len(), Sums::default());
        for (chunk, window) in windows.iter().enumerate() {
            self.score_window(window, against_f16, &mut sums)?;
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

    /// Cuts a text into windows of `n_ctx` tokens, of which the first is replaced by BOS where the model wants one; what is left
    /// over at the end is left out.
    ///
    /// # Errors
    /// The model has no tokenizer; the text is shorter than a window, or a window longer than the engine's context.
    pub fn windows(
        &self,
        tokens: &[u32],
        n_ctx: usize,
        max_chunks: Option<usize>,
    ) -> Result<Vec<Vec<u32>>, EngineError> {
        let n_ctx_max = self.info().n_ctx;
        if n_ctx == 0 || n_ctx > n_ctx_max || tokens.len() < n_ctx {
            let n = tokens.len();
            let line = format!("a text of {n} tokens has no window of {n_ctx}; choose 1 to {}", n.min(n_ctx_max));
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        let bos = self.tokenizer()?.bos_to_add();
        let windows = tokens.chunks_exact(n_ctx).take(max_chunks.unwrap_or(usize::MAX)).map(|window| {
            let mut window = window.to_vec();
            window[0] = bos.unwrap_or(window[0]);
            window
        });
        Ok(windows.collect())
    }

    /// Computes a window from an empty context, and hands `each` the logits of positions `from` on, but for the last, with the
    /// token that follows them.
    ///
    /// # Errors
    /// The backend's.
    pub fn predictions(
        &mut self,
        window: &[u32],
        from: usize,
        each: &mut dyn FnMut(&[f32], u32),
    ) -> Result<(), EngineError> {
        if from + 1 >= window.len() {
            return Ok(());
        }
        let seq = self.runner.open_empty()?;
        let result = self.predict(window, from, &[seq], &mut |logits, next| each(logits[0], next));
        self.free_sequence(seq);
        result
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

    /// Adds a window in all sequences to the sums: the one that is measured, then perhaps the one in half precision.
    fn score_sequences(&mut self, window: &[u32], seqs: &[SeqId], sums: &mut Sums) -> Result<(), EngineError> {
        self.predict(window, window.len() / 2, seqs, &mut |logits, next| {
            sums.nll -= log_probability(logits[0], next);
            if let [measured, exact] = logits {
                sums.nll_f16 -= log_probability(exact, next);
                sums.kl += divergence(exact, measured);
                sums.n_same += usize::from(top1(exact) == top1(measured));
            }
            sums.n_scored += 1;
        })
    }

    /// Computes a window in all sequences, one or two, and hands over the logits of positions `from` on in each.
    fn predict(
        &mut self,
        window: &[u32],
        from: usize,
        seqs: &[SeqId],
        each: &mut dyn FnMut(&[&[f32]], u32),
    ) -> Result<(), EngineError> {
        let n_vocab = self.info().n_vocab;
        let segments = |tokens, logits| seqs.iter().map(|&seq| Segment { seq, tokens, logits }).collect::<Vec<_>>();
        if from > 0 {
            self.forward(&segments(&window[..from], LogitRows::None))?;
        }
        for (i, tokens) in window[from..window.len() - 1].chunks(ROWS).enumerate() {
            let logits = self.forward(&segments(tokens, LogitRows::All))?;
            let (first, second) = logits.split_at(tokens.len() * n_vocab);
            for (row, first) in first.chunks_exact(n_vocab).enumerate() {
                let next = window[from + i * ROWS + row + 1];
                match second.chunks_exact(n_vocab).nth(row) {
                    None => each(&[first], next),
                    Some(second) => each(&[first, second], next),
                }
            }
        }
        Ok(())
    }
}
