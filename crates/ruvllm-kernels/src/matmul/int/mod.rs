//! The integer path: panels of 8-bit or narrower weights times activations of two bytes.
//!
//! ```text
//! for each activation row i, lane r (a row of the panel):
//!   acc = 0 (f32)
//!   for each block b of 32:
//!     hi, lo = Σ u[r][b] * a_hi[b], Σ u[r][b] * a_lo[b]            hi: of two groups of four, 0 in the others
//!     dot = 256 * hi + lo - offset * Σ a[b]                        exact, i32
//!     acc = fma(f32(dot), w_scale[r][b] * a_scale[b], acc)         Q6_K: twice, once for each 16
//!     acc = fma(m[r][b], a_scale[b] * Σ a[b], acc)                 formats with a minimum
//!   out[i][r] = acc
//! ```
//!
//! Products of pairs of i16 take `a` whole and have `dot` at once, with the same bits (`avx2`).
//!
//! An activation is `a = 256 * a_hi + a_lo` with both bytes within ±127, so `|256 * hi| ≤ 255 * 127 * 32 * 256 < 2^28`
//! and no sum leaves i32.
//!
//! The order above holds for every tile shape, so a result does not depend on how many rows are computed at once.
//! Cutting the blocks in pieces changes nothing either: the accumulators go through `out` or scratch as f32 and come back.
//! The scalar row multiplies and adds without fusing.

#![allow(clippy::needless_range_loop, reason = "tiles are two-dimensional: one index runs through several arrays")]

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(super) mod simd128;
#[cfg(target_arch = "x86_64")]
mod wide;

use super::acts::{ActBlock, Acts};
use super::format::{BLOCK, PANEL_ROWS};
use super::pack::REPACKERS;
use super::stream::Stream;
use super::{MatmulKernels, int_index};
use crate::block::GgmlType;
use bytes::Bytes;
use std::ops::Range;

/// One or two neighbouring panels times some activation rows, over some of the blocks.
pub(super) struct Job<'a> {
    /// The bytes of one or two panels.
    pub(super) panels: &'a [u8],
    /// How many panels: 1 or 2.
    pub(super) n_panels: usize,
    /// Blocks of 32 in a row.
    pub(super) n_blocks: usize,
    /// The blocks to compute. Where they do not start at 0, `out` holds the sums so far; for K types the start is a multiple
    /// of 8.
    pub(super) blocks: Range<usize>,
    /// All activations, `[rows of the buffer, n_blocks]`.
    pub(super) acts: &'a [ActBlock],
    /// The activation rows to compute.
    pub(super) rows: &'a [u32],
    /// Where result `(i, lane)` goes: `out[i * ld + lane]`, for `i` in `0..rows.len()`, `lane` in `0..16 * n_panels`.
    pub(super) out: *mut f32,
    /// Distance between result rows.
    pub(super) ld: usize,
    /// What is read after the panels.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        expect(dead_code, reason = "these rows leave reading ahead to the hardware")
    )]
    pub(super) stream: Stream<'a>,
}

impl Job<'_> {
    /// Checks what can be checked: with it, kernels stay inside `panels` and `acts`.
    pub(super) fn check(&self, panel_bytes: usize) {
        assert!(matches!(self.n_panels, 1 | 2), "a job has one or two panels");
        assert_eq!(self.panels.len(), self.n_panels * panel_bytes, "a job's panels are whole");
        assert!(self.blocks.end <= self.n_blocks, "a job's blocks lie in the row");
        assert!(self.ld >= self.n_panels * PANEL_ROWS || self.rows.len() == 1, "result rows do not overlap");
        let n_rows = self.acts.len() / self.n_blocks.max(1);
        assert!(self.rows.iter().all(|&row| (row as usize) < n_rows), "a job's activation rows exist");
    }
}

/// A kernel of one format.
///
/// # Safety
/// The CPU has the features of the table row it comes from; [`Job::check`] passed with the format's panel size; `out`
/// may be written where the job says.
pub(super) type Kernel = unsafe fn(&Job<'_>);

/// A repacked matrix.
#[derive(Clone)]
pub(super) struct Panels {
    /// `[panels][panel_bytes]`.
    pub(super) bytes: Bytes,
    pub(super) panel_bytes: usize,
    /// Blocks of 32 in a row.
    pub(super) n_blocks: usize,
    pub(super) n_rows: usize,
    pub(super) kernel: Kernel,
    /// What the kernel takes at once.
    pub(super) chunk: Chunk,
}

impl Panels {
    /// Takes `bytes` for the panels of a matrix of `n_rows` by `n_cols`.
    ///
    /// # Panics
    /// If the type has no panels.
    pub(super) fn new(table: &MatmulKernels, ty: GgmlType, n_rows: usize, n_cols: usize, bytes: Bytes) -> Panels {
        let index = int_index(ty).expect("a type of the integer path");
        let n_blocks = n_cols / BLOCK;
        let panel_bytes = (REPACKERS[index].panel_bytes)(n_blocks);
        Panels { bytes, panel_bytes, n_blocks, n_rows, kernel: table.ops.int[index], chunk: table.ops.chunk }
    }
}

/// What is given to a kernel at once of many rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunk {
    /// Activation rows: with the blocks they stay in a second-level cache.
    pub(super) rows: usize,
    /// Blocks: two panels' and a tile's worth stay in a first-level cache.
    pub(super) blocks: usize,
}

/// For kernels that do not cut rows themselves.
pub(super) const CHUNK: Chunk = Chunk { rows: 516, blocks: 16 };

/// Two panels of this size need no cutting.
const SMALL_BYTES: usize = 24 * 1024;

/// Rows that go through in few enough tiles that cutting does not pay.
const FEW_ROWS: usize = 8;

/// Rows of results that pass through scratch where the last panel is not full.
const SCRATCH_ROWS: usize = 12;

/// Computes rows `w_rows` of the matrix times activation rows `rows`; `stream` says what is read after them.
///
/// # Safety
/// `out[i * w.n_rows + r]` may be written for `i` in `0..rows.len()` and `r` in `w_rows`.
///
/// # Panics
/// If `w_rows` starts within a panel, or an activation row does not exist.
pub(super) unsafe fn multiply(
    w: &Panels,
    w_rows: Range<usize>,
    x: &Acts,
    rows: &[u32],
    out: *mut f32,
    stream: Stream<'_>,
) {
    let whole = rows.len() <= FEW_ROWS || 2 * w.panel_bytes <= SMALL_BYTES;
    let n_chunk = if whole { w.n_blocks } else { w.chunk.blocks };
    assert!(w_rows.start.is_multiple_of(PANEL_ROWS) && w_rows.end <= w.n_rows, "rows are claimed in whole panels");
    let full = w_rows.start / PANEL_ROWS..w_rows.end / PANEL_ROWS;
    let job = |panel: usize, n_panels: usize, blocks: Range<usize>, rows, out, ld| {
        let panels = &w.bytes[panel * w.panel_bytes..(panel + n_panels) * w.panel_bytes];
        let job = Job { panels, n_panels, n_blocks: w.n_blocks, blocks, acts: x.blocks(), rows, out, ld, stream };
        job.check(w.panel_bytes);
        // SAFETY: the kernel was picked for this CPU, the job is checked, and its results are the caller's promise
        // (or our scratch).
        unsafe { (w.kernel)(&job) };
    };
    for (chunk, rows) in rows.chunks(w.chunk.rows).enumerate() {
        // SAFETY: within the results.
        let out = unsafe { out.add(chunk * w.chunk.rows * w.n_rows) };
        for first in (0..w.n_blocks).step_by(n_chunk.max(1)) {
            let blocks = first..w.n_blocks.min(first.saturating_add(n_chunk));
            for panel in full.clone().step_by(2) {
                let n_panels = 2.min(full.end - panel);
                // SAFETY: as above.
                job(panel, n_panels, blocks.clone(), rows, unsafe { out.add(panel * PANEL_ROWS) }, w.n_rows);
            }
        }
        let n_rest = w_rows.end % PANEL_ROWS;
        if n_rest == 0 {
            continue;
        }
        for (part, rows) in rows.chunks(SCRATCH_ROWS).enumerate() {
            let mut scratch = [[0.0f32; PANEL_ROWS]; SCRATCH_ROWS];
            job(full.end, 1, 0..w.n_blocks, rows, scratch.as_mut_ptr().cast(), PANEL_ROWS);
            for (i, lanes) in scratch.iter().enumerate().take(rows.len()) {
                let at = (part * SCRATCH_ROWS + i) * w.n_rows + full.end * PANEL_ROWS;
                // SAFETY: the rows of the last panel that exist are among the results.
                unsafe { std::ptr::copy_nonoverlapping(lanes.as_ptr(), out.add(at), n_rest) };
            }
        }
    }
}
