//! Rules of updating: plain, or with each value's rate by the squares of its gradients so far.

/// Rule by which a gradient becomes a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// `x -= rate·d`
    Sgd,
    /// `m += d²; x -= rate·d / (√m + ε)` (Duchi, Hazan & Singer 2011)
    Adagrad,
    /// `m = decay·m + (1 - decay)·d²; x -= rate·d / (√m + ε)` (Tieleman & Hinton 2012)
    RmsProp {
        /// How much of the past stays: 0.9 or so.
        decay: f32,
    },
}

/// Options of an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateOptions {
    /// The rule.
    pub rule: Rule,
    /// The learning rate.
    pub rate: f32,
    /// The longest gradient: a longer one is shortened to it.
    pub clip: f32,
    /// The share of every value that is taken away with each step, times the rate.
    pub decay: f32,
}

/// Keeps a quotient finite.
const EPSILON: f32 = 1e-8;

impl UpdateOptions {
    /// Returns what a step leaves of a value before it moves it.
    pub(super) fn keep(&self) -> f32 {
        1.0 - self.rate * self.decay
    }

    /// Plain steps of a rate, gradients clipped at 1.
    pub fn sgd(rate: f32) -> UpdateOptions {
        UpdateOptions { rule: Rule::Sgd, rate, clip: 1.0, decay: 0.0 }
    }
}

/// Values with their gradient.
pub(super) struct Update<'a> {
    pub values: &'a mut [f32],
    pub gradient: &'a [f32],
}

/// The squares of gradients so far; empty until a rule wants them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Moments {
    pub a: Vec<f32>,
    pub b: Vec<f32>,
}

impl Moments {
    /// Updates both factors.
    pub(super) fn step(&mut self, options: &UpdateOptions, a: Update<'_>, b: Update<'_>) {
        for (Update { values, gradient }, moments) in [(a, &mut self.a), (b, &mut self.b)] {
            let keep = options.keep();
            if options.rule == Rule::Sgd {
                values.iter_mut().zip(gradient).for_each(|(x, d)| *x = *x * keep - options.rate * d);
                continue;
            }
            moments.resize(values.len(), 0.0);
            for ((x, &d), m) in values.iter_mut().zip(gradient).zip(moments) {
                *m = match options.rule {
                    Rule::RmsProp { decay } => decay * *m + (1.0 - decay) * d * d,
                    Rule::Sgd | Rule::Adagrad => *m + d * d,
                };
                *x = *x * keep - options.rate * d / (m.sqrt() + EPSILON);
            }
        }
    }
}
