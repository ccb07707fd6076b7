//! Rates of a loaded model: tokens a second that it reads and writes.

use std::time::Instant;

use ruvllm_engine::{Engine, LogitRows, Segment, SeqId};

use crate::error::Result;

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Reading `n` tokens.
    Prefill {
        /// Tokens.
        n: usize,
    },
    /// Writing `n` tokens to each of `n_batch` sequences, after `depth` tokens of context.
    Decode {
        /// Tokens of a sequence.
        n: usize,
        /// Sequences at once.
        n_batch: usize,
        /// Tokens of context.
        depth: usize,
    },
}

impl Test {
    /// Returns its name, e.g. `tg64@b8`.
    pub fn name(self) -> String {
        match self {
            Test::Prefill { n } => format!("pp{n}"),
            Test::Decode { n, n_batch, depth: 0 } if n_batch > 1 => format!("tg{n}@b{n_batch}"),
            Test::Decode { n, depth: 0, .. } => format!("tg{n}"),
            Test::Decode { n, depth, .. } => format!("tg{n}@d{depth}"),
        }
    }

    /// Returns the tokens a sequence holds when the test is over.
    pub fn n_ctx(self) -> usize {
        match self {
            Test::Prefill { n } => n,
            Test::Decode { n, depth, .. } => n + depth.max(1),
        }
    }

    /// Returns the tokens the rate is over.
    pub fn n_tokens(self) -> usize {
        match self {
            Test::Prefill { n } => n,
            Test::Decode { n, n_batch, .. } => n * n_batch,
        }
    }
}

/// Returns the `i`-th token of the text the benchmark reads.
fn token(i: usize, n_vocab: usize) -> u32 {
    ((i * 7919 + 13) % n_vocab) as u32
}

/// Runs one test once and returns tokens per second; `logits` are asked for of tokens that are written.
///
/// # Errors
/// The engine's.
pub fn measure(engine: &mut Engine, test: Test, logits: LogitRows) -> Result<f64> {
    let n_vocab = engine.info().n_vocab;
    let (n_batch, n_before) = match test {
        Test::Prefill { .. } => (1, 0),
        Test::Decode { n_batch, depth, .. } => (n_batch, depth.max(1)),
    };
    let mut sequences = Vec::with_capacity(n_batch);
    for s in 0..n_batch {
        let seq = engine.new_sequence()?;
        sequences.push(seq);
        if n_before > 0 {
            read(engine, seq, s, n_before, n_vocab)?;
        }
    }
    let start = Instant::now();
    match test {
        Test::Prefill { n } => read(engine, sequences[0], 0, n, n_vocab)?,
        Test::Decode { n, .. } => write(engine, &sequences, n, logits)?,
    }
    let seconds = start.elapsed().as_secs_f64();
    for seq in sequences {
        engine.free_sequence(seq);
    }
    Ok(test.n_tokens() as f64 / seconds)
}

/// Reads `n` tokens into a sequence, starting with token number `from`.
fn read(engine: &mut Engine, seq: SeqId, from: usize, n: usize, n_vocab: usize) -> Result<()> {
    let tokens: Vec<_> = (from..from + n).map(|i| token(i, n_vocab)).collect();
    engine.forward(&[Segment { seq, tokens: &tokens, logits: LogitRows::Last }])?;
    Ok(())
}

/// Writes `n` tokens to every sequence, one step at a time.
fn write(engine: &mut Engine, sequences: &[SeqId], n: usize, logits: LogitRows) -> Result<()> {
    let n_vocab = engine.info().n_vocab;
    for i in 0..n {
        let tokens: Vec<_> = (0..sequences.len()).map(|s| [token(i + s, n_vocab)]).collect();
        let pairs = sequences.iter().zip(&tokens);
        let segments: Vec<_> = pairs.map(|(seq, tokens)| Segment { seq: *seq, tokens, logits }).collect();
        engine.forward(&segments)?;
    }
    Ok(())
}

/// Sorts `values`, of which there is at least one, and returns the middle one, or the mean of the two.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_in_the_vocabulary() {
        assert_eq!((token(0, 100), token(1, 100)), (13, 32));
    }
}
