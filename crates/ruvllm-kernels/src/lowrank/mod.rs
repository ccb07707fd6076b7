//! Products with matrices of low rank: what an adapter adds to a linear layer, `y += B·(A·x)`.
//!
//! ```text
//! shrink:  t[m][i] = Σ_k a[i][k]·x[m][k]       k in 16 lanes, ascending; the lanes are added at the end
//! expand:  y[m][j] = y[m][j] + Σ_i t[m][i]·b[i][j]     i ascending, starting from y
//! ```
//! Both factors lie with the rank outside, `a`: `[rank, k]`, `b`: `[rank, n_out]`, so that either is read as straight rows.
//! Every result has an accumulator of its own and an order that depends on nothing but the rank and the lengths: its bits
//! depend neither on the other rows of a batch nor on how tiles are cut. Few rows are bound by reading the factors, so
//! these are also taken in 16 bits and in 8 with a scale per 32; many rows share what was loaded.
//!
//! Sources: Hu et al. 2021 (LoRA, arXiv:2106.09685); the two steps are those of Chen et al. 2023 (Punica,
//! arXiv:2310.18547) and Sheng et al. 2023 (S-LoRA, arXiv:2311.03285), whose gathering is done by the caller.

mod scalar;
mod tiles;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(test)]
mod tests;

use crate::isa::{self, Dispatch};
use half::f16;

/// Values that share a scale in [`Factor::Q8`].
pub const Q8_BLOCK: usize = 32;

/// A factor's rows are padded with zeros to a multiple of this.
pub const PADDING: usize = 32;

/// One factor of an adapter: `[rank, stride]`, rows padded with zeros.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 16-bit floats.
    F16(&'a [f16]),
    /// Bytes with a sign, times a scale per [`Q8_BLOCK`].
    Q8 {
        /// `[rank, stride]`
        quants: &'a [i8],
        /// `[rank, stride / 32]`
        scales: &'a [f32],
    },
}

impl Factor<'_> {
    /// Panics unless the factor holds `rank` rows of `stride` values.
    fn check(&self, rank: usize, stride: usize) {
        let (n, n_scaled) = match self {
            Factor::F32(values) => (values.len(), values.len()),
            Factor::F16(values) => (values.len(), values.len()),
            Factor::Q8 { quants, scales } => (quants.len(), scales.len() * Q8_BLOCK),
        };
        let len = rank * stride;
        assert!(n == len && n_scaled == len, "lowrank: {n} values, {n_scaled} scaled, for {rank} rows of {stride}");
    }
}

/// Rows to shrink; lengths were checked.
struct ShrinkArgs<'a> {
    a: Factor<'a>,
    rank: usize,
    stride: usize,
    /// `[n, k]`
    x: &'a [f32],
    k: usize,
    /// `[n, rank]`
    t: &'a mut [f32],
}

/// Rows to expand; lengths were checked.
struct ExpandArgs<'a> {
    b: Factor<'a>,
    rank: usize,
    stride: usize,
    /// `[n, rank]`
    t: &'a [f32],
    /// `[n, n_out]`
    y: &'a mut [f32],
    n_out: usize,
}

/// Low-rank kernels of one instruction set.
pub type LowRankKernels = Dispatch<LowRankOps>;

/// Function pointers of [`LowRankKernels`].
#[derive(Clone, Copy, Debug)]
pub struct LowRankOps {
    shrink: unsafe fn(&mut ShrinkArgs<'_>),
    expand: unsafe fn(&mut ExpandArgs<'_>),
}

isa::table! { LowRankOps by isa { shrink, expand } }

/// Returns the length of a factor's padded rows of `n` values.
pub fn stride(n: usize) -> usize {
    n.next_multiple_of(PADDING)
}

impl LowRankKernels {
    /// Writes `x·Aᵀ` to `t`. Shapes: `a`: `[rank, stride(k)]`, `x`: `[n, k]`, `t`: `[n, rank]`.
    ///
    /// # Panics
    /// If a length does not fit the others.
    pub fn shrink(&self, a: Factor<'_>, rank: usize, x: &[f32], k: usize, t: &mut [f32]) {
        assert!(rank > 0 && k > 0, "lowrank: rank {rank} over rows of {k}");
        a.check(rank, stride(k));
        let (n, rest) = (x.len() / k, x.len() % k);
        assert!(rest == 0 && t.len() == n * rank, "lowrank: {} values of {} rows, {} results", x.len(), k, t.len());
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU; the lengths fit.
        unsafe { (self.ops.shrink)(&mut ShrinkArgs { a, rank, stride: stride(k), x, k, t }) }
    }

    /// Adds `t·Bᵀ` to `y`, with the factor lying as `Bᵀ`. Shapes: `b`: `[rank, stride(n_out)]`, `t`: `[n, rank]`, `y`:
    /// `[n, n_out]`.
    ///
    /// # Panics
    /// If a length does not fit the others.
    pub fn expand(&self, b: Factor<'_>, rank: usize, t: &[f32], y: &mut [f32], n_out: usize) {
        assert!(rank > 0 && n_out > 0, "lowrank: rank {rank} to rows of {n_out}");
        b.check(rank, stride(n_out));
        let (n, rest) = (y.len() / n_out, y.len() % n_out);
        assert!(
            rest == 0 && t.len() == n * rank,
            "lowrank: {} values to rows of {n_out}, {} results",
            t.len(),
            y.len()
        );
        // SAFETY: as in `shrink`.
        unsafe { (self.ops.expand)(&mut ExpandArgs { b, rank, stride: stride(n_out), t, y, n_out }) }
    }
}
