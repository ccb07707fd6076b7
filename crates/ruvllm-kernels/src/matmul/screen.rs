//! The largest of a matrix's products with a row, without reading all of the matrix.
//!
//! Who decodes greedily asks a head of 100,000 rows for one of them, and a sampler that cuts at top-k for some. A [`Screen`]
//! is the high five bits of a Q8_0 matrix's weights in the panels of Q5_0, and for each row a bound of what the other
//! three can add:
//!
//! ```text
//! c[r]     = coarse[r] · x                                       5.5 bits a weight instead of 8.5
//! reach[r] = c[r] + slack[r] * ‖x‖                               ≥ w[r] · x, by Cauchy-Schwarz
//! least    = the k-th largest exact product of the k panels where c is largest
//! out[r]   = w[r] · x, exact, in panels where some row's reach is `least` or more; -∞ in the others
//! ```
//!
//! Exact products are those of [`matmul`](super::matmul), bit for bit, and the `k` largest of a row are always among
//! them, with all that equal them.

use super::acts::{ActBlock, Acts};
use super::format::{BLOCK, Format, PANEL_ROWS, Q50, Q80, panel_bytes, panel_rows};
use super::int::Panels;
use super::stream::Stream;
use super::{Matrix, Out, Table, matmul};
use crate::arena::LargePages;
use crate::block::GgmlType;
use crate::team::{Shared, Team};
use half::f16;
use std::fmt;

/// Panels that a worker claims at once.
const GRAIN: usize = 64;

/// Inputs longer than this are multiplied in full: their products may overflow, and nothing bounds infinities.
const LENGTH_MAX: f32 = 1e20;

/// What finds the largest products of a matrix.
pub struct Screen {
    coarse: Matrix,
    /// Of each row: the length of its weights less the coarse ones, and what rounding can make of it.
    slack: Vec<f32>,
}

/// What [`Screen::multiply`] knows of the pass at hand, kept for its allocation.
#[derive(Debug, Default)]
pub struct Tops {
    /// The length of each row of activations.
    lengths: Vec<f32>,
    /// Of each panel: the largest coarse product, and the largest reach.
    panels: Vec<(f32, f32)>,
    /// The panels of the largest coarse products.
    likeliest: Vec<u32>,
    /// Their exact products.
    exact: Vec<f32>,
}

impl Screen {
    /// Makes the screen of a matrix that `table`'s kernels multiply: two thirds of its bytes more. `None` for types other than
    /// Q8_0, whose coarse copy would be no smaller, and where a scale is no usable number.
    pub fn new(table: &'static Table, team: &Team, w: &Matrix) -> Option<Screen> {
        let panels = w.panels().filter(|_| w.ty() == GgmlType::Q8_0)?;
        let (n_rows, n_blocks) = (panels.n_rows, panels.n_blocks);
        let (n_panels, coarse_bytes) = (n_rows.div_ceil(PANEL_ROWS), panel_bytes::<Q50>(n_blocks));
        let mut bytes = LargePages::default().take_with(team, n_panels * coarse_bytes);
        let mut slack = vec![0.0; n_panels * PANEL_ROWS];
        let (to, to_slack) = (Shared::new(&mut bytes), Shared::new(&mut slack));
        team.for_each(n_panels, GRAIN, &|range, _| {
            for panel in range {
                let from = &panels.bytes[panel * panels.panel_bytes..(panel + 1) * panels.panel_bytes];
                // SAFETY: `for_each` hands out every panel once, and panels and their rows do not overlap.
                let (to, slack) = unsafe {
                    let rows = panel * PANEL_ROWS..(panel + 1) * PANEL_ROWS;
                    (to.slice(panel * coarse_bytes..(panel + 1) * coarse_bytes), to_slack.slice(rows))
                };
                coarsen(from, n_blocks, to, slack);
            }
        });
        slack.truncate(n_rows);
        if !slack.iter().all(|slack| slack.is_finite()) {
            return None;
        }
        let panels = Panels::new::<Q50>(table, n_rows, w.n_cols(), bytes);
        let coarse = Matrix::of_panels(Q50::TY, w.n_cols(), panels);
        Some(Screen { coarse, slack })
    }

    /// Returns what is read of every row: what to [expect](super::upcoming) before [`Screen::multiply`].
    pub fn coarse(&self) -> &Matrix {
        &self.coarse
    }

    /// Writes products of `w`, which the screen was made of, with all rows of `x` to `out`, `[n, rows of w]`: of each row the
    /// `k` largest, with some others, as [`matmul`] does; -∞ for the rest. Returns which share of `w` was read for it, the
    /// mean over the rows of `x`.
    ///
    /// # Panics
    /// As [`matmul`] does, if `k` is 0, and if `w` is of another shape or type than that of the screen.
    pub fn multiply(&self, team: &Team, w: &Matrix, x: &Acts, k: usize, tops: &mut Tops, out: &mut [f32]) -> f32 {
        assert_eq!((w.n_rows(), w.n_cols()), (self.slack.len(), self.coarse.n_cols()), "screen: another matrix's");
        assert!(w.ty() == GgmlType::Q8_0 && k > 0, "screen: the {k} largest of {w:?}");
        w.check(x, x.n(), out);
        tops.lengths.clear();
        tops.lengths.extend(x.blocks().chunks_exact(x.k() / BLOCK).map(length));
        if k * PANEL_ROWS > w.n_rows() || !tops.lengths.iter().all(|&length| length <= LENGTH_MAX) {
            matmul(team, w, x, out);
            return 1.0;
        }
        matmul(team, &self.coarse, x, out);
        let mut n_read = 0;
        for (row, out) in out.chunks_exact_mut(w.n_rows()).enumerate() {
            self.look(team, tops.lengths[row], out, &mut tops.panels);
            let exact = Exact { w, x, row: row as u32, out: Out(out.as_mut_ptr()) };
            let least = exact.least(team, k, tops);
            n_read += exact.refine(team, least, &tops.panels);
        }
        n_read as f32 / (x.n() * tops.panels.len()).max(1) as f32
    }

    /// Writes what can be said of each panel by the coarse products of a row of this length.
    fn look(&self, team: &Team, length: f32, coarse: &[f32], panels: &mut Vec<(f32, f32)>) {
        panels.resize(coarse.len().div_ceil(PANEL_ROWS), (0.0, 0.0));
        let (n_panels, panels) = (panels.len(), Shared::new(panels));
        team.for_each(n_panels, GRAIN, &|range, _| {
            // SAFETY: `for_each` hands out every panel once.
            let tops = unsafe { panels.slice(range.clone()) };
            for (panel, top) in range.zip(tops) {
                let rows = panel_rows(panel, coarse.len());
                *top = reach(&coarse[rows.clone()], &self.slack[rows], length);
            }
        });
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
    fn least(&self, team: &Team, k: usize, tops: &mut Tops) -> f32 {
        let Tops { panels, likeliest, exact, .. } = tops;
        likeliest.clear();
        likeliest.extend(0..panels.len() as u32);
        let by_top = |a: &u32, b: &u32| panels[*b as usize].0.total_cmp(&panels[*a as usize].0);
        likeliest.select_nth_unstable_by(k - 1, by_top);
        likeliest.truncate(k);
        team.for_each(k, 1, &|range, _| {
            // SAFETY: the panels differ from each other, and `for_each` hands out each once.
            likeliest[range].iter().for_each(|&panel| unsafe { self.panel(panel as usize) });
        });
        exact.clear();
        // SAFETY: the region above is over.
        likeliest.iter().for_each(|&panel| exact.extend(unsafe { self.results(panel as usize) }));
        // The last panel may have fewer than all rows, of which one is enough.
        *exact.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    }

    /// Computes all panels that reach `least`, rules out the others, and returns how many were computed.
    fn refine(&self, team: &Team, least: f32, panels: &[(f32, f32)]) -> usize {
        team.for_each(panels.len(), GRAIN, &|range, _| {
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
        panels.iter().filter(|(_, reach)| *reach >= least).count()
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Screen({} x {})", self.coarse.n_rows(), self.coarse.n_cols())
    }
}

/// Returns the largest coarse product of a panel's rows, and the most that an exact one of them can be.
fn reach(coarse: &[f32], slack: &[f32], length: f32) -> (f32, f32) {
    let mut top = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (c, slack) in coarse.iter().zip(slack) {
        top = (top.0.max(*c), top.1.max(c + slack * length));
    }
    top
}

/// Returns at least the length of a row of activations; NaN if one of them is not finite.
fn length(blocks: &[ActBlock]) -> f32 {
    let squares = blocks.iter().map(|block| {
        let squares: i64 = (0..BLOCK).map(|i| i64::from(block.q(i)).pow(2)).sum();
        squares as f64 * f64::from(block.scale).powi(2)
    });
    up(squares.sum::<f64>().sqrt())
}

/// Rounds up, and by more than the operations before it can have rounded down.
fn up(x: f64) -> f32 {
    (x * (1.0 + 1e-6)) as f32
}

/// Turns a panel of Q8_0 into one of Q5_0, and writes the slack of its rows.
fn coarsen(from: &[u8], n_blocks: usize, to: &mut [u8], slack: &mut [f32]) {
    let (mut rest, mut whole) = ([0f64; PANEL_ROWS], [0f64; PANEL_ROWS]);
    for b in 0..n_blocks {
        let squares = coarsen_quants(
            from[Q80::quants_at(b)..][..Q80::QUANT_BYTES].as_chunks::<64>().0,
            to[Q50::quants_at(b)..][..Q50::QUANT_BYTES].as_chunks_mut::<64>().0,
        );
        let scales = &from[Q80::record_at(b)..][..Q80::SCALE_BYTES];
        let record = &mut to[Q50::record_at(b)..][..Q50::SCALE_BYTES];
        let scales = scales.as_chunks::<2>().0.iter().zip(record.as_chunks_mut::<2>().0);
        for (row, (scale, to)) in scales.enumerate() {
            let scale = f16::from_le_bytes(*scale);
            // A power of two: exact, or infinite, which the slack shows.
            let coarse = f16::from_f32(8.0 * scale.to_f32());
            *to = coarse.to_le_bytes();
            let square = f64::from(coarse.to_f32() / 8.0).powi(2);
            rest[row] += square * f64::from(squares[row]);
            whole[row] += square * (32.0 * 128.0 * 128.0);
        }
    }
    // Either product rounds some five times a block by 2^-24 of what it has by then, at most ‖w‖·‖x‖ each; the sums of
    // reach and slack once more.
    let rounding = f64::from(n_blocks as u32 * 10 + 20) * 2f64.powi(-24);
    for (slack, (rest, whole)) in slack.iter_mut().zip(rest.into_iter().zip(whole)) {
        *slack = up(rest.sqrt() + rounding * whole.sqrt());
    }
}

/// Writes the high five bits of a block's quants, rounded, and returns of each row the sum of squares of what is left.
fn coarsen_quants(from: &[[u8; 64]], to: &mut [[u8; 64]]) -> [u32; PANEL_ROWS] {
    let mut sums = [0u32; PANEL_ROWS];
    let mut fifth = [0u8; 64];
    let (nibbles, high) = to.split_at_mut(4);
    for (j, to) in nibbles.iter_mut().enumerate() {
        let mut squares = [0u8; 64];
        for k in 0..64 {
            let ((a, rest_a), (b, rest_b)) = (five(from[j][k]), five(from[j + 4][k]));
            to[k] = (a & 15) | (b & 15) << 4;
            fifth[k] |= (a >> 4) << j | (b >> 4) << (j + 4);
            squares[k] = rest_a * rest_a + rest_b * rest_b;
        }
        for (sum, squares) in sums.iter_mut().zip(squares.as_chunks::<4>().0) {
            *sum += squares.iter().map(|&square| u32::from(square)).sum::<u32>();
        }
    }
    high[0] = fifth;
    sums
}

/// Returns the nearest multiple of 8, by 8, at most 31; and how far that is off.
#[inline(always)]
fn five(u: u8) -> (u8, u8) {
    let nearest = ((u >> 3) + (u >> 2 & 1)).min(31);
    (nearest, u.abs_diff(nearest << 3))
}
