//! Softmax and what it is made of: the largest element, the vectorised exponential, sums of exponentials.
//!
//! ```text
//! softmax(x):  m = max(x);  x[i] = e^(x[i] - m);  s = Σ x[i];  x[i] *= 1/s
//! ```
//! - Tails go through the same vector code in a padded register: an element's result never depends on where in the
//!   slice it lies, nor on how the caller cuts its work.
//! - Long sums are taken in blocks of 1024 whose totals are added in f64.

mod scalar;
pub(crate) mod vector;

#[cfg(test)]
mod tests;

use crate::isa::{self, Dispatch};
use crate::lanes;
use ruvllm_cpu::{SharedSlice, ThreadPool};

/// Elements whose exponentials are summed in f32 before the total goes to f64.
const BLOCK: usize = 1024;
/// Blocks that a thread takes at a time: a microsecond or so.
const BLOCKS_AT_ONCE: usize = 8;

/// Softmax kernels of one instruction set.
pub type SoftmaxKernels = Dispatch<SoftmaxOps>;

/// Function pointers of [`SoftmaxKernels`].
#[derive(Clone, Copy, Debug)]
pub struct SoftmaxOps {
    exp: unsafe fn(&mut [f32]),
    max: unsafe fn(&[f32]) -> f32,
    sum: unsafe fn(&[f32]) -> f32,
    exp_sum: unsafe fn(&mut [f32], f32) -> f32,
    sum_exp: unsafe fn(&[f32], f32) -> f32,
    scale: unsafe fn(&mut [f32], f32),
}

lanes::compile! {
    vector {
        exp(x: &mut [f32]);
        max(x: &[f32]) -> f32;
        sum(x: &[f32]) -> f32;
        exp_sum(x: &mut [f32], max: f32) -> f32;
        sum_exp(x: &[f32], max: f32) -> f32;
    }
    plain scalar {
        scale(x: &mut [f32], factor: f32);
    }
}

isa::table! { SoftmaxOps by isa { exp, max, sum, exp_sum, sum_exp, scale } }

impl SoftmaxKernels {
    /// Replaces `x` by its softmax: non-negative, sum 1.
    ///
    /// `-inf` elements (masked) become 0; if all are, or `x` is empty, all stay 0. A NaN or `+inf` makes every element NaN.
    pub fn softmax(&self, x: &mut [f32]) {
        let max = self.max(x);
        let total = self.exp_sum(x, if max == f32::NEG_INFINITY { 0.0 } else { max });
        if total != 0.0 {
            self.scale(x, (1.0 / total) as f32);
        }
    }

    /// Replaces each element by its exponential, within 2 ulp; `-inf` gives 0, NaN stays NaN.
    pub fn exp(&self, x: &mut [f32]) {
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { (self.ops.exp)(x) }
    }

    /// Returns the largest element, NaNs aside; `-inf` for none.
    pub fn max(&self, x: &[f32]) -> f32 {
        // SAFETY: as in `exp`.
        unsafe { (self.ops.max)(x) }
    }

    /// Returns the index of the largest element, NaNs aside: the first of equals, 0 for none.
    pub fn argmax(&self, x: &[f32]) -> usize {
        let (mut best, mut start) = (f32::NEG_INFINITY, 0);
        for (i, block) in x.chunks(BLOCK).enumerate() {
            let max = self.max(block);
            if max > best {
                (best, start) = (max, i * BLOCK);
            }
        }
        start + x[start..].iter().position(|&v| v == best).unwrap_or(0)
    }

    /// Returns the sum. Error: at most `n·ε·Σ|x|`.
    pub fn sum(&self, x: &[f32]) -> f32 {
        // SAFETY: as in `exp`.
        unsafe { (self.ops.sum)(x) }
    }

    /// Replaces each `x[i]` by `e^(x[i] - max)` and returns the sum.
    pub fn exp_sum(&self, x: &mut [f32], max: f32) -> f64 {
        // SAFETY: as in `exp`.
        x.chunks_mut(BLOCK).map(|block| f64::from(unsafe { (self.ops.exp_sum)(block, max) })).sum()
    }

    /// Returns `ln Σ e^x[i]`: what turns logits into log-probabilities. `-inf` for none.
    pub fn log_sum_exp(&self, x: &[f32]) -> f64 {
        let max = self.max(x);
        if max == f32::NEG_INFINITY {
            // Nothing but -inf, or NaNs, which must show.
            return x.iter().map(|&v| f64::from(v)).fold(f64::NEG_INFINITY, |a, v| if v.is_nan() { v } else { a });
        }
        // SAFETY: as in `exp`.
        let total: f64 = x.chunks(BLOCK).map(|block| f64::from(unsafe { (self.ops.sum_exp)(block, max) })).sum();
        f64::from(max) + total.ln()
    }

    /// Returns [`SoftmaxKernels::log_sum_exp`], to the bit, of which each thread sums a part.
    ///
    /// # Panics
    /// Inside a pool's closure.
    pub fn log_sum_exp_by(&self, threads: &ThreadPool, x: &[f32]) -> f64 {
        let mut parts: Vec<f32> = vec![f32::NEG_INFINITY; x.len().div_ceil(BLOCK)];
        let blocks = || x.chunks(BLOCK);
        let each = |parts: &mut [f32], of: &(dyn Fn(&[f32]) -> f32 + Sync)| {
            let parts = SharedSlice::new(parts);
            threads.for_each_short(parts.len(), BLOCKS_AT_ONCE, &|range, _| {
                // SAFETY: `for_each` hands out each block once.
                let parts = unsafe { parts.slice(range.clone()) };
                parts.iter_mut().zip(blocks().skip(range.start)).for_each(|(part, block)| *part = of(block));
            });
        };
        each(&mut parts, &|block| self.max(block));
        let max = self.max(&parts);
        if max == f32::NEG_INFINITY {
            return self.log_sum_exp(x);
        }
        // SAFETY: as in `exp`.
        each(&mut parts, &|block| unsafe { (self.ops.sum_exp)(block, max) });
        f64::from(max) + parts.iter().map(|&part| f64::from(part)).sum::<f64>().ln()
    }

    /// Multiplies each element by `factor`.
    pub fn scale(&self, x: &mut [f32], factor: f32) {
        // SAFETY: as in `exp`.
        unsafe { (self.ops.scale)(x, factor) }
    }
}
