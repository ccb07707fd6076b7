//! Similarities of rows of bytes to one query: what a scan of a memory of int8 keys is made of.
//!
//! ```text
//! dots(q, rows):  out[i] = Σ_k q[k]·rows[i][k]        exact, in i32
//! ```
//! - Rows lie one after another, padded with zeros to a multiple of [`PADDING`]: no tails, and a scan reads one stream.
//! - Four rows at a time share the query's loads, and their sums are added up together.
//! - AVX-512 has only unsigned by signed bytes: a row's bytes are turned to unsigned by flipping their highest bit, which
//!   adds `128·Σ q`, taken away at the end. AVX2 multiplies `|row|` with `±q` instead; with `|q| <= 127` pairs of products
//!   stay within 16 bits (`2·128·127 = 32,512`), which is why a query must not hold -128.

mod scalar;

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

/// Rows are as long as a multiple of this.
pub const PADDING: usize = 64;

/// Distance kernels of one instruction set.
pub type DistanceKernels = Dispatch<DistanceOps>;

/// Function pointers of [`DistanceKernels`].
#[derive(Clone, Copy, Debug)]
pub struct DistanceOps {
    /// The query, the rows, and where their dot products go; lengths were checked.
    dots: unsafe fn(&[i8], &[i8], &mut [i32]),
}

isa::table! { DistanceOps by isa { dots } }

impl DistanceKernels {
    /// Writes the dot products of `query` with each row: the same integers in every row of the table. Shapes: `query`:
    /// `[n]`, `rows`: `[out.len(), n]`.
    ///
    /// # Panics
    /// If `n` is no multiple of [`PADDING`], the lengths do not fit, or the query holds -128.
    pub fn dots(&self, query: &[i8], rows: &[i8], out: &mut [i32]) {
        let (n, n_rows) = (query.len(), out.len());
        assert!(n.is_multiple_of(PADDING), "dots: rows of {n} bytes, no multiple of {PADDING}");
        assert_eq!(rows.len(), n * n_rows, "dots: {} bytes for {n_rows} rows of {n}", rows.len());
        assert!(query.iter().fold(true, |all, &x| all & (x != i8::MIN)), "dots: the query holds -128");
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { (self.ops.dots)(query, rows, out) }
    }
}
