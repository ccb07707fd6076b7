//! The interpolation weight λ: how much of the next token's distribution comes from the datastore, learned from what that was worth.
//!
//! ```text
//! λ = sigmoid(w·f)          p = (1 - λ)·p_model + λ·p_knn
//! learn:  L = -ln p[token]      ∂L/∂w = -λ·(1 - λ)·(p_knn - p_model)/p · f      Adagrad
//! f:      what the nearest entries say, how sure the model is, whether they agree, and two running means over the request:
//!         of the similarity, and of what an even mixture would have gained
//! ```
//! The running means separate a request that the datastore knows from one that it does not: without them the datastore costs other text 3
//! to 5 %. Adaptive interpolation as in He et al. 2021 (arXiv:2109.04212) and Drozdov et al. 2022 (arXiv:2210.15859), fitted
//! online.

use crate::codec::{Reader, Writer};
use crate::error::SonaError;
use crate::knn::KnnDistribution;

/// Values that a share is computed from.
pub const N_FEATURES: usize = 12;
/// What a snapshot begins with.
const MAGIC: [u8; 8] = *b"ruvgate1";
/// The rate of Adagrad.
const RATE: f32 = 0.1;
/// Keeps a quotient finite.
const EPSILON: f32 = 1e-8;
/// The most that a single token counts of what the datastore gains, in nats.
const GAIN_MAX: f32 = 3.0;
/// How much of the running means stays with each token.
const KEEP: f32 = 0.9;

/// What a share is computed from.
pub(crate) type Features = [f32; N_FEATURES];

/// What the model itself says of the next token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Confidence {
    /// Log probability of its likeliest token.
    pub log_p_max: f32,
    /// That token.
    pub likeliest: u32,
    /// Log probability of the token that the datastore thinks likeliest.
    pub log_p_knn: f32,
}

/// Running means over the tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct RunningFeatures {
    similarity: f32,
    gain: f32,
}

impl RunningFeatures {
    /// Returns what a snapshot keeps.
    pub(crate) fn values(&self) -> [f32; 2] {
        [self.similarity, self.gain]
    }

    /// Reads it.
    pub(crate) fn from_values([similarity, gain]: [f32; 2]) -> RunningFeatures {
        RunningFeatures { similarity, gain }
    }

    /// Updates the means with a token.
    pub(crate) fn go_on(&mut self, nearest: f32, p_model: f32, p_knn: f32) {
        let gain = (0.5 + 0.5 * p_knn / p_model.max(f32::MIN_POSITIVE)).ln().min(GAIN_MAX);
        self.similarity = KEEP * self.similarity + (1.0 - KEEP) * nearest;
        self.gain = KEEP * self.gain + (1.0 - KEEP) * gain;
    }

    /// Returns the features of a token to come.
    pub(crate) fn features(&self, knn: &KnnDistribution, model: &Confidence) -> Features {
        let (top, mass) = knn.classes().first().copied().unwrap_or((u32::MAX, 0.0));
        let s = knn.nearest();
        let agrees = f32::from(u8::from(top == model.likeliest));
        let ahead = (mass.max(1e-6).ln() - model.log_p_knn).clamp(-2.0, 10.0) / 4.0;
        let s4 = (s * s) * (s * s);
        [
            1.0,
            s,
            -model.log_p_max / 3.0,
            mass,
            s * mass,
            s4,
            s4 * mass,
            agrees,
            (1.0 - agrees) * s4,
            ahead,
            self.similarity,
            3.0 * self.gain,
        ]
    }
}

/// A token whose share is known to have been good or bad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub features: Features,
    pub p_model: f32,
    pub p_knn: f32,
}

/// Model of the interpolation weight, fitted online.
#[derive(Clone, Debug, PartialEq)]
pub struct Interpolation {
    weights: Features,
    /// Sums of squares of the gradients.
    squares: Features,
}

impl Default for Interpolation {
    /// A weight that begins low: three kinds of text gave the first values.
    fn default() -> Interpolation {
        Interpolation { weights: START, squares: [0.0; N_FEATURES] }
    }
}

/// Where weights begin.
const START: Features = [-3.7, 0.7, 1.05, 0.36, 0.7, 1.24, 1.12, 0.31, 0.96, -0.5, 0.63, 0.53];

impl Interpolation {
    /// Returns λ, the share of the datastore, 0 to 1.
    pub(crate) fn lambda(&self, features: &Features) -> f32 {
        let z: f32 = self.weights.iter().zip(features).map(|(w, f)| w * f).sum();
        1.0 / (1.0 + (-z).exp())
    }

    /// Goes a step towards the share that would have been better.
    pub(crate) fn learn(&mut self, sample: &Sample, rate: f32) {
        let lambda = self.lambda(&sample.features);
        let mixed = (1.0 - lambda) * sample.p_model + lambda * sample.p_knn;
        let slope = lambda * (1.0 - lambda) * (sample.p_knn - sample.p_model) / mixed.max(f32::MIN_POSITIVE);
        if !slope.is_finite() {
            return;
        }
        for ((w, square), f) in self.weights.iter_mut().zip(&mut self.squares).zip(&sample.features) {
            let gradient = slope * f;
            *square += gradient * gradient;
            *w += RATE * rate * gradient / (square.sqrt() + EPSILON);
        }
    }

    /// Returns the weights of the features.
    pub fn weights(&self) -> &[f32; N_FEATURES] {
        &self.weights
    }

    /// Returns everything as bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Writer::of(MAGIC);
        out.plain_f32s(&self.weights);
        out.plain_f32s(&self.squares);
        out.take()
    }

    /// Reads what [`Interpolation::snapshot`] gave.
    ///
    /// # Errors
    /// The bytes are damaged, or of another version.
    pub fn restore(bytes: &[u8]) -> Result<Interpolation, SonaError> {
        let mut from = Reader::of(bytes, MAGIC, "gate")?;
        let mut interpolation = Interpolation::default();
        for values in [&mut interpolation.weights, &mut interpolation.squares] {
            values.copy_from_slice(&from.plain_f32s(N_FEATURES)?);
        }
        if interpolation.squares.iter().any(|&x| x < 0.0) {
            return Err(from.invalid("a negative sum of squares"));
        }
        from.end()?;
        Ok(interpolation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(nearest: f32, p_model: f32, p_knn: f32) -> Sample {
        let knn = KnnDistribution { hits: Vec::new(), classes: vec![(1, 1.0)], nearest };
        let model = Confidence { log_p_max: -1.0, likeliest: 2, log_p_knn: p_model.ln() };
        Sample { features: RunningFeatures::default().features(&knn, &model), p_model, p_knn }
    }

    #[test]
    fn steps_follow_the_slope() {
        let (interpolation, sample) = (Interpolation::default(), sample(0.8, 0.1, 0.7));
        let loss = |interpolation: &Interpolation| {
            let lambda = f64::from(interpolation.lambda(&sample.features));
            -((1.0 - lambda) * 0.1 + lambda * 0.7).ln()
        };
        let mut after = interpolation.clone();
        after.learn(&sample, 1.0);
        for i in 0..N_FEATURES {
            let mut moved = interpolation.clone();
            moved.weights[i] += 1e-2;
            let slope = loss(&moved) - loss(&interpolation);
            // The first step of Adagrad has the length of the rate.
            let step = after.weights[i] - interpolation.weights[i];
            assert_eq!(slope < 0.0, step > 0.0, "feature {i}: {slope} and {step}");
            assert!(step == 0.0 || (step.abs() - RATE).abs() < 1e-3, "feature {i}: {step}");
        }
    }

    #[test]
    fn it_learns_when_to_trust() {
        let mut interpolation = Interpolation::default();
        let (good, bad) = (sample(0.95, 0.05, 0.9), sample(0.4, 0.5, 0.0));
        for _ in 0..400 {
            interpolation.learn(&good, 1.0);
            interpolation.learn(&bad, 1.0);
        }
        assert!(interpolation.lambda(&good.features) > 0.6, "{}", interpolation.lambda(&good.features));
        assert!(interpolation.lambda(&bad.features) < 0.05, "{}", interpolation.lambda(&bad.features));
        let before = interpolation.clone();
        interpolation.learn(&Sample { p_model: f32::NAN, ..good }, 1.0);
        assert_eq!(interpolation, before);
        assert_eq!(Interpolation::restore(&interpolation.snapshot()).expect("a snapshot"), interpolation);
        assert!(Interpolation::restore(&interpolation.snapshot()[1..]).is_err());
        assert!(Interpolation::restore(&interpolation.snapshot()[..40]).is_err());
    }
}
