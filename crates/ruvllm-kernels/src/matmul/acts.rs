//! Activations: the input rows of a matmul, as f32 or quantised to 16 bits, in buffers that are reused.

use super::Table;
use super::format::BLOCK;
use crate::arena::AlignedVec;
use crate::team::{Shared, Team};
use bytemuck::{Pod, Zeroable};
use std::fmt;
use std::ops::Range;

/// What a matrix multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActFormat {
    /// 32-bit floats.
    F32,
    /// 16-bit integers, in two bytes that are multiplied apart, with a power of two as their scale per 32 values.
    Q16,
    /// The same integers and scales as kernels for many rows take them, where there are such kernels.
    Q16Pairs,
}

/// 32 quantised activations with all that a kernel needs of them: a cache line and a half.
///
/// `x[i] ≈ scale * q[i]` with `q[i] = 256 * hi[i] + lo[i]`, `scale` the least power of two that is not less than
/// `max|x| / 32512`, and `q` rounded to nearest even, so `|q| ≤ 32512 = 127 * 256`. Both bytes stay within ±127, which the
/// i16 sums of AVX2 need: where the low byte would be -128, `q` is one larger, a step off instead of half a step. A block
/// with a largest magnitude under 1e-30 counts as zeros; one with a NaN or an infinity has a NaN scale, which spreads to
/// every result it takes part in. Multiplying with a power of two never rounds, and is the addition of an exponent where
/// that is faster.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C, align(32))]
pub struct ActBlock {
    pub(super) hi: [i8; BLOCK],
    pub(super) lo: [i8; BLOCK],
    pub(super) scale: f32,
    /// `scale * Σq`: what a minimum is multiplied with.
    pub(super) scaled_sum: f32,
    /// `-Σq`, and the same of each 16: times the offset of unsigned weights it starts an accumulator.
    pub(super) neg_sum: i32,
    pub(super) neg_half_sums: [i32; 2],
    /// The logarithm of `scale` to the base 2: an integer, minus infinity for 0, NaN for NaN.
    pub(super) log2_scale: f32,
    _pad: [u32; 2],
}

impl ActBlock {
    /// Completes a block from its quants' bytes, the quants' sums by halves, and the scale.
    pub(super) fn new(hi: [i8; BLOCK], lo: [i8; BLOCK], half_sums: [i32; 2], scale: f32) -> ActBlock {
        let sum = half_sums[0] + half_sums[1];
        ActBlock {
            hi,
            lo,
            scale,
            scaled_sum: scale * sum as f32,
            neg_sum: -sum,
            neg_half_sums: half_sums.map(|sum| -sum),
            log2_scale: log2(scale),
            _pad: [0; 2],
        }
    }

    /// Returns a block of zeros with a scale: 0, or NaN where a value is not finite.
    pub(super) fn zeros(scale: f32) -> ActBlock {
        ActBlock::new([0; BLOCK], [0; BLOCK], [0; 2], scale)
    }

    /// Returns quant `i`.
    pub(super) fn q(&self, i: usize) -> i32 {
        256 * i32::from(self.hi[i]) + i32::from(self.lo[i])
    }
}

/// The quants of an [`ActBlock`] whole, in pairs that one instruction multiplies and adds.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PairBlock {
    /// `[even, odd][j]`: quants `4j` and `4j + 2`, or `4j + 1` and `4j + 3`, as weights of a vector's even and odd bytes
    /// lie; the first in the low half.
    pub(super) pairs: [[i32; BLOCK / 4]; 2],
    /// As in [`ActBlock`].
    pub(super) log2_scale: f32,
    /// `scale * Σq`.
    pub(super) scaled_sum: f32,
}

impl PairBlock {
    /// Returns quant `i`.
    #[cfg(test)]
    pub(super) fn q(&self, i: usize) -> i32 {
        i32::from((self.pairs[i % 2][i / 4] >> (16 * (i % 4 / 2))) as i16)
    }
}

/// Bits of an f32 below its exponent.
const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;

/// Returns `(scale, 1 / scale)` for the bits of a block's largest magnitude; the inverse is 0 where quants must be 0.
///
/// Magnitudes compare as integers: NaN is above infinity, infinity above every number.
pub(super) fn block_scale(max_bits: u32) -> (f32, f32) {
    let max = f32::from_bits(max_bits);
    if !max.is_finite() {
        (f32::NAN, 0.0)
    } else if max < 1e-30 {
        (0.0, 0.0)
    } else {
        // 32512 is 127/64 · 2^14: a larger mantissa wants the next exponent, which the addition carries into.
        let exponent = ((max_bits + 0x1_ffff) >> MANTISSA_BITS) - 14;
        let power = |exponent| f32::from_bits(exponent << MANTISSA_BITS);
        (power(exponent), power(2 * 127 - exponent))
    }
}

/// Returns the logarithm of 0, a power of two or NaN.
pub(super) fn log2(scale: f32) -> f32 {
    match scale {
        0.0 => f32::NEG_INFINITY,
        _ if scale.is_nan() => scale,
        _ => (scale.to_bits() >> MANTISSA_BITS) as f32 - 127.0,
    }
}

/// Input rows of matmuls, quantised once and shared by every matrix that reads them.
///
/// Sized once and reused: `set` allocates nothing.
pub struct Acts {
    n: usize,
    k: usize,
    has_f32: bool,
    has_q16: bool,
    has_pairs: bool,
    /// `[n][k rounded up to 16]`, padded with zeros.
    floats: AlignedVec<f32>,
    /// `[n][k / 32]`.
    blocks: AlignedVec<ActBlock>,
    /// `[n][k / 32]`.
    pairs: AlignedVec<PairBlock>,
    /// `0..n_max`: the rows of an ordinary matmul.
    all_rows: Vec<u32>,
}

/// Values from which on it is worth waking the team.
const PARALLEL_LEN: usize = 8 * 1024;

/// Values of a piece, a multiple of [`BLOCK`]; more where a row is longer.
const PIECE_LEN: usize = 2 * 1024;

/// Where rows that are being made may be cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Between rows.
    Rows,
    /// Anywhere: each value is made by itself.
    Anywhere,
}

impl Acts {
    /// Makes room for `n_max` rows of `k_max` values, in all formats (pages never written cost nothing).
    pub fn new(k_max: usize, n_max: usize) -> Acts {
        Acts {
            n: 0,
            k: 0,
            has_f32: false,
            has_q16: false,
            has_pairs: false,
            floats: AlignedVec::new(n_max * k_max.next_multiple_of(16)),
            blocks: AlignedVec::new(n_max * k_max.div_ceil(BLOCK)),
            pairs: AlignedVec::new(n_max * k_max.div_ceil(BLOCK)),
            all_rows: (0..n_max as u32).collect(),
        }
    }

    /// Takes `x` (`[n, k]`, row-major) in `format`; what was held before is gone.
    ///
    /// Results do not depend on the team's size.
    ///
    /// # Panics
    /// If `x` has another size, the buffer is too small, or, but for [`ActFormat::F32`], `k` is not a multiple of 32; if
    /// the table has no kernels that take `format`.
    pub fn set(&mut self, table: &Table, team: &Team, x: &[f32], n: usize, k: usize, format: ActFormat) {
        self.begin(x, n, k);
        self.add(table, team, x, format);
    }

    /// Takes `x` (`[n, k]`) in `format` as `make` writes it: called once for each piece of the values, with its range, by
    /// any worker, who quantises the piece while it is near. What was held before is gone.
    ///
    /// Results do not depend on the team's size if those of `make` do not depend on how the values are cut.
    ///
    /// # Panics
    /// As [`Acts::set`] does.
    pub fn make(
        &mut self,
        (table, team): (&Table, &Team),
        (x, n, k): (&mut [f32], usize, usize),
        (format, cut): (ActFormat, Cut),
        make: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
    ) {
        self.begin(x, n, k);
        let piece_len = match cut {
            Cut::Rows => (PIECE_LEN / k.max(1)).max(1) * k,
            Cut::Anywhere => PIECE_LEN,
        };
        let (len, shared) = (x.len(), Shared::new(x));
        let made = |range: Range<usize>| {
            // SAFETY: each piece is made by one worker, and pieces do not overlap.
            let x = unsafe { shared.slice(range.clone()) };
            make(range, x);
            &*x
        };
        match format {
            ActFormat::F32 => {
                in_pieces(team, len, piece_len, &|range| _ = made(range));
                self.add(table, team, x, format);
            }
            ActFormat::Q16 | ActFormat::Q16Pairs => self.quantize((table, team), format, (len, piece_len), made),
        }
    }

    /// Adds a second format of the same rows, for matrices of one layer that differ in what they multiply with.
    ///
    /// # Panics
    /// As [`Acts::set`] does.
    pub fn add(&mut self, table: &Table, team: &Team, x: &[f32], format: ActFormat) {
        let (n, k) = (self.n, self.k);
        assert_eq!(x.len(), n * k, "activations: {} values given for {n} rows of {k}", x.len());
        match format {
            ActFormat::F32 => {
                let stride = k.next_multiple_of(16);
                assert!(n * stride <= self.floats.len(), "activations: {n} rows of {k} values do not fit");
                copy_rows(team, x, k, &mut self.floats[..n * stride]);
                self.has_f32 = true;
            }
            ActFormat::Q16 | ActFormat::Q16Pairs => {
                self.quantize((table, team), format, (x.len(), PIECE_LEN), |range| &x[range]);
            }
        }
    }

    /// Takes what `values` returns of each piece in a format of integers.
    fn quantize<'x>(
        &mut self,
        (table, team): (&Table, &Team),
        format: ActFormat,
        cut: (usize, usize),
        values: impl Fn(Range<usize>) -> &'x [f32] + Sync,
    ) {
        let n_blocks = self.n_blocks();
        if format == ActFormat::Q16Pairs {
            quantize(team, cut, values, &mut self.pairs[..n_blocks], |x, to| table.quantize_pairs(x, to));
            self.has_pairs = true;
        } else {
            quantize(team, cut, values, &mut self.blocks[..n_blocks], |x, to| table.quantize(x, to));
            self.has_q16 = true;
        }
    }

    /// Forgets what is held; `n` rows `x` of `k` values are to come.
    fn begin(&mut self, x: &[f32], n: usize, k: usize) {
        assert_eq!(x.len(), n * k, "activations: {} values given for {n} rows of {k}", x.len());
        assert!(n <= self.all_rows.len(), "activations: {n} rows, room for {}", self.all_rows.len());
        (self.n, self.k) = (n, k);
        (self.has_f32, self.has_q16, self.has_pairs) = (false, false, false);
    }

    /// Returns how many blocks the rows are.
    fn n_blocks(&self) -> usize {
        let (n, k) = (self.n, self.k);
        assert!(k.is_multiple_of(BLOCK), "activations: rows of {k} values are not whole blocks of 32");
        let n_blocks = n * (k / BLOCK);
        assert!(n_blocks <= self.blocks.len(), "activations: {n} rows of {k} values do not fit");
        n_blocks
    }

    /// Returns the number of rows.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Returns the length of a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns whether the rows are held in `format`.
    pub fn has(&self, format: ActFormat) -> bool {
        match format {
            ActFormat::F32 => self.has_f32,
            ActFormat::Q16 => self.has_q16,
            ActFormat::Q16Pairs => self.has_pairs,
        }
    }

    pub(super) fn all_rows(&self) -> &[u32] {
        &self.all_rows[..self.n]
    }

    pub(super) fn blocks(&self) -> &[ActBlock] {
        &self.blocks[..self.n * (self.k / BLOCK)]
    }

    pub(super) fn pairs(&self) -> &[PairBlock] {
        &self.pairs[..self.n * (self.k / BLOCK)]
    }

    pub(super) fn floats(&self) -> &[f32] {
        &self.floats[..self.n * self.k.next_multiple_of(16)]
    }
}

impl fmt::Debug for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Acts { n, k, has_f32, has_q16, has_pairs, .. } = self;
        write!(f, "Acts({n} x {k}, f32: {has_f32}, q16: {has_q16}, pairs: {has_pairs})")
    }
}

/// Cuts `len` values into pieces and runs `f` on each, shared among the team; few values are a single piece.
fn in_pieces(team: &Team, len: usize, piece_len: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    if len < PARALLEL_LEN || team.n_threads() == 1 {
        return f(0..len);
    }
    team.for_each(len.div_ceil(piece_len), 1, &|pieces, _| {
        f(pieces.start * piece_len..len.min(pieces.end * piece_len));
    });
}

/// Copies rows of `k` values to rows padded with zeros to a multiple of 16.
fn copy_rows(team: &Team, x: &[f32], k: usize, to: &mut [f32]) {
    let (stride, k) = (k.next_multiple_of(16), k.max(1));
    let (n, shared) = (x.len() / k, Shared::new(to));
    in_pieces(team, x.len(), n.div_ceil(4 * team.n_threads()) * k, &|range| {
        // SAFETY: pieces are disjoint ranges of rows.
        let to = unsafe { shared.slice(range.start / k * stride..range.end / k * stride) };
        for (row, to) in x[range].chunks_exact(k).zip(to.chunks_exact_mut(stride.max(1))) {
            to[..k].copy_from_slice(row);
            to[k..].fill(0.0);
        }
    });
}

/// Quantises in pieces what `values` returns of each: blocks are independent, so any split gives the same.
fn quantize<'x, B: Send>(
    team: &Team,
    (len, piece_len): (usize, usize),
    values: impl Fn(Range<usize>) -> &'x [f32] + Sync,
    blocks: &mut [B],
    quantize: impl Fn(&[f32], &mut [B]) + Sync,
) {
    let shared = Shared::new(blocks);
    in_pieces(team, len, piece_len, &|range| {
        // SAFETY: pieces are disjoint, and whole blocks.
        let blocks = unsafe { shared.slice(range.start / BLOCK..range.end / BLOCK) };
        quantize(values(range), blocks);
    });
}
