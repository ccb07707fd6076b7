//! Normalisation of one row: RMSNorm (with a fused residual add) and LayerNorm.
//!
//! ```text
//! rms_norm(x, w):       s = 1 / sqrt(Σ x² / n + eps);               y[i] = x[i]·s·w[i]
//! layer_norm(x, w, b):  m = Σ x / n;  s = 1 / sqrt(Σ (x - m)² / n + eps);  y[i] = (x[i] - m)·s·w[i] + b[i]
//! ```
//! - Sums run over several accumulators (one would be bound by the latency of an FMA) and are combined in a fixed
//!   order, so a row's result depends on nothing but the row.
//! - The variance is taken about the mean in a second pass, never as `Σ x² - n·m²`, which cancels.
//! - The mean, the root and the quotient are computed in f64; they are one operation a row.
//! - The elementwise part is a plain loop compiled once per instruction set; only sums need intrinsics.

mod back;
mod scalar;
mod vector;

#[cfg(test)]
mod tests;

pub use back::{back, moments};

use crate::isa::{self, Dispatch};
use crate::lanes;

/// Norm kernels of one instruction set.
pub type NormKernels = Dispatch<NormOps>;

/// Function pointers of [`NormKernels`].
#[derive(Clone, Copy, Debug)]
pub struct NormOps {
    /// `Σ x`
    sum: unsafe fn(&[f32]) -> f32,
    /// `Σ (x - mean)²`
    sum_squares: unsafe fn(&[f32], f32) -> f32,
    /// `out = x·scale·w`
    scale: unsafe fn(&[f32], f32, &[f32], &mut [f32]),
    /// `x = x·scale·w`
    scale_in_place: unsafe fn(&mut [f32], f32, &[f32]),
    /// `out = (x - mean)·scale·w + bias`
    shift: unsafe fn(&[f32], Shift<'_>, &mut [f32]),
    /// `x += delta`
    add: unsafe fn(&mut [f32], &[f32]),
}

/// What LayerNorm does to each element once the sums are known.
struct Shift<'a> {
    mean: f32,
    scale: f32,
    w: &'a [f32],
    bias: Option<&'a [f32]>,
}

lanes::compile! {
    vector {
        sum(x: &[f32]) -> f32;
        sum_squares(x: &[f32], mean: f32) -> f32;
    }
    plain scalar {
        scale(x: &[f32], scale: f32, w: &[f32], out: &mut [f32]);
        scale_in_place(x: &mut [f32], scale: f32, w: &[f32]);
        shift(x: &[f32], args: Shift<'_>, out: &mut [f32]);
        add(x: &mut [f32], delta: &[f32]);
    }
}

isa::table! { NormOps by isa { sum, sum_squares, scale, scale_in_place, shift, add } }

impl NormKernels {
    /// Writes the RMSNorm of `x` to `out`. Shapes: all `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    ///
    /// Source: Zhang & Sennrich 2019, arXiv:1910.07467, with `eps` inside the root as llama.cpp has it.
    pub fn rms_norm(&self, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        assert!(
            x.len() == w.len() && x.len() == out.len(),
            "rms_norm: {} inputs, {} weights, {} outputs",
            x.len(),
            w.len(),
            out.len()
        );
        let scale = self.rms_scale(x, eps);
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { (self.ops.scale)(x, scale, w, out) }
    }

    /// Replaces `x` by its RMSNorm; the same bits as [`NormKernels::rms_norm`]. Shapes: both `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm_in_place(&self, x: &mut [f32], w: &[f32], eps: f32) {
        assert_eq!(x.len(), w.len(), "rms_norm_in_place: inputs and weights differ in length");
        let scale = self.rms_scale(x, eps);
        // SAFETY: as in `rms_norm`.
        unsafe { (self.ops.scale_in_place)(x, scale, w) }
    }

    /// Adds `delta` to `residual` and writes the RMSNorm of the sum to `out`: the end of one block and the start of
    /// the next, while the row is in the first-level cache. Shapes: all `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_rms_norm(&self, residual: &mut [f32], delta: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        self.add(residual, delta);
        self.rms_norm(residual, w, eps, out);
    }

    /// Writes the LayerNorm of `x` to `out`; the variance is the biased one. Shapes: all `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    ///
    /// Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    pub fn layer_norm(&self, x: &[f32], w: &[f32], bias: Option<&[f32]>, eps: f32, out: &mut [f32]) {
        assert!(
            x.len() == w.len() && x.len() == out.len() && bias.is_none_or(|bias| bias.len() == x.len()),
            "layer_norm: {} inputs, {} weights, {} outputs, bias {:?}",
            x.len(),
            w.len(),
            out.len(),
            bias.map(<[f32]>::len)
        );
        // SAFETY: as in `rms_norm`.
        let mean = (f64::from(unsafe { (self.ops.sum)(x) }) / x.len() as f64) as f32;
        // SAFETY: as in `rms_norm`.
        let scale = inverse_root(unsafe { (self.ops.sum_squares)(x, mean) }, x.len(), eps);
        // SAFETY: as in `rms_norm`.
        unsafe { (self.ops.shift)(x, Shift { mean, scale, w, bias }, out) }
    }

    /// Replaces `x` by its LayerNorm; the same bits as [`NormKernels::layer_norm`]. Shapes: all `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn layer_norm_in_place(&self, x: &mut [f32], w: &[f32], bias: Option<&[f32]>, eps: f32) {
        assert_eq!(x.len(), w.len(), "layer_norm_in_place: inputs and weights differ in length");
        // SAFETY: as in `rms_norm`.
        let mean = (f64::from(unsafe { (self.ops.sum)(x) }) / x.len() as f64) as f32;
        x.iter_mut().for_each(|v| *v -= mean);
        // SAFETY: as in `rms_norm`.
        let scale = inverse_root(unsafe { (self.ops.sum_squares)(x, 0.0) }, x.len(), eps);
        // SAFETY: as in `rms_norm`.
        unsafe { (self.ops.scale_in_place)(x, scale, w) }
        if let Some(bias) = bias {
            self.add(x, bias);
        }
    }

    /// Adds `delta` to `x`. Shapes: both `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, x: &mut [f32], delta: &[f32]) {
        assert_eq!(x.len(), delta.len(), "add: rows differ in length");
        // SAFETY: as in `rms_norm`.
        unsafe { (self.ops.add)(x, delta) }
    }

    /// Divides `x` by its Euclidean length; a row of zeros stays. What sentence embeddings end with.
    pub fn l2_norm_in_place(&self, x: &mut [f32]) {
        // SAFETY: as in `rms_norm`.
        let sum = f64::from(unsafe { (self.ops.sum_squares)(x, 0.0) });
        if sum > 0.0 {
            let scale = (1.0 / sum.sqrt()) as f32;
            x.iter_mut().for_each(|v| *v *= scale);
        }
    }

    /// Returns `1 / sqrt(mean(x²) + eps)`.
    fn rms_scale(&self, x: &[f32], eps: f32) -> f32 {
        // SAFETY: as in `rms_norm`.
        inverse_root(unsafe { (self.ops.sum_squares)(x, 0.0) }, x.len(), eps)
    }
}

fn inverse_root(sum: f32, n: usize, eps: f32) -> f32 {
    (1.0 / (f64::from(sum) / n as f64 + f64::from(eps)).sqrt()) as f32
}
