//! Gates: how strong each of several adapters is, token by token, as a small network says (X-LoRA, Buehler and Buehler
//! 2024, arXiv:2402.07148).
//!
//! ```text
//! x_t = mean of the input embeddings of tokens t-window+1 ..= t, brought to a root mean square of 1
//! w_t = softmax((W2·silu(W1·x_t + b1) + b2) / temperature)        one weight an adapter
//! ```
//!
//! X-LoRA reads the hidden states of a pass without adapters, so that every token costs two passes. This gate reads the
//! embeddings of the last tokens, which are there before the pass: nothing is computed twice, the rows of a prompt need not
//! wait for each other, and a row's weights depend on its sequence's tokens alone. So what was cached, computed together or
//! guessed ahead is the same to the bit. The price is that the gate sees words and not what the model makes of them.

#[cfg(feature = "peft")]
mod file;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use ruvllm_kvcache::NamespaceBuilder;

use crate::apply::SET_MAX;
use crate::dot::dot;
use crate::error::{LoraError, LoraErrorKind, invalid};

/// The most hidden values.
pub const HIDDEN_MAX: usize = 4096;
/// The most tokens that are looked at.
pub const WINDOW_MAX: usize = 1024;

/// A network from a sequence's last tokens to the weights of its adapters.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    n_embd: usize,
    n_hidden: usize,
    n_adapters: usize,
    window: usize,
    temperature: f32,
    /// `[n_hidden, n_embd]`
    w1: Vec<f32>,
    /// `[n_hidden]`
    b1: Vec<f32>,
    /// `[n_adapters, n_hidden]`
    w2: Vec<f32>,
    /// `[n_adapters]`
    b2: Vec<f32>,
}

/// Shape of a gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateShape {
    /// Width of the model's embeddings.
    pub n_embd: usize,
    /// Values between its two layers.
    pub n_hidden: usize,
    /// Adapters that it weighs.
    pub n_adapters: usize,
    /// The last tokens that it looks at.
    pub window: usize,
    /// Divisor of its scores: below 1 they differ more.
    pub temperature: f32,
}

impl GateShape {
    fn check(&self) -> Result<(), LoraError> {
        let within = |what: &str, n: usize, max: usize| match (1..=max).contains(&n) {
            true => Ok(()),
            false => Err(LoraError::new(LoraErrorKind::Limit, format!("a gate with {n} {what}; 1 to {max} can be"))),
        };
        within("inputs", self.n_embd, 1 << 16)?;
        within("hidden values", self.n_hidden, HIDDEN_MAX)?;
        within("adapters", self.n_adapters, SET_MAX)?;
        within("tokens to look at", self.window, WINDOW_MAX)?;
        match self.temperature.is_finite() && self.temperature >= 1e-3 {
            true => Ok(()),
            false => Err(invalid(format!("a gate's temperature of {}; 0.001 and more can be", self.temperature))),
        }
    }
}

/// A layer of a gate.
#[derive(Clone, Debug)]
pub struct GateLayer {
    /// Weights, row-major.
    pub weights: Vec<f32>,
    /// Bias, one a row.
    pub bias: Vec<f32>,
}

/// Memory of a gate's work, kept between calls.
#[derive(Debug, Default)]
pub struct GateScratch {
    embeddings: Vec<f32>,
    x: Vec<f32>,
    hidden: Vec<f32>,
}

impl Gate {
    /// Makes a gate of random weights, the same for a seed, that prefers nothing yet: its last layer is zero.
    ///
    /// # Errors
    /// [`LoraErrorKind::Limit`]: the shape is out of bounds.
    pub fn seeded(shape: GateShape, seed: u64) -> Result<Gate, LoraError> {
        shape.check()?;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Between ±√(3/n_in), whose variance is 1/n_in.
        let bound = (3.0 / shape.n_embd as f64).sqrt();
        let mut draw = || ((f64::from(rng.next_u32()) / f64::from(u32::MAX) * 2.0 - 1.0) * bound) as f32;
        let w1 = (0..shape.n_hidden * shape.n_embd).map(|_| draw()).collect();
        let w2 = vec![0.0; shape.n_adapters * shape.n_hidden];
        let first = GateLayer { weights: w1, bias: vec![0.0; shape.n_hidden] };
        let second = GateLayer { weights: w2, bias: vec![0.0; shape.n_adapters] };
        Gate::new(shape, first, second)
    }

    /// Makes a gate of two layers with weights `[n_hidden, n_embd]` and `[n_adapters, n_hidden]`.
    ///
    /// # Errors
    /// The shape is out of bounds, the weights are not as many, or one is no finite number.
    pub fn new(
        shape: GateShape,
        GateLayer { weights: w1, bias: b1 }: GateLayer,
        GateLayer { weights: w2, bias: b2 }: GateLayer,
    ) -> Result<Gate, LoraError> {
        shape.check()?;
        let GateShape { n_embd, n_hidden, n_adapters, window, temperature } = shape;
        let parts = [
            ("w1", &w1, n_hidden * n_embd),
            ("b1", &b1, n_hidden),
            ("w2", &w2, n_adapters * n_hidden),
            ("b2", &b2, n_adapters),
        ];
        for (name, values, n) in parts {
            if values.len() != n {
                return Err(invalid(format!("the gate's '{name}' has {} values for {n}", values.len())));
            }
            if let Some(at) = values.iter().position(|x| !x.is_finite()) {
                let line = format!("value {} at {at} of the gate's '{name}' is no number", values[at]);
                return Err(LoraError::new(LoraErrorKind::Value, line));
            }
        }
        Ok(Gate { n_embd, n_hidden, n_adapters, window, temperature, w1, b1, w2, b2 })
    }

    /// Returns how large it is and what it looks at.
    pub fn shape(&self) -> GateShape {
        let Gate { n_embd, n_hidden, n_adapters, window, temperature, .. } = *self;
        GateShape { n_embd, n_hidden, n_adapters, window, temperature }
    }

    /// Returns a hash of what it does.
    pub fn content(&self) -> [u8; 32] {
        let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let sizes = [self.n_embd, self.n_hidden, self.n_adapters, self.window].map(|n| (n as u64).to_le_bytes());
        let mut builder = NamespaceBuilder::new("gate 1").part("sizes", sizes.as_flattened());
        builder = builder.part("temperature", &self.temperature.to_le_bytes());
        for (name, values) in [("w1", &self.w1), ("b1", &self.b1), ("w2", &self.w2), ("b2", &self.b2)] {
            builder = builder.part(name, &bytes(values));
        }
        builder.identity()
    }

    /// Appends to `out` the weights of the last `n` of `tokens`: `[n, n_adapters]`, each row's sum is 1. `embed` writes a
    /// token's embedding: `[n_embd]`.
    ///
    /// # Panics
    /// If there are fewer tokens than `n`.
    pub fn weigh(
        &self,
        tokens: &[u32],
        n: usize,
        embed: &mut dyn FnMut(u32, &mut [f32]),
        scratch: &mut GateScratch,
        out: &mut Vec<f32>,
    ) {
        assert!(n <= tokens.len(), "weights of {n} rows of {} tokens", tokens.len());
        let (n_embd, n_before) = (self.n_embd, tokens.len() - n);
        let first = n_before.saturating_sub(self.window - 1);
        let GateScratch { embeddings, x, hidden } = scratch;
        embeddings.resize((tokens.len() - first) * n_embd, 0.0);
        x.resize(n_embd, 0.0);
        for (token, row) in tokens[first..].iter().zip(embeddings.chunks_exact_mut(n_embd)) {
            embed(*token, row);
        }
        for row in n_before..tokens.len() {
            // Each row's sum is of its own tokens in their order, whatever was computed with it.
            let from = (row + 1).saturating_sub(self.window);
            x.fill(0.0);
            for at in from..=row {
                let embedding = &embeddings[(at - first) * n_embd..][..n_embd];
                x.iter_mut().zip(embedding).for_each(|(x, e)| *x += e);
            }
            let square = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>() / n_embd as f64;
            let inverse = if square > 0.0 { (1.0 / square.sqrt()) as f32 } else { 0.0 };
            x.iter_mut().for_each(|x| *x *= inverse);
            hidden.clear();
            hidden.extend(self.w1.chunks_exact(n_embd).zip(&self.b1).map(|(w, b)| silu(dot(w, x) + b)));
            let scores = self.w2.chunks_exact(self.n_hidden).zip(&self.b2);
            let at = out.len();
            out.extend(scores.map(|(w, b)| (dot(w, hidden) + b) / self.temperature));
            softmax(&mut out[at..]);
        }
    }
}

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

fn softmax(scores: &mut [f32]) {
    let max = scores.iter().fold(f32::MIN, |max, &x| max.max(x));
    scores.iter_mut().for_each(|x| *x = (*x - max).exp());
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|x| *x /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(n_embd: usize) -> Gate {
        let sizes = GateShape { n_embd, n_hidden: 5, n_adapters: 3, window: 4, temperature: 0.5 };
        let noise = |n: usize, seed: f32| (0..n).map(|i| (i as f32 * 1.7 + seed).sin()).collect::<Vec<f32>>();
        let first = GateLayer { weights: noise(5 * n_embd, 0.1), bias: noise(5, 0.2) };
        let second = GateLayer { weights: noise(15, 0.3), bias: noise(3, 0.4) };
        Gate::new(sizes, first, second).expect("a gate")
    }

    fn embed(token: u32, out: &mut [f32]) {
        out.iter_mut().enumerate().for_each(|(i, x)| *x = ((token * 13 + i as u32 * 7) as f32 * 0.1).cos());
    }

    fn weigh(gate: &Gate, tokens: &[u32], n: usize) -> Vec<f32> {
        let mut out = Vec::new();
        gate.weigh(tokens, n, &mut embed, &mut GateScratch::default(), &mut out);
        out
    }

    #[test]
    fn weights_are_those_of_plain_code() {
        let (gate, tokens) = (gate(21), [3u32, 9, 4, 4, 1, 7, 2]);
        let all = weigh(&gate, &tokens, tokens.len());
        for (row, weights) in all.chunks_exact(3).enumerate() {
            let mut x = [0.0f64; 21];
            for &token in &tokens[(row + 1).saturating_sub(4)..=row] {
                let mut e = vec![0.0; 21];
                embed(token, &mut e);
                x.iter_mut().zip(&e).for_each(|(x, e)| *x += f64::from(*e));
            }
            let rms = (x.iter().map(|x| x * x).sum::<f64>() / 21.0).sqrt();
            let hidden: Vec<f64> = (0..5)
                .map(|i| {
                    let h: f64 = (0..21).map(|j| f64::from(gate.w1[i * 21 + j]) * x[j] / rms).sum();
                    let h = h + f64::from(gate.b1[i]);
                    h / (1.0 + (-h).exp())
                })
                .collect();
            let scores: Vec<f64> = (0..3)
                .map(|k| (0..5).map(|i| f64::from(gate.w2[k * 5 + i]) * hidden[i]).sum::<f64>() + f64::from(gate.b2[k]))
                .map(|score| (score / 0.5).exp())
                .collect();
            for (w, score) in weights.iter().zip(&scores) {
                let expected = score / scores.iter().sum::<f64>();
                assert!((f64::from(*w) - expected).abs() < 1e-5, "row {row}: {w} for {expected}");
            }
        }
        // The same bits however the rows are cut.
        for cut in 1..tokens.len() {
            let parts = [weigh(&gate, &tokens[..cut], cut), weigh(&gate, &tokens, tokens.len() - cut)].concat();
            assert_eq!(parts, all);
        }
    }

    #[test]
    fn one_that_was_made_of_a_seed_prefers_nothing() {
        let sizes = GateShape { n_embd: 8, n_hidden: 4, n_adapters: 2, window: 16, temperature: 1.0 };
        let seeded = Gate::seeded(sizes, 7).expect("a gate");
        assert_eq!(weigh(&seeded, &[1, 2, 3], 1), [0.5, 0.5]);
        assert_eq!(seeded, Gate::seeded(sizes, 7).expect("a gate"));
        assert_ne!(seeded.content(), Gate::seeded(sizes, 8).expect("a gate").content());
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let sizes = GateShape { n_embd: 8, n_hidden: 4, n_adapters: 2, window: 16, temperature: 1.0 };
        for wrong in [
            GateShape { n_hidden: 0, ..sizes },
            GateShape { n_hidden: HIDDEN_MAX + 1, ..sizes },
            GateShape { n_adapters: SET_MAX + 1, ..sizes },
            GateShape { window: 0, ..sizes },
            GateShape { temperature: 0.0, ..sizes },
            GateShape { temperature: f32::NAN, ..sizes },
        ] {
            assert!(Gate::seeded(wrong, 1).is_err(), "{wrong:?}");
        }
    }
}
