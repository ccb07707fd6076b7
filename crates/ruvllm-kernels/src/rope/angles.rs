//! The angles of a position: frequencies, their scaling, and the magnitude of the rotated vector.

use super::RopeStyle;
use std::f64::consts::TAU;

/// Scaling of frequencies for contexts longer than the model was trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All angles are divided by `factor`.
    Linear {
        /// How many times longer the context is.
        factor: f32,
    },
    /// Slow dimensions are divided by `factor`, fast ones kept, with a ramp between (YaRN).
    Yarn {
        /// How many times longer the context is.
        factor: f32,
        /// The context the model was trained on, in tokens.
        n_ctx_orig: u32,
        /// The share of the ramp that is used: 1 normally, 0 for linear scaling without a change of magnitude.
        ext_factor: f32,
        /// Multiplies the magnitude, beside [`RopeConfig::attn_factor`] and YaRN's own `1 + 0.1·ln factor`.
        attn_factor: f32,
        /// Dimensions that turn more often than this over `n_ctx_orig` are kept: 32 normally.
        beta_fast: f32,
        /// Dimensions that turn less often than this are divided in full: 1 normally.
        beta_slow: f32,
    },
}

/// Rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Dimensions that form a pair.
    pub style: RopeStyle,
    /// Number of dimensions of a head that are rotated; even.
    pub n_rot: usize,
    /// The base of the geometric row of frequencies: 10,000 in the paper.
    pub base: f32,
    /// Scaling of angles for long contexts.
    pub scaling: RopeScaling,
    /// Multiplies the rotated vector: 1 normally, longrope's magnitude for phi3.
    pub attn_factor: f32,
    /// `[n_rot/2]`: each divides the angle of its pair (Llama 3, longrope).
    pub freq_factors: Option<Vec<f32>>,
}

/// The frequencies of one [`RopeConfig`], ready to give the angles of any position.
///
/// ```
/// use ruvllm_kernels::rope::{Rope, RopeConfig, RopeScaling, RopeStyle};
/// let rope = Rope::new(&RopeConfig {
///     style: RopeStyle::Neox,
///     n_rot: 4,
///     base: 10_000.0,
///     scaling: RopeScaling::None,
///     attn_factor: 1.0,
///     freq_factors: None,
/// });
/// let (mut cos, mut sin) = ([0.0; 2], [0.0; 2]);
/// rope.angles(3, &mut cos, &mut sin);
/// assert_eq!(cos, [3f32.cos(), 0.03f64.cos() as f32]);
/// ```
#[derive(Clone, Debug)]
pub struct Rope {
    style: RopeStyle,
    /// Radians per position, `[n_rot/2]`.
    frequencies: Vec<f64>,
    magnitude: f64,
}

impl Rope {
    /// Computes the frequencies.
    ///
    /// # Panics
    /// If `n_rot` is odd or 0, `base` or the scaling's `factor` is not a positive finite number, or `freq_factors`
    /// does not hold `n_rot/2` of them.
    pub fn new(config: &RopeConfig) -> Rope {
        let RopeConfig { style, n_rot, base, scaling, attn_factor, ref freq_factors } = *config;
        assert!(n_rot > 0 && n_rot.is_multiple_of(2), "rope: cannot rotate {n_rot} dimensions in pairs");
        let positive = |v: f32| v.is_finite() && v > 0.0;
        assert!(positive(base), "rope: base {base} is no positive number");
        if let Some(factors) = freq_factors {
            assert_eq!(factors.len(), n_rot / 2, "rope: need a frequency factor for each of the {} pairs", n_rot / 2);
            assert!(factors.iter().all(|&f| positive(f)), "rope: frequency factors must be positive numbers");
        }
        let (freq_scale, ramp, yarn_magnitude) = match scaling {
            RopeScaling::None => (1.0, None, 1.0),
            RopeScaling::Linear { factor } => {
                assert!(positive(factor), "rope: scaling factor {factor} is no positive number");
                (1.0 / f64::from(factor), None, 1.0)
            }
            RopeScaling::Yarn { factor, n_ctx_orig, ext_factor, attn_factor, beta_fast, beta_slow } => {
                assert!(positive(factor), "rope: scaling factor {factor} is no positive number");
                let own = if ext_factor == 0.0 { 1.0 } else { 1.0 + 0.1 * f64::from(factor).ln() };
                let ramp = Ramp::new(n_rot, n_ctx_orig, f64::from(base), beta_fast, beta_slow);
                (1.0 / f64::from(factor), Some((ramp, f64::from(ext_factor))), f64::from(attn_factor) * own)
            }
        };
        let frequency = |i: usize| {
            let plain = f64::from(base).powf(-2.0 * i as f64 / n_rot as f64)
                / freq_factors.as_ref().map_or(1.0, |factors| f64::from(factors[i]));
            let kept = ramp.as_ref().map_or(0.0, |(ramp, ext_factor)| ramp.kept(i) * ext_factor);
            plain * (freq_scale * (1.0 - kept) + kept)
        };
        Rope {
            style,
            frequencies: (0..n_rot / 2).map(frequency).collect(),
            magnitude: f64::from(attn_factor) * yarn_magnitude,
        }
    }

    /// Returns how many dimensions of a head are rotated.
    pub fn n_rot(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Returns which dimensions form a pair.
    pub fn style(&self) -> RopeStyle {
        self.style
    }

    /// Writes cosine and sine of each pair's angle at position `pos`, times the magnitude. Shapes: both `[n_rot/2]`.
    ///
    /// Costs some 20 ns a pair: call it once a position and use the result for all heads and layers.
    ///
    /// # Panics
    /// If the lengths are not `n_rot/2`.
    pub fn angles(&self, pos: u32, cos: &mut [f32], sin: &mut [f32]) {
        let n_pairs = self.frequencies.len();
        assert!(
            cos.len() == n_pairs && sin.len() == n_pairs,
            "rope: {n_pairs} pairs, room for {} cosines and {} sines",
            cos.len(),
            sin.len()
        );
        for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&self.frequencies) {
            let (s, c) = (f64::from(pos) * frequency).sin_cos();
            (*cos, *sin) = ((c * self.magnitude) as f32, (s * self.magnitude) as f32);
        }
    }
}

/// YaRN's ramp over pairs: 1 for fast pairs (kept), 0 for slow ones (interpolated).
struct Ramp {
    low: f64,
    high: f64,
}

impl Ramp {
    fn new(n_rot: usize, n_ctx_orig: u32, base: f64, beta_fast: f32, beta_slow: f32) -> Ramp {
        // The pair that turns `beta` times over the trained context.
        let pair_of =
            |beta: f32| n_rot as f64 * (f64::from(n_ctx_orig) / (f64::from(beta) * TAU)).ln() / (2.0 * base.ln());
        Ramp { low: pair_of(beta_fast).floor().max(0.0), high: pair_of(beta_slow).ceil().min(n_rot as f64 - 1.0) }
    }

    fn kept(&self, pair: usize) -> f64 {
        1.0 - ((pair as f64 - self.low) / (self.high - self.low).max(0.001)).clamp(0.0, 1.0)
    }
}
