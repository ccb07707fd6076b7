//! Activations: the input rows of a matmul, as f32 or quantised, in buffers that are reused.

use super::MatmulKernels;
use super::format::BLOCK;
use bytemuck::{Pod, Zeroable};
use ruvllm_cpu::arena::AlignedVec;
use ruvllm_cpu::prefetch::prefetch;
use ruvllm_cpu::{SharedSlice, ThreadPool};
use std::fmt;
use std::ops::Range;

/// Format of the activations that a matrix multiplies with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActFormat {
    /// 32-bit floats.
    F32,
    /// Integers with a scale per 32 values: of 16 bits where those are large, of 8 elsewhere.
    Q16,
}

/// Activations that are multiplied with by one instruction.
pub(super) const GROUP: usize = 4;

/// Groups of a block.
pub(super) const N_GROUPS: usize = BLOCK / GROUP;

/// Groups of a block whose activations have 16 bits.
pub(super) const N_LARGE: usize = 2;

/// 32 quantised activations with all that a kernel needs of them: a cache line and a half.
///
/// `x[i] ≈ scale * q[i]` with `q[i] = 256 * hi[i] + lo[i]`, rounded to nearest even. What is large in a block is seldom more
/// than a value or two: of its eight groups of four the two largest, `large`, have high bytes, those of all
/// others are 0. So `scale` is what the others need, `max|x| / 127`, or what the largest needs with 16 bits,
/// `max|x| / 32512`; rounded up to a power of two times 1, 1.25, 1.5 or 1.75. Both bytes stay within ±127: where the low
/// one would be -128, `q` is one larger, a step off instead of half a step. A block with a largest magnitude under 1e-30
/// counts as zeros; one with a NaN or an infinity has a NaN scale, which spreads to every result it takes part in.
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
    /// Two different groups; the high bytes of all others are 0.
    pub(super) large: [u32; N_LARGE],
    _pad: u32,
}

impl ActBlock {
    /// Returns a block of quants' bytes, their sums by halves, and how they were quantised.
    pub(super) fn new(hi: [i8; BLOCK], lo: [i8; BLOCK], half_sums: [i32; 2], grid: Grid) -> ActBlock {
        let mut block = ActBlock { hi, lo, ..Zeroable::zeroed() };
        block.complete(half_sums, grid);
        block
    }

    /// Writes all but the quants.
    #[inline]
    pub(super) fn complete(&mut self, half_sums: [i32; 2], grid: Grid) {
        let sum = half_sums[0] + half_sums[1];
        (self.scale, self.scaled_sum) = (grid.scale, grid.scale * sum as f32);
        (self.neg_sum, self.neg_half_sums) = (-sum, half_sums.map(|sum| -sum));
        (self.large, self._pad) = (grid.large, 0);
    }

    /// Returns a block of zeros.
    pub(super) fn zeros(grid: Grid) -> ActBlock {
        ActBlock::new([0; BLOCK], [0; BLOCK], [0; 2], grid)
    }

    /// Returns `scale * Σq` of a half: what its minimum is multiplied with.
    #[inline(always)]
    pub(super) fn scaled_half_sum(&self, half: usize) -> f32 {
        self.scale * (-self.neg_half_sums[half]) as f32
    }

    /// Returns quant `i`.
    pub(super) fn q(&self, i: usize) -> i32 {
        256 * i32::from(self.hi[i]) + i32::from(self.lo[i])
    }
}

/// How a block is quantised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Grid {
    /// The distance of values that quants are one apart for: 0, or NaN where a value is not finite.
    pub(super) scale: f32,
    /// `1 / scale`; 0 where quants must be 0.
    pub(super) inverse: f32,
    /// See [`ActBlock`].
    pub(super) large: [u32; N_LARGE],
}

/// Bits of an f32's mantissa below the two that a scale may have.
const FINE_BITS: u32 = f32::MANTISSA_DIGITS - 1 - 2;

/// `1 / x` of what the two bits make of 1.
const INVERSES: [f32; 4] = [1.0, 1.0 / 1.25, 1.0 / 1.5, 1.0 / 1.75];

/// What of a [`key`] is a group's number.
const NUMBER: u32 = N_GROUPS as u32 - 1;

/// Returns what orders groups by their largest magnitude, given as bits: no two groups of a block have the same, so every
/// instruction set finds the same ones.
///
/// Magnitudes compare as integers: NaN is above infinity, infinity above every number.
pub(super) fn key(max_bits: u32, group: u32) -> u32 {
    max_bits & !NUMBER | group
}

impl Grid {
    /// Returns how to quantise a block whose groups have these three largest [keys](key), in order.
    #[inline]
    pub(super) fn new([first, second, third]: [u32; N_LARGE + 1]) -> Grid {
        // A millionth smaller at most than what it was made of, which no quant is rounded otherwise for.
        let [largest, third] = [first, third].map(|key| f32::from_bits(key & !NUMBER));
        let large = [first & NUMBER, second & NUMBER];
        if !largest.is_finite() {
            Grid { scale: f32::NAN, inverse: 0.0, large }
        } else if largest < 1e-30 {
            Grid { scale: 0.0, inverse: 0.0, large }
        } else {
            let least = third.max(largest * (1.0 / 256.0)) * (1.0 / 127.0);
            let bits = (least.to_bits() + (1 << FINE_BITS) - 1) >> FINE_BITS;
            let (exponent, mantissa) = (bits & !3, bits & 3);
            // That of the mantissa, and the exponent (of which 1 has 127) the other way round.
            let inverse = INVERSES[mantissa as usize].to_bits() + 1f32.to_bits() - (exponent << FINE_BITS);
            Grid { scale: f32::from_bits(bits << FINE_BITS), inverse: f32::from_bits(inverse), large }
        }
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
    /// `[n][k rounded up to 16]`, padded with zeros.
    floats: AlignedVec<f32>,
    /// `[n][k / 32]`.
    blocks: AlignedVec<ActBlock>,
    /// `0..n_max`: the rows of an ordinary matmul.
    all_rows: Vec<u32>,
}

/// Values from which on it is worth waking the workers.
const PARALLEL_LEN: usize = 8 * 1024;

/// Values of a chunk, a multiple of [`BLOCK`]; more where a row is longer.
const CHUNK_LEN: usize = 2 * 1024;

/// Places where rows that are being made may be cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunking {
    /// Between rows.
    Rows,
    /// Anywhere: each value is made by itself.
    Anywhere,
}

/// Rows that [`Acts::make`] takes while they are made.
#[derive(Debug)]
pub struct MadeRows<'a> {
    /// `[n, k]`, row-major, to be written.
    pub rows: &'a mut [f32],
    /// Number of rows.
    pub n: usize,
    /// Format that they are taken in.
    pub format: ActFormat,
    /// Places where they may be cut.
    pub chunking: Chunking,
}

/// Function that writes a chunk of rows: it gets the chunk's range, its values, and the same range of `N` other buffers.
pub type MakeChunk<'a, const N: usize> = dyn Fn(Range<usize>, &mut [f32], [&mut [f32]; N]) + Sync + 'a;

impl Acts {
    /// Makes room for `n_max` rows of `k_max` values, in both formats (pages never written cost nothing).
    pub fn new(k_max: usize, n_max: usize) -> Acts {
        Acts {
            n: 0,
            k: 0,
            has_f32: false,
            has_q16: false,
            floats: AlignedVec::new(n_max * k_max.next_multiple_of(16)),
            blocks: AlignedVec::new(n_max * k_max.div_ceil(BLOCK)),
            all_rows: (0..n_max as u32).collect(),
        }
    }

    /// Takes `x` (`[n, k]`, row-major) in `format`; what was held before is gone.
    ///
    /// Results do not depend on the number of threads.
    ///
    /// # Panics
    /// If `x` has another size, the buffer is too small, or, but for [`ActFormat::F32`], `k` is not a multiple of 32; if
    /// the table has no kernels that take `format`.
    pub fn set(
        &mut self,
        table: &MatmulKernels,
        threads: &ThreadPool,
        x: &[f32],
        n: usize,
        k: usize,
        format: ActFormat,
    ) {
        self.begin(x, n, k);
        self.add(table, threads, x, format);
    }

    /// Takes rows as `make` writes them: called once for each chunk of the values, with its range and the same range of the
    /// buffers `also`, by any worker, which quantises the chunk while it is in its cache. What was held before is gone.
    ///
    /// Results do not depend on the number of threads if those of `make` do not depend on how the values are cut.
    ///
    /// # Panics
    /// As [`Acts::set`] does, and if a buffer of `also` is shorter than the rows.
    pub fn make<const N: usize>(
        &mut self,
        table: &MatmulKernels,
        threads: &ThreadPool,
        made: MadeRows<'_>,
        also: [&mut [f32]; N],
        make: &MakeChunk<'_, N>,
    ) {
        let MadeRows { rows: x, n, format, chunking } = made;
        let (len, k) = (x.len(), x.len() / n.max(1));
        self.begin(x, n, k);
        let chunk_len = match chunking {
            Chunking::Rows => (CHUNK_LEN / k.max(1)).max(1) * k,
            Chunking::Anywhere => CHUNK_LEN,
        };
        let (shared, also) = (SharedSlice::new(x), also.map(SharedSlice::new));
        let made = |range: Range<usize>| {
            // SAFETY: each chunk is made by one worker, and chunks do not overlap.
            let x = unsafe { shared.slice(range.clone()) };
            // SAFETY: as above.
            let also = also.each_ref().map(|rows| unsafe { rows.slice(range.clone()) });
            make(range, x, also);
            &*x
        };
        match format {
            ActFormat::F32 => {
                in_chunks(threads, len, chunk_len, &|range| _ = made(range));
                self.add(table, threads, x, format);
            }
            ActFormat::Q16 => self.quantize(table, threads, Chunks { len, chunk_len }, made),
        }
    }

    /// Adds a second format of the same rows, for matrices of one layer that differ in what they multiply with.
    ///
    /// # Panics
    /// As [`Acts::set`] does.
    pub fn add(&mut self, table: &MatmulKernels, threads: &ThreadPool, x: &[f32], format: ActFormat) {
        let (n, k) = (self.n, self.k);
        assert_eq!(x.len(), n * k, "activations: {} values given for {n} rows of {k}", x.len());
        match format {
            ActFormat::F32 => {
                let stride = k.next_multiple_of(16);
                assert!(n * stride <= self.floats.len(), "activations: {n} rows of {k} values do not fit");
                copy_rows(threads, x, k, &mut self.floats[..n * stride]);
                self.has_f32 = true;
            }
            ActFormat::Q16 => {
                self.quantize(table, threads, Chunks { len: x.len(), chunk_len: CHUNK_LEN }, |range| &x[range])
            }
        }
    }

    /// Quantises in chunks what `values` returns of each: blocks are independent, so any split gives the same.
    fn quantize<'x>(
        &mut self,
        table: &MatmulKernels,
        threads: &ThreadPool,
        Chunks { len, chunk_len }: Chunks,
        values: impl Fn(Range<usize>) -> &'x [f32] + Sync,
    ) {
        let n_blocks = self.n_blocks();
        let shared = SharedSlice::new(&mut self.blocks[..n_blocks]);
        in_chunks(threads, len, chunk_len, &|range| {
            // SAFETY: chunks are disjoint, and whole blocks.
            let blocks = unsafe { shared.slice(range.start / BLOCK..range.end / BLOCK) };
            table.quantize(values(range), blocks);
        });
        self.has_q16 = true;
    }

    /// Forgets what is held; `n` rows `x` of `k` values are to come.
    fn begin(&mut self, x: &[f32], n: usize, k: usize) {
        assert_eq!(x.len(), n * k, "activations: {} values given for {n} rows of {k}", x.len());
        assert!(n <= self.all_rows.len(), "activations: {n} rows, room for {}", self.all_rows.len());
        (self.n, self.k) = (n, k);
        (self.has_f32, self.has_q16) = (false, false);
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
        }
    }

    pub(super) fn all_rows(&self) -> &[u32] {
        &self.all_rows[..self.n]
    }

    pub(super) fn blocks(&self) -> &[ActBlock] {
        &self.blocks[..self.n * (self.k / BLOCK)]
    }

    pub(super) fn floats(&self) -> &[f32] {
        &self.floats[..self.n * self.k.next_multiple_of(16)]
    }

    /// Prefetches quantised rows, if they are few, all at once: the worker that begins to multiply with them has seldom made
    /// them, and one after the other their lines come slowly from the core that has.
    pub(super) fn prefetch(&self) {
        const MOST_BYTES: usize = 8 * 1024;
        if self.has_q16 && size_of_val(self.blocks()) <= MOST_BYTES {
            prefetch(self.blocks());
        }
    }
}

impl fmt::Debug for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Acts { n, k, has_f32, has_q16, .. } = self;
        write!(f, "Acts({n} x {k}, f32: {has_f32}, q16: {has_q16})")
    }
}

/// Values that are cut into chunks.
struct Chunks {
    len: usize,
    chunk_len: usize,
}

/// Cuts `len` values into chunks and runs `f` on each, shared among the threads; few values are a single chunk.
fn in_chunks(threads: &ThreadPool, len: usize, chunk_len: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    if len < PARALLEL_LEN || threads.n_threads() == 1 {
        return f(0..len);
    }
    threads.for_each(len.div_ceil(chunk_len), 1, &|chunks, _| {
        chunks.for_each(|chunk| f(chunk * chunk_len..len.min((chunk + 1) * chunk_len)));
    });
}

/// Copies rows of `k` values to rows padded with zeros to a multiple of 16.
fn copy_rows(threads: &ThreadPool, x: &[f32], k: usize, to: &mut [f32]) {
    let (stride, k) = (k.next_multiple_of(16), k.max(1));
    let (n, shared) = (x.len() / k, SharedSlice::new(to));
    in_chunks(threads, x.len(), n.div_ceil(4 * threads.n_threads()) * k, &|range| {
        // SAFETY: chunks are disjoint ranges of rows.
        let to = unsafe { shared.slice(range.start / k * stride..range.end / k * stride) };
        for (row, to) in x[range].chunks_exact(k).zip(to.chunks_exact_mut(stride.max(1))) {
            to[..k].copy_from_slice(row);
            to[k..].fill(0.0);
        }
    });
}
