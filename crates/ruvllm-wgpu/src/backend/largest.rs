//! Rows of which only the largest logits are wanted: the device finds them, and they are read back with their tokens.

use ruvllm_backend::{BackendError, LogitRows, Segment};

use super::{WgpuBackend, extend};
use crate::device_model::Readout;

/// Share of a logit by which the next one must be below it, so that both stay in order however they are rounded.
const CLEAR: f32 = 1e-6;

impl WgpuBackend {
    /// Returns what has to be read back of rows whose logits are wanted: as few as the row that wants most.
    pub(super) fn readout_of_logits(&self, segments: &[Segment<'_>]) -> Readout {
        let wanting = segments.iter().filter(|segment| segment.logits.count(segment.tokens.len()) > 0);
        let wanted = wanting.map(|segment| match segment.logits {
            LogitRows::Top { n_best, .. } => Some(n_best.max(1)),
            _ => None,
        });
        let n_best = wanted.reduce(|a, b| Some(a?.max(b?))).unwrap_or(Some(1));
        match n_best.filter(|_| self.spec.output.scale > 0.0) {
            Some(1) => Readout::Best,
            Some(n_best) if self.n_pairs(n_best) <= self.model.pairs_max() => Readout::Largest(self.n_pairs(n_best)),
            _ => Readout::Logits,
        }
    }

    /// Returns how many logits are read back for the `n_best` largest: the next one as well, where logits are scaled or capped.
    fn n_pairs(&self, n_best: usize) -> usize {
        n_best.saturating_add(usize::from(self.is_bent()))
    }

    /// Returns whether the model changes logits behind the head. Where it does, those that differ may become equal, and the
    /// `n_best` largest others than they were.
    fn is_bent(&self) -> bool {
        self.spec.output.scale != 1.0 || self.spec.output.softcap.is_some()
    }

    /// Runs the pass at hand, of whose wanted rows `n_pairs` logits each are enough. Rows are read back whole after all
    /// where it is not clear which the largest will be.
    pub(super) fn run_largest(&mut self, n_pairs: usize) -> Result<(), BackendError> {
        let n_vocab = self.info.n_vocab;
        let (mut logits, mut failure) = (std::mem::take(&mut self.logits), None);
        let mut pass = std::mem::take(&mut self.pass);
        let run = self.model.run(&mut pass, Readout::Largest(n_pairs), &mut |words| {
            let pairs = words[0].as_chunks::<2>().0;
            if pairs.chunks_exact(n_pairs).all(|row| self.is_clear(row)) {
                pairs.chunks_exact(n_pairs).for_each(|row| spread(row, n_vocab, &mut logits));
                return;
            }
            match self.model.logits_again(pairs.len() / n_pairs) {
                Ok(words) => extend(&mut logits, &words),
                Err(error) => failure = Some(error),
            }
        });
        (self.logits, self.pass) = (logits, pass);
        run.and(failure.map_or(Ok(()), Err))
    }

    /// Returns whether the last logit of a row, which is one more than wanted if the model changes them, stays below the others.
    fn is_clear(&self, row: &[[u32; 2]]) -> bool {
        let [.., [_, least], [_, next]] = row else { return true };
        let mut two = [*least, *next].map(f32::from_bits);
        if !self.is_bent() || two[1] == f32::NEG_INFINITY {
            return true;
        }
        self.finish_logits(&mut two);
        two[0] - two[1] > CLEAR * two[0].abs().max(two[1].abs())
    }
}

/// Adds a row that has these logits at their tokens, and no others. Tokens that are none are left out.
pub(super) fn spread(row: &[[u32; 2]], n_vocab: usize, logits: &mut Vec<f32>) {
    let first = logits.len();
    logits.resize(first + n_vocab, f32::NEG_INFINITY);
    for [id, bits] in row {
        if let Some(logit) = logits[first..].get_mut(*id as usize) {
            *logit = f32::from_bits(*bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_backend::{CacheSalt, TokenModel};
    use ruvllm_testkit::Golden;

    use super::*;
    use crate::tests::{load, options};

    /// Logits that are bent until many are equal: which of them are the largest is not known before.
    #[test]
    fn rows_come_whole_where_bent_logits_are_equal() {
        let golden = Golden::load("gemma2-a");
        let mut model = load(&golden.model("f32"), &options(golden.n_ctx));
        let (seq, _) = model.open(None, &CacheSalt::default()).expect("a sequence is free");
        let (tokens, n_vocab) = (&golden.tokens[..8], golden.n_vocab);
        let mut rows = |softcap: f32, logits: LogitRows| {
            model.spec.output.softcap = Some(softcap);
            let before = model.stats().n_bytes_read;
            let rows = model.forward(&[Segment { seq, tokens, logits }]).expect("it fits").logits.to_vec();
            model.rewind(seq, 0).expect("it goes back");
            (rows, model.stats().n_bytes_read - before)
        };
        let top = LogitRows::Top { n_tail: 3, n_best: 20 };
        let pairs = 8 * 3 * 21;
        let (found, n_bytes) = rows(30.0, top);
        assert_eq!((found.iter().filter(|x| x.is_finite()).count(), n_bytes), (3 * 21, pairs));
        let (whole, _) = rows(1e-3, LogitRows::Tail(3));
        let (found, n_bytes) = rows(1e-3, top);
        assert!(whole.iter().filter(|x| **x == 1e-3).count() > 3 * 20, "not many are equal");
        assert!(found.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()));
        assert_eq!(n_bytes, pairs + 4 * 3 * n_vocab as u64);
    }

    #[test]
    fn logits_come_to_their_tokens() {
        let none = [u32::MAX, f32::NEG_INFINITY.to_bits()];
        let mut logits = vec![1.0];
        spread(&[[2, 3.5f32.to_bits()], [0, (-0.0f32).to_bits()], none], 4, &mut logits);
        assert_eq!(logits, [1.0, 0.0, f32::NEG_INFINITY, 3.5, f32::NEG_INFINITY]);
    }
}
