//! The largest of a matrix's products with a row, without reading all of the matrix.
//!
//! Who decodes greedily asks a head of 100,000 rows for one of them, and a sampler that cuts at top-k for some. A [`HeadShortlist`]
//! is the high five bits of a Q8_0 matrix's weights in the panels of Q5_0, and for each row a bound of what the other
//! three can add. Final states have much in common, so what the low bits add along one direction `m`, of length one, is kept
//! apart, and only what is upright to it has to be bounded:
//!
//! ```text
//! w[r]     = coarse[r] + along[r] * m + rest[r]                  along[r] = (w[r] - coarse[r]) · m
//! c[r]     = coarse[r] · x + along[r] * (m · x)                  5.5 bits a weight instead of 8.5
//! upper_bound[r] = c[r] + ‖rest[r]‖ * ‖x - (m · x) * m‖                ≥ w[r] · x, by Cauchy-Schwarz
//! least    = the k-th largest exact product of the k panels where c is largest
//! out[r]   = w[r] · x, exact, in panels where some row's upper bound is `least` or more; -∞ in the others
//! ```
//!
//! Exact products are those of [`matmul`](super::matmul), bit for bit, and the `k` largest of a row are always among
//! them, with all that equal them. Who wants to know something of all the others has `c`, which is computed anyway
//! ([`HeadShortlist::approx_logits`]): the same bits however many are exact.

use super::acts::{ActBlock, Acts};
use super::format::{BLOCK, Format, PANEL_ROWS, Q50, Q80, panel_bytes, panel_rows};
use super::int::Panels;
use super::region::Out;
use super::stream::Stream;
use super::{ActFormat, MatmulKernels, Matrix, matmul};
use crate::block::GgmlType;
use bytes::Bytes;
use half::f16;
use ruvllm_cpu::arena::LargePages;
use ruvllm_cpu::{SharedSlice, ThreadPool};
use std::fmt;
use std::ops::Range;

/// Panels that a worker claims at least.
const GRAIN: usize = 64;

/// Inputs longer than this are multiplied in full: their products may overflow, and nothing bounds infinities.
const LENGTH_MAX: f32 = 1e20;

/// Coarse copy of a matrix by which its largest products are found.
pub struct HeadShortlist {
    coarse: Matrix,
    /// `[n_cols]`: of length one, or zeros.
    direction: Vec<f32>,
    /// Of each row: what its weights less the coarse ones are along the direction, and the length of what is left of them.
    along: Vec<f32>,
    rest_norms: Vec<f32>,
    /// What rounding can make of a row's products, times the length of `x`.
    rounding: f32,
}

/// What bounds a row of activations.
#[derive(Clone, Copy, Debug)]
struct Length {
    /// At least its length.
    whole: f32,
    /// How much of it is along the direction, and at least the length of what is left.
    along: f32,
    rest: f32,
}

/// Scratch of [`HeadShortlist::multiply`], kept for its allocation.
#[derive(Debug, Default)]
pub struct TopK {
    /// Of each row of activations.
    lengths: Vec<Length>,
    /// Of each panel: the largest product as far as it is known, and the largest upper bound.
    panels: Vec<(f32, f32)>,
    /// The panels of the largest coarse products.
    likeliest: Vec<u32>,
    /// Their exact products.
    exact: Vec<f32>,
}

/// Results of [`HeadShortlist::multiply`].
#[derive(Debug)]
pub struct ShortlistOut<'a> {
    /// Logits of each row that may count.
    pub k: usize,
    /// Becomes the products, `[n, rows of w]`.
    pub logits: &'a mut [f32],
    /// Becomes the approximate products as [`HeadShortlist::approx_logits`] gives them, of the same shape, where they are wanted.
    pub approx: Option<&'a mut [f32]>,
}

impl HeadShortlist {
    /// Makes the shortlist of a matrix that `table`'s kernels multiply: two thirds of its bytes more. `direction`, `[n_cols]`, is where
    /// most rows of activations point, of any length: the mean of some of them; zeros if they point anywhere. It changes what is read
    /// and nothing else. `None` for types other than Q8_0, whose coarse copy would be no smaller, and where a scale is no usable
    /// number.
    ///
    /// # Panics
    /// If the direction is of another width.
    pub fn new(
        table: &'static MatmulKernels,
        threads: &ThreadPool,
        w: &Matrix,
        direction: &[f32],
    ) -> Option<HeadShortlist> {
        assert_eq!(direction.len(), w.n_cols(), "head shortlist: a direction of another width");
        let panels = w.panels().filter(|_| w.ty() == GgmlType::Q8_0)?;
        let (n_rows, n_blocks) = (panels.n_rows, panels.n_blocks);
        let (n_panels, coarse_bytes) = (n_rows.div_ceil(PANEL_ROWS), panel_bytes::<Q50>(n_blocks));
        let mut bytes = LargePages::default().take_with(threads, n_panels * coarse_bytes);
        let direction = of_length_one(direction);
        let mut about = vec![About::default(); n_panels * PANEL_ROWS];
        let (to, to_about) = (SharedSlice::new(&mut bytes), SharedSlice::new(&mut about));
        threads.for_each(n_panels, GRAIN, &|range, _| {
            for panel in range {
                let from = &panels.bytes[panel * panels.panel_bytes..(panel + 1) * panels.panel_bytes];
                // SAFETY: `for_each` hands out every panel once, and panels and their rows do not overlap.
                let (to, about) = unsafe {
                    let rows = panel * PANEL_ROWS..(panel + 1) * PANEL_ROWS;
                    (to.slice(panel * coarse_bytes..(panel + 1) * coarse_bytes), to_about.slice(rows))
                };
                coarsen(from, n_blocks, &direction, to, about);
            }
        });
        about.truncate(n_rows);
        if !about.iter().all(|row| row.rest_norms.is_finite() && row.along.is_finite() && row.rounding.is_finite()) {
            return None;
        }
        let panels = Panels::new(table, Q50::TY, n_rows, w.n_cols(), Bytes::from_owner(bytes));
        let coarse = Matrix::of_panels(Q50::TY, w.n_cols(), panels);
        let rounding = about.iter().map(|row| row.rounding).fold(0.0, f32::max);
        let (along, rest_norms) = about.iter().map(|row| (row.along, row.rest_norms)).unzip();
        Some(HeadShortlist { coarse, direction, along, rest_norms, rounding })
    }

    /// Returns the high bits of the matrix, which are read of every row: the [next share](super::next_shares) before
    /// [`HeadShortlist::multiply`].
    pub fn coarse(&self) -> &Matrix {
        &self.coarse
    }

    /// Writes products of `w`, which the shortlist was made of, with all rows of `x`: of each row the `k` largest, with some others, as
    /// [`matmul`] does; -∞ for the rest. Returns the share of `w` that was read for it, the mean over the rows of `x`.
    ///
    /// # Panics
    /// As [`matmul`] does, if `k` is 0, if `w` is of another shape or type than that of the shortlist, if `x` does not hold
    /// [`ActFormat::Q16`], and if `approx` is of another length than `out`.
    pub fn multiply(&self, threads: &ThreadPool, w: &Matrix, x: &Acts, top_k: &mut TopK, out: ShortlistOut<'_>) -> f32 {
        let ShortlistOut { k, logits: out, mut approx } = out;
        assert_eq!(
            (w.n_rows(), w.n_cols()),
            (self.rest_norms.len(), self.coarse.n_cols()),
            "head shortlist: another matrix's"
        );
        assert!(w.ty() == GgmlType::Q8_0 && k > 0, "head shortlist: the {k} largest of {w:?}");
        assert!(x.has(ActFormat::Q16), "head shortlist: the activations do not hold {:?}", ActFormat::Q16);
        w.check(x, x.n(), out);
        assert!(
            approx.as_ref().is_none_or(|approx| approx.len() == out.len()),
            "head shortlist: approximate products of another shape"
        );
        top_k.lengths.clear();
        top_k.lengths.extend(x.blocks().chunks_exact(x.k() / BLOCK).map(|blocks| length(blocks, &self.direction)));
        if k * PANEL_ROWS > w.n_rows() || !top_k.lengths.iter().all(|length| length.whole <= LENGTH_MAX) {
            approx.into_iter().for_each(|approx| self.approx_logits(threads, x, approx));
            matmul(threads, w, x, out);
            return 1.0;
        }
        matmul(threads, &self.coarse, x, out);
        let mut n_read = 0;
        for (row, out) in out.chunks_exact_mut(w.n_rows()).enumerate() {
            let approx = approx.as_mut().map(|approx| &mut approx[row * w.n_rows()..(row + 1) * w.n_rows()]);
            self.look(threads, top_k.lengths[row], out, approx, &mut top_k.panels);
            let exact = Exact { w, x, row: row as u32, out: Out(out.as_mut_ptr()) };
            let least = exact.least(threads, k, top_k);
            n_read += exact.refine(threads, least, &top_k.panels);
        }
        n_read as f32 / (x.n() * top_k.panels.len()).max(1) as f32
    }

    /// Writes what is known of all products with the rows of `x`, `c`, to `out`: `[n, rows of w]`.
    ///
    /// # Panics
    /// As [`matmul`] does.
    pub fn approx_logits(&self, threads: &ThreadPool, x: &Acts, out: &mut [f32]) {
        matmul(threads, &self.coarse, x, out);
        let rows = out.chunks_exact_mut(self.rest_norms.len().max(1));
        for (out, blocks) in rows.zip(x.blocks().chunks_exact(x.k() / BLOCK)) {
            let (along, n, out) = (length(blocks, &self.direction).along, out.len(), SharedSlice::new(out));
            threads.for_each(n, GRAIN * PANEL_ROWS, &|range, _| {
                // SAFETY: `for_each` hands out every row once.
                let out = unsafe { out.slice(range.clone()) };
                out.iter_mut().zip(&self.along[range]).for_each(|(out, by)| *out = known(*out, *by, along));
            });
        }
    }

    /// Writes what can be said of each panel by the coarse products of a row of this length, and what is known of each to `approx`.
    fn look(
        &self,
        threads: &ThreadPool,
        length: Length,
        coarse: &[f32],
        approx: Option<&mut [f32]>,
        panels: &mut Vec<(f32, f32)>,
    ) {
        panels.resize(coarse.len().div_ceil(PANEL_ROWS), (0.0, 0.0));
        let (n_panels, panels, approx) = (panels.len(), SharedSlice::new(panels), approx.map(SharedSlice::new));
        threads.for_each(n_panels, GRAIN, &|range, _| {
            // SAFETY: `for_each` hands out every panel once.
            let top_k = unsafe { panels.slice(range.clone()) };
            if let Some(approx) = &approx {
                let rows = range.start * PANEL_ROWS..coarse.len().min(range.end * PANEL_ROWS);
                // SAFETY: the panels' rows do not overlap.
                let approx = unsafe { approx.slice(rows.clone()) };
                let known = coarse[rows.clone()]
                    .iter()
                    .zip(&self.along[rows])
                    .map(|(coarse, by)| known(*coarse, *by, length.along));
                approx.iter_mut().zip(known).for_each(|(approx, known)| *approx = known);
            }
            for (panel, top) in range.zip(top_k) {
                *top = self.upper_bound(panel_rows(panel, coarse.len()), coarse, length);
            }
        });
    }

    /// Returns the largest product of some rows as far as it is known, and the most that one of them can be.
    fn upper_bound(&self, rows: Range<usize>, coarse: &[f32], length: Length) -> (f32, f32) {
        let mut top = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        let rows = coarse[rows.clone()].iter().zip(&self.along[rows.clone()]).zip(&self.rest_norms[rows]);
        for ((coarse, along), rest_norms) in rows {
            let known = known(*coarse, *along, length.along);
            top = (top.0.max(known), top.1.max(known + rest_norms * length.rest));
        }
        (top.0, top.1 + self.rounding * length.whole)
    }
}

/// What computes exact products of one row, of panels apart from each other.
struct Exact<'a> {
    w: &'a Matrix,
    x: &'a Acts,
    row: u32,
    /// The row's results, which [`Matrix::check`] knows.
    out: Out,
}

impl Exact<'_> {
    /// Computes a panel.
    ///
    /// # Safety
    /// No other thread touches the results of its rows.
    unsafe fn panel(&self, panel: usize) {
        let rows = panel_rows(panel, self.w.n_rows());
        // SAFETY: `check` passed with the slice of `out`, and the rest is the caller's promise.
        unsafe { self.w.multiply(rows, self.x, &[self.row], self.out.0, Stream::straight()) };
    }

    /// Returns the results of a panel.
    ///
    /// # Safety
    /// No thread writes them meanwhile.
    unsafe fn results(&self, panel: usize) -> &[f32] {
        let rows = panel_rows(panel, self.w.n_rows());
        // SAFETY: the rows are among the results; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.out.0.add(rows.start), rows.len()) }
    }

    /// Returns the `k`-th largest product of the `k` likeliest panels: no more than the `k`-th largest of all.
    fn least(&self, threads: &ThreadPool, k: usize, top_k: &mut TopK) -> f32 {
        let TopK { panels, likeliest, exact, .. } = top_k;
        likeliest.clear();
        likeliest.extend(0..panels.len() as u32);
        let by_top = |a: &u32, b: &u32| panels[*b as usize].0.total_cmp(&panels[*a as usize].0);
        likeliest.select_nth_unstable_by(k - 1, by_top);
        likeliest.truncate(k);
        threads.for_each(k, 1, &|range, _| {
            // SAFETY: the panels differ from each other, and `for_each` hands out each once.
            likeliest[range].iter().for_each(|&panel| unsafe { self.panel(panel as usize) });
        });
        exact.clear();
        // SAFETY: the region above is over.
        likeliest.iter().for_each(|&panel| exact.extend(unsafe { self.results(panel as usize) }));
        // The last panel may have fewer than all rows, of which one is enough.
        *exact.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    }

    /// Computes all panels whose upper bound is `least` or more, rules out the others, and returns how many were computed.
    fn refine(&self, threads: &ThreadPool, least: f32, panels: &[(f32, f32)]) -> usize {
        threads.for_each(panels.len(), GRAIN, &|range, _| {
            for panel in range {
                let rows = panel_rows(panel, self.w.n_rows());
                // SAFETY: each panel's results are written by the worker that claimed it.
                unsafe {
                    match panels[panel].1 >= least {
                        true => self.panel(panel),
                        false => std::slice::from_raw_parts_mut(self.out.0.add(rows.start), rows.len())
                            .fill(f32::NEG_INFINITY),
                    }
                }
            }
        });
        panels.iter().filter(|(_, upper_bound)| *upper_bound >= least).count()
    }
}

impl fmt::Debug for HeadShortlist {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeadShortlist({} x {})", self.coarse.n_rows(), self.coarse.n_cols())
    }
}

/// Returns what is known of a product: the coarse one, and what its row leaves out `by` the length of the activations `along` the direction.
fn known(coarse: f32, by: f32, along: f32) -> f32 {
    coarse + by * along
}

/// Returns what bounds a row of activations; its length is NaN if one of them is not finite.
fn length(blocks: &[ActBlock], direction: &[f32]) -> Length {
    let (mut square, mut along) = (0f64, 0f64);
    for (block, direction) in blocks.iter().zip(direction.as_chunks::<BLOCK>().0) {
        let scale = f64::from(block.scale);
        let squares: i64 = (0..BLOCK).map(|i| i64::from(block.q(i)).pow(2)).sum();
        square += squares as f64 * scale.powi(2);
        along += (0..BLOCK).map(|i| f64::from(block.q(i)) * f64::from(direction[i])).sum::<f64>() * scale;
    }
    // Its length is one but for some 2^-24, which is not little where next to nothing is left.
    let n: f64 = direction.iter().map(|&m| f64::from(m).powi(2)).sum();
    let rest = (square - along.powi(2) / n.max(0.5)).max(0.0);
    Length { whole: up(square.sqrt()), along: along as f32, rest: up(rest.sqrt()) }
}

/// Returns a vector with length one, or zeros where it has none.
fn of_length_one(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    match length.is_normal() {
        true => vector.iter().map(|&x| (f64::from(x) / length) as f32).collect(),
        false => vec![0.0; vector.len()],
    }
}

/// Rounds up, and by more than the operations before it can have rounded down.
fn up(x: f64) -> f32 {
    (x * (1.0 + 1e-6)) as f32
}

/// What a coarse row leaves out.
#[derive(Clone, Copy, Debug, Default)]
struct About {
    along: f32,
    rest_norms: f32,
    rounding: f32,
}

/// What is added to a row's rounding, as a share of its length, for sums of 32 floats (`along`) and a direction that is not quite
/// of length one.
const ROUNDING: f64 = 1e-5;

/// Turns a panel of Q8_0 into one of Q5_0, and writes what its rows leave out.
fn coarsen(from: &[u8], n_blocks: usize, direction: &[f32], to: &mut [u8], about: &mut [About]) {
    let (mut rest, mut whole, mut along) = ([0f64; PANEL_ROWS], [0f64; PANEL_ROWS], [0f64; PANEL_ROWS]);
    for (b, direction) in direction.as_chunks::<BLOCK>().0.iter().enumerate().take(n_blocks) {
        let (squares, products) = coarsen_quants(
            from[Q80::quants_at(b)..][..Q80::QUANT_BYTES].as_chunks::<64>().0,
            direction,
            to[Q50::quants_at(b)..][..Q50::QUANT_BYTES].as_chunks_mut::<64>().0,
        );
        let scales = &from[Q80::record_at(b)..][..Q80::SCALE_BYTES];
        let record = &mut to[Q50::record_at(b)..][..Q50::SCALE_BYTES];
        let scales = scales.as_chunks::<2>().0.iter().zip(record.as_chunks_mut::<2>().0);
        for (row, (scale, to)) in scales.enumerate() {
            let scale = f16::from_le_bytes(*scale);
            // A power of two: exact, or infinite, which the norm shows.
            let coarse = f16::from_f32(8.0 * scale.to_f32());
            *to = coarse.to_le_bytes();
            let square = f64::from(coarse.to_f32() / 8.0).powi(2);
            rest[row] += square * f64::from(squares[row]);
            whole[row] += square * (32.0 * 128.0 * 128.0);
            along[row] += f64::from(coarse.to_f32() / 8.0) * f64::from(products[row]);
        }
    }
    // Either product rounds some five times a block by 2^-24 of what it has by then, at most ‖w‖·‖x‖ each; the sums of
    // the bounds once more.
    let rounding = f64::from(n_blocks as u32 * 10 + 20) * 2f64.powi(-24) + ROUNDING;
    for (row, about) in about.iter_mut().enumerate() {
        let square = (rest[row] - along[row].powi(2)).max(0.0) + ROUNDING * rest[row];
        *about = About {
            along: along[row] as f32,
            rest_norms: up(square.sqrt()),
            rounding: up(rounding * whole[row].sqrt()),
        };
    }
}

/// Writes the high five bits of a block's quants, rounded, and returns of each row the sum of squares of what is left, and its
/// product with the direction.
fn coarsen_quants(
    from: &[[u8; 64]],
    direction: &[f32; BLOCK],
    to: &mut [[u8; 64]],
) -> ([u32; PANEL_ROWS], [f32; PANEL_ROWS]) {
    let (mut sums, mut products) = ([0u32; PANEL_ROWS], [0f32; PANEL_ROWS]);
    let mut fifth = [0u8; 64];
    let (nibbles, high) = to.split_at_mut(4);
    for (j, to) in nibbles.iter_mut().enumerate() {
        let mut rests = [[0i8; 64]; 2];
        for k in 0..64 {
            let ((a, rest_a), (b, rest_b)) = (five(from[j][k]), five(from[j + 4][k]));
            to[k] = (a & 15) | (b & 15) << 4;
            fifth[k] |= (a >> 4) << j | (b >> 4) << (j + 4);
            (rests[0][k], rests[1][k]) = (rest_a, rest_b);
        }
        for (rests, at) in rests.iter().zip([4 * j, 4 * (j + 4)]) {
            let sums = sums.iter_mut().zip(&mut products);
            for ((sum, product), rests) in sums.zip(rests.as_chunks::<4>().0) {
                *sum += rests.iter().map(|&rest| u32::from(rest.unsigned_abs()).pow(2)).sum::<u32>();
                *product += rests.iter().zip(&direction[at..]).map(|(&rest, m)| f32::from(rest) * m).sum::<f32>();
            }
        }
    }
    high[0] = fifth;
    (sums, products)
}

/// Returns the nearest multiple of 8, by 8, at most 31; and what is left above it.
#[inline(always)]
fn five(u: u8) -> (u8, i8) {
    let nearest = ((u >> 3) + (u >> 2 & 1)).min(31);
    (nearest, u.wrapping_sub(nearest << 3) as i8)
}
