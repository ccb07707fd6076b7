//! Calibration of probabilities: their error, and the temperature that lowers it.

use crate::math::{cross_entropy, softmax};

/// Predictions of similar probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// Number of predictions.
    pub n: usize,
    /// Their mean probability.
    pub predicted: f64,
    /// The mean of what happened.
    pub observed: f64,
}

/// Sorts pairs of a probability and what happened (0 to 1) into `n_bins` equal ranges of the probability.
///
/// # Panics
/// `n_bins` is 0.
pub fn calibration_bins(pairs: &[(f32, f32)], n_bins: usize) -> Vec<Bin> {
    assert!(n_bins > 0, "probabilities are sorted into at least one bin");
    let mut bins = vec![Bin::default(); n_bins];
    for &(predicted, observed) in pairs {
        let bin = &mut bins[((predicted * n_bins as f32) as usize).min(n_bins - 1)];
        bin.n += 1;
        bin.predicted += f64::from(predicted);
        bin.observed += f64::from(observed);
    }
    for bin in bins.iter_mut().filter(|bin| bin.n > 0) {
        bin.predicted /= bin.n as f64;
        bin.observed /= bin.n as f64;
    }
    bins
}

/// Returns the expected calibration error: the mean distance of probability and frequency over ten bins, each weighted
/// by its predictions (Naeini et al. 2015; Guo et al. 2017, eq. 3).
pub fn calibration_error(pairs: &[(f32, f32)]) -> f64 {
    let error = |bin: &Bin| bin.n as f64 * (bin.predicted - bin.observed).abs();
    calibration_bins(pairs, 10).iter().map(error).sum::<f64>() / pairs.len().max(1) as f64
}

/// Returns the temperature that makes `sigmoid(base + (logit - base) / temperature)` truest for pairs of a logit and a
/// target. What says nothing so becomes the base, where plain temperature scaling would make one half of it.
pub(crate) fn temperature_of(pairs: &[(f32, f32)], base: f32) -> f32 {
    best_temperature(|temperature| {
        pairs.iter().map(|&(z, y)| f64::from(cross_entropy(base + (z - base) / temperature, y))).sum()
    })
}

/// Returns the temperature that makes `softmax(logits / temperature)` truest for pairs of logits and the right class.
pub(crate) fn softmax_temperature_of(pairs: &[(Vec<f32>, usize)]) -> f32 {
    best_temperature(|temperature| {
        let loss = |(logits, class): &(Vec<f32>, usize)| {
            let mut scaled: Vec<f32> = logits.iter().map(|z| z / temperature).collect();
            let wanted = scaled[*class];
            f64::from(softmax(&mut scaled) - wanted)
        };
        pairs.iter().map(loss).sum()
    })
}

/// Finds the least loss over temperatures from 0.1 to 10 by golden section on their logarithm: the loss falls, then
/// rises.
fn best_temperature(loss: impl Fn(f32) -> f64) -> f32 {
    let at = |x: f64| loss(x.exp() as f32);
    let ratio = (5f64.sqrt() - 1.0) / 2.0;
    let (mut low, mut high) = (0.1f64.ln(), 10f64.ln());
    let (mut a, mut b) = (high - ratio * (high - low), low + ratio * (high - low));
    let (mut loss_a, mut loss_b) = (at(a), at(b));
    for _ in 0..30 {
        if loss_a <= loss_b {
            (high, b, loss_b) = (b, a, loss_a);
            a = high - ratio * (high - low);
            loss_a = at(a);
        } else {
            (low, a, loss_a) = (a, b, loss_b);
            b = low + ratio * (high - low);
            loss_b = at(b);
        }
    }
    (0.5 * (low + high)).exp() as f32
}
