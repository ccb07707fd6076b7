//! Measured cost of an arm: windows of it against windows of the default.

/// A measured ratio counts no more than this (in nats), so that one interruption decides nothing.
pub(super) const RATIO_MAX: f64 = 0.7;

/// The share that earlier pairs keep when a new one comes, once an arm is chosen: what was true may change.
const MEMORY: f64 = 0.9;

/// Measured cost of an arm, compared with the default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Pairs of windows.
    pub n_pairs: usize,
    /// Its cost over the default's: below 1 it is better.
    pub ratio: f64,
    /// The probability that it is better at all, 0 to 1, as far as the pairs tell (normal errors).
    pub confidence: f64,
}

/// Running sums of log ratios.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pairs {
    pub(super) n_seen: usize,
    weight: f64,
    sum: f64,
    squares: f64,
}

impl Pairs {
    pub(super) fn add(&mut self, ratio: f64, forgets: bool) {
        let keep = if forgets { MEMORY } else { 1.0 };
        let ratio = ratio.clamp(-RATIO_MAX, RATIO_MAX);
        self.n_seen += 1;
        self.weight = self.weight * keep + 1.0;
        self.sum = self.sum * keep + ratio;
        self.squares = self.squares * keep + ratio * ratio;
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.weight.max(1.0)
    }

    /// The standard error of the mean.
    pub(super) fn error(&self) -> f64 {
        if self.weight < 2.0 {
            return f64::INFINITY;
        }
        let variance = (self.squares / self.weight - self.mean().powi(2)).max(0.0) * self.weight / (self.weight - 1.0);
        // Windows that come out equal by chance are not exact: a percent of each is taken for noise.
        ((variance + 1e-4) / self.weight).sqrt()
    }

    pub(super) fn measured(&self) -> Measured {
        let z = -self.mean() / self.error();
        Measured { n_pairs: self.n_seen, ratio: self.mean().exp(), confidence: normal(z) }
    }
}

/// The normal distribution function (Abramowitz and Stegun 1964, 26.2.17: wrong by less than 1e-7).
fn normal(z: f64) -> f64 {
    if z.is_nan() {
        return 0.5;
    }
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let tail = [1.330_274_429, -1.821_255_978, 1.781_477_937, -0.356_563_782, 0.319_381_53];
    let tail = tail.iter().fold(0.0, |sum, c| (sum + c) * t);
    let upper = tail * (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    if z < 0.0 { upper } else { 1.0 - upper }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_is_that_of_tables() {
        for (z, p) in [(0.0, 0.5), (1.0, 0.841_344_7), (-1.0, 0.158_655_3), (2.5, 0.993_790_3), (f64::INFINITY, 1.0)] {
            assert!((normal(z) - p).abs() < 1e-6, "{z}: {}", normal(z));
        }
    }
}
