//! How far predictions are from others: log-probabilities, Kullback-Leibler divergence, and predictions kept in 16 bits.

use std::sync::OnceLock;

/// Log-probabilities of one prediction for every token of the vocabulary, 16 bits each: steps of 1/2048 nat down to -32. They are
/// brought back to a sum of 1 when they are read, so that steps change a divergence in the second order only.
#[derive(Clone, Copy, Debug)]
pub struct PackedPrediction<'a>(&'a [u8]);

/// Distance of one prediction from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Kullback-Leibler divergence, in nats.
    pub kl: f64,
    /// Both have the same most likely token.
    pub same_top1: bool,
}

/// Steps of a nat.
const STEPS: f64 = 2048.0;

impl PackedPrediction<'_> {
    /// Bytes for each token of the vocabulary.
    pub const BYTES: usize = 2;

    /// Appends the log-probabilities of `softmax(logits)`.
    pub fn pack(logits: &[f32], out: &mut Vec<u8>) {
        let norm = normaliser(logits);
        let steps = |x: f32| ((norm - f64::from(x)) * STEPS).round().clamp(0.0, f64::from(u16::MAX)) as u16;
        out.extend(logits.iter().flat_map(|&x| steps(x).to_le_bytes()));
    }

    /// Takes bytes of [`PackedPrediction::pack`].
    pub fn new(bytes: &[u8]) -> PackedPrediction<'_> {
        PackedPrediction(bytes)
    }

    fn steps(&self) -> impl Iterator<Item = u16> {
        self.0.as_chunks().0.iter().map(|&x| u16::from_le_bytes(x))
    }

    /// Returns how far `softmax(logits)` is from this prediction, of as many tokens.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn divergence_to(&self, logits: &[f32]) -> Divergence {
        assert_eq!(self.0.len(), Self::BYTES * logits.len(), "predictions over the same vocabulary");
        let exp = exponentials();
        let sum: f64 = self.steps().map(|step| exp[usize::from(step)]).sum();
        let (p_norm, q_norm) = (sum.ln(), normaliser(logits));
        let terms = self.steps().zip(logits).map(|(step, &q)| {
            let p = exp[usize::from(step)] / sum;
            p * (-f64::from(step) / STEPS - p_norm - (f64::from(q) - q_norm))
        });
        let kl = terms.sum::<f64>().max(0.0);
        // Tokens that are less than a step apart count as equally likely.
        let likeliest = self.steps().min();
        let same_top1 = top1(logits).and_then(|token| self.steps().nth(token)) == likeliest;
        Divergence { kl, same_top1 }
    }
}

/// Returns `exp(-i / STEPS)` of every step.
fn exponentials() -> &'static [f64] {
    static TABLE: OnceLock<Vec<f64>> = OnceLock::new();
    TABLE.get_or_init(|| (0..=u16::MAX).map(|i| (-f64::from(i) / STEPS).exp()).collect())
}

/// Returns `ln Σ exp(logits)`.
fn normaliser(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(max) + logits.iter().map(|&x| f64::from((x - max).exp())).sum::<f64>().ln()
}

/// Returns the Kullback-Leibler divergence of `softmax(q)` from `softmax(p)`, in nats.
pub(crate) fn divergence(p: &[f32], q: &[f32]) -> f64 {
    let (p_norm, q_norm) = (normaliser(p), normaliser(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let log_p = f64::from(p) - p_norm;
        log_p.exp() * (log_p - (f64::from(q) - q_norm))
    });
    terms.sum::<f64>().max(0.0)
}

pub(crate) fn top1(logits: &[f32]) -> Option<usize> {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a)))
}

/// Returns the natural log of a token's probability under `logits`.
pub fn log_probability(logits: &[f32], token: u32) -> f64 {
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

    #[test]
    fn packed_predictions_lose_little() {
        let logit = |i: u32| (i.wrapping_mul(2_654_435_761) % 20_000) as f32 / 1000.0;
        let p: Vec<f32> = (0..4096).map(logit).collect();
        let mut q = p.clone();
        let mut packed = Vec::new();
        PackedPrediction::pack(&p, &mut packed);
        assert_eq!(packed.len(), PackedPrediction::BYTES * p.len());
        let packed = PackedPrediction::new(&packed);
        let same = packed.divergence_to(&q);
        assert!(same.kl < 1e-7 && same.same_top1, "{same:?}");
        for noise in [0.01, 0.1, 1.0] {
            q.iter_mut().zip(&p).enumerate().for_each(|(i, (q, p))| *q = p + noise * ((i % 7) as f32 - 3.0));
            let (exact, read) = (divergence(&p, &q), packed.divergence_to(&q).kl);
            assert!((exact - read).abs() < 2e-5 + 1e-3 * exact, "{noise}: {exact} and {read}");
        }
        q[5] = 1000.0;
        assert!(!packed.divergence_to(&q).same_top1);
    }
}
