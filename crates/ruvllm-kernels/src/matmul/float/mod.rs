//! The float path: weights of any other type, dequantised tile by tile, times f32 activations.
//!
//! ```text
//! for each chunk of KC = 512 values (always cut at the same places), each tile of R = 8 rows:
//!   w[R][KC] = dequantise, zeros past the end
//!   for each activation row i, row r of the tile:
//!     acc (a vector) = 0;  for each vector of the chunk: acc = fma(w[r], x[i], acc)
//!     out[i][r] += sum of acc's lanes, in a fixed tree
//! ```
//!
//! Each (row, activation row) pair has an accumulator of its own, so tile shapes change no bits. A lane adds at most
//! KC / 4 products before it is reduced: the error grows with a chunk and not with `k`.

#![allow(clippy::needless_range_loop, reason = "tiles are two-dimensional: one index runs through several arrays")]

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(super) mod simd128;

use crate::block::GgmlType;
use crate::dequant::DequantKernels;
use ruvllm_cpu::arena::ALIGN;
use std::ops::Range;

/// Rows of a tile.
pub(super) const R: usize = 8;

/// Values of a row that are dequantised at once: a multiple of every block length.
pub(super) const KC: usize = 512;

/// Activation rows that share a dequantised tile: a chunk of them stays in a second-level cache.
const ROWS_CHUNK: usize = 192;

/// Vectors have at most 16 lanes: chunks and activation rows are padded to this.
pub(super) const LANES: usize = 16;

/// A tile's weights: `[R][KC]`.
#[repr(C, align(64))]
pub(super) struct Tile([[f32; KC]; R]);

const _: () = assert!(align_of::<Tile>() == ALIGN);

/// A chunk of a tile times some activation rows.
pub(super) struct Job<'a> {
    pub(super) weights: &'a Tile,
    /// Values of the chunk, rounded up to a multiple of [`LANES`].
    pub(super) kc: usize,
    /// Activations from the chunk's first value on: row `i` is `acts[i * stride..][..kc]`.
    pub(super) acts: &'a [f32],
    /// Distance between activation rows.
    pub(super) stride: usize,
    /// The activation rows to compute.
    pub(super) rows: &'a [u32],
    /// Where result `(i, r)` goes: `out[i * ld + r]`.
    pub(super) out: *mut f32,
    /// Distance between result rows.
    pub(super) ld: usize,
    /// Rows of the tile that exist, at most [`R`].
    pub(super) n_out: usize,
    /// Whether results are added to what `out` holds.
    pub(super) accumulate: bool,
}

impl Job<'_> {
    /// Returns row `r` of the tile's weights.
    #[inline]
    fn weights(&self, r: usize) -> &[f32] {
        &self.weights.0[r][..self.kc]
    }

    /// Returns the activations of result row `i`.
    #[inline]
    fn act(&self, i: usize) -> &[f32] {
        &self.acts[self.rows[i] as usize * self.stride..][..self.kc]
    }

    /// Stores (or adds) the sum of pair `(i, r)`; rows past the last are dropped.
    ///
    /// # Safety
    /// The job's results may be written.
    #[inline]
    unsafe fn put(&self, i: usize, r: usize, sum: f32) {
        if r < self.n_out {
            // SAFETY: the caller's promise.
            unsafe {
                let out = self.out.add(i * self.ld + r);
                *out = if self.accumulate { *out + sum } else { sum };
            }
        }
    }
}

/// # Safety
/// The CPU has the features of the table row; the job's results may be written.
pub(super) type Kernel = unsafe fn(&Job<'_>);

/// A matrix whose blocks stay as the file has them.
pub(super) struct Blocks<'a> {
    pub(super) ty: GgmlType,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    pub(super) bytes: &'a [u8],
    pub(super) dequant: &'static DequantKernels,
    pub(super) kernel: Kernel,
}

/// Computes rows `w_rows` of the matrix times activation rows `rows`.
///
/// # Safety
/// `out[i * w.n_rows + r]` may be written for `i` in `0..rows.len()` and `r` in `w_rows`.
pub(super) unsafe fn multiply(w: &Blocks<'_>, w_rows: Range<usize>, acts: &[f32], rows: &[u32], out: *mut f32) {
    let stride = w.n_cols.next_multiple_of(LANES);
    let row_bytes = w.ty.row_bytes(w.n_cols).expect("checked when the matrix was made");
    let mut tile = Tile([[0.0; KC]; R]);
    for (part, rows) in rows.chunks(ROWS_CHUNK).enumerate() {
        // SAFETY: within the results.
        let out = unsafe { out.add(part * ROWS_CHUNK * w.n_rows) };
        for k0 in (0..w.n_cols).step_by(KC) {
            let n = KC.min(w.n_cols - k0);
            let kc = n.next_multiple_of(LANES);
            let at = w.ty.row_bytes(k0).expect("chunks are whole blocks");
            let n_bytes = w.ty.row_bytes(n).expect("chunks are whole blocks");
            for first in w_rows.clone().step_by(R) {
                let n_out = R.min(w_rows.end - first);
                for (r, values) in tile.0.iter_mut().enumerate().take(n_out) {
                    let bytes = &w.bytes[(first + r) * row_bytes + at..][..n_bytes];
                    w.dequant.dequantize(w.ty, bytes, &mut values[..n]);
                    values[n..kc].fill(0.0);
                }
                // SAFETY: row `first` of the matrix is among the results.
                let out = unsafe { out.add(first) };
                let (acts, accumulate) = (&acts[k0..], k0 > 0);
                let job = Job { weights: &tile, kc, acts, stride, rows, out, ld: w.n_rows, n_out, accumulate };
                // SAFETY: the kernel's row of the table was picked for this CPU; results are the caller's promise.
                unsafe { (w.kernel)(&job) };
            }
        }
    }
}
