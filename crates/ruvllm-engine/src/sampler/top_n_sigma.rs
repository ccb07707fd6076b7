//! Top-n-sigma (Tang 2024, arXiv:2411.07641): only what stands out from the noise of the logits.

use super::candidates::Candidates;

/// Rules out those more than `n` standard deviations of all logits below the largest; 0 or less rules out none.
pub(super) fn apply(candidates: &mut Candidates, n: f32) {
    if n <= 0.0 || candidates.len() <= 1 {
        return;
    }
    let logits = || candidates.items().iter().map(|c| f64::from(c.logit)).filter(|&l| l > f64::NEG_INFINITY);
    let count = logits().count().max(1) as f64;
    let mean = logits().sum::<f64>() / count;
    let sigma = (logits().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count).sqrt();
    let least = candidates.max() - n * sigma as f32;
    candidates.change(|_, logit| if logit < least { f32::NEG_INFINITY } else { logit });
}
