//! AdamW and the course of its rate.

use std::f64::consts::PI;

/// Schedule of the rate over a training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Not at all.
    Constant,
    /// Down to nothing along half a cosine (Loshchilov & Hutter 2016, arXiv:1608.03983).
    #[default]
    Cosine,
    /// Up from a 25th over the first 30 %, then down to a 250,000th, along cosines (Smith 2018, arXiv:1708.07120, with the shares that
    /// torch has).
    OneCycle,
}

impl Schedule {
    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Constant => "constant",
            Schedule::Cosine => "cosine",
            Schedule::OneCycle => "one-cycle",
        }
    }

    /// Returns the share of the rate when `done` (0 to 1) of the training are over, of which `warm_up` go by in rising; one-cycle
    /// rises by itself.
    pub fn share(self, done: f64, warm_up: f64) -> f64 {
        let done = done.clamp(0.0, 1.0);
        let between = |from: f64, to: f64, at: f64| to + (from - to) * 0.5 * (1.0 + (PI * at).cos());
        if self == Schedule::OneCycle {
            const RISE: f64 = 0.3;
            return match done < RISE {
                true => between(1.0 / 25.0, 1.0, done / RISE),
                false => between(1.0, 1.0 / 250_000.0, (done - RISE) / (1.0 - RISE)),
            };
        }
        if done < warm_up {
            return done / warm_up;
        }
        match self {
            Schedule::Cosine => between(1.0, 0.0, (done - warm_up) / (1.0 - warm_up).max(f64::MIN_POSITIVE)),
            _ => 1.0,
        }
    }
}

/// Options of AdamW (Loshchilov & Hutter 2017, arXiv:1711.05101).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// Share of the mean gradient that stays.
    pub beta1: f64,
    /// Share of the mean square that stays.
    pub beta2: f64,
    /// Added to the root of the mean square.
    pub epsilon: f64,
    /// The share of every value that a step takes away, times the rate.
    pub decay: f64,
    /// The longest gradient over all factors: a longer one is shortened to it.
    pub clip: f64,
}

impl Default for AdamOptions {
    fn default() -> AdamOptions {
        AdamOptions { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01, clip: 1.0 }
    }
}

/// The optimiser's memory: means of gradients and of their squares, one vector a factor.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Adam {
    pub m: Vec<Vec<f32>>,
    pub v: Vec<Vec<f32>>,
    pub n_steps: u64,
}

impl Adam {
    /// Makes one for factors of these lengths.
    pub(super) fn new(lengths: impl Iterator<Item = usize>) -> Adam {
        let m: Vec<Vec<f32>> = lengths.map(|n| vec![0.0; n]).collect();
        Adam { v: m.clone(), m, n_steps: 0 }
    }

    /// Goes a step; returns the gradients' length before it was clipped. What is no number changes nothing.
    pub(super) fn step(
        &mut self,
        options: &AdamOptions,
        rate: f64,
        values: &mut [Vec<f32>],
        grads: &[Vec<f32>],
    ) -> f64 {
        let norm = grads.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt();
        if !norm.is_finite() {
            return norm;
        }
        self.n_steps += 1;
        let clip = if norm > options.clip { (options.clip / norm) as f32 } else { 1.0 };
        let n = self.n_steps.min(i32::MAX as u64) as i32;
        let (first, second) = (1.0 - options.beta1.powi(n), 1.0 - options.beta2.powi(n));
        let (beta1, beta2) = (options.beta1 as f32, options.beta2 as f32);
        let (keep, rate) = ((1.0 - rate * options.decay) as f32, (rate / first) as f32);
        let (by, epsilon) = ((1.0 / second) as f32, options.epsilon as f32);
        let memory = self.m.iter_mut().zip(&mut self.v);
        for ((x, g), (m, v)) in values.iter_mut().zip(grads).zip(memory) {
            for (((x, g), m), v) in x.iter_mut().zip(g).zip(m).zip(v) {
                let g = g * clip;
                *m = beta1 * *m + (1.0 - beta1) * g;
                *v = beta2 * *v + (1.0 - beta2) * g * g;
                *x = *x * keep - rate * *m / ((*v * by).sqrt() + epsilon);
            }
        }
        norm
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_what_the_paper_says() {
        let options = AdamOptions { decay: 0.1, clip: 1e9, ..AdamOptions::default() };
        let (mut adam, mut x) = (Adam::new([2].into_iter()), vec![vec![1.0, -2.0]]);
        let (mut m, mut v, mut expected) = ([0.0f64; 2], [0.0f64; 2], [1.0f64, -2.0]);
        for (n, g) in [[0.5f32, -3.0], [0.25, 1.0], [-4.0, 0.125]].into_iter().enumerate() {
            adam.step(&options, 0.01, &mut x, &[g.to_vec()]);
            for i in 0..2 {
                let g = f64::from(g[i]);
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.999 * v[i] + 0.001 * g * g;
                let (m, v) = (m[i] / (1.0 - 0.9f64.powi(n as i32 + 1)), v[i] / (1.0 - 0.999f64.powi(n as i32 + 1)));
                expected[i] = expected[i] * (1.0 - 0.01 * 0.1) - 0.01 * m / (v.sqrt() + 1e-8);
                assert!((f64::from(x[0][i]) - expected[i]).abs() < 1e-5, "{} for {}", x[0][i], expected[i]);
            }
        }
        // Clipping keeps the direction, and what is no number changes nothing.
        let (mut adam, mut x) = (Adam::new([2].into_iter()), vec![vec![0.0, 0.0]]);
        let options = AdamOptions { clip: 1.0, ..options };
        assert_eq!(adam.step(&options, 0.01, &mut x, &[vec![30.0, 40.0]]), 50.0);
        assert!((adam.m[0][0] - 0.06).abs() < 1e-6 && (adam.m[0][1] - 0.08).abs() < 1e-6);
        let before = (adam.clone(), x.clone());
        assert!(adam.step(&options, 0.01, &mut x, &[vec![f32::NAN, 0.0]]).is_nan());
        assert_eq!((adam, x), before);
    }

    #[test]
    fn rates_rise_and_fall() {
        let at = |schedule: Schedule, done: f64| (schedule.share(done, 0.1) * 1000.0).round() / 1000.0;
        assert_eq!([0.0, 0.05, 0.1, 0.5, 1.0].map(|done| at(Schedule::Constant, done)), [0.0, 0.5, 1.0, 1.0, 1.0]);
        assert_eq!([0.05, 0.1, 0.55, 1.0].map(|done| at(Schedule::Cosine, done)), [0.5, 1.0, 0.5, 0.0]);
        assert_eq!([0.0, 0.15, 0.3, 0.65, 1.0].map(|done| at(Schedule::OneCycle, done)), [0.04, 0.52, 1.0, 0.5, 0.0]);
    }
}
