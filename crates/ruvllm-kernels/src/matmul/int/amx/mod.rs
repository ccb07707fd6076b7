//! AMX: tiles of 16 activation rows by 16 weight rows, `tdpbsud` on a block of 32 values at a time.
//!
//! A panel's vectors (16 rows by 4 consecutive values) are just what the instruction wants as rows of its second
//! operand, and a block of activation rows, at the rows' own distance, is its first. So nothing is shuffled:
//!
//! ```text
//! tmm0, tmm1  activations' high and low bytes    16 rows by 32 (by 16, twice, for scales per 16)
//! tmm2, tmm3  a block of the first and of the second panel    8 rows of 64 bytes
//! tmm4..tmm7  sums of (first panel, high), (first, low), (second, high), (second, low)    16 by 16 i32
//! ```
//!
//! Weights narrower than 8 bits are unpacked once per job and chunk of blocks, for all tiles of activations. Sums go
//! through a buffer to AVX-512 registers, where scales are applied with the operations and in the order of the
//! `avx512` row: both rows give the same bits. Fewer than [`ROWS_MIN`] rows go to that row's kernels.
//!
//! Tiles are configured by the job that uses them and released at its end: their state is a thread's own, and 8 KiB
//! that live on would be saved at each context switch.
//!
//! The six tile instructions are behind [`Tiles`]; all else here is tested with an exact software implementation of
//! them. **The instructions themselves are untested on hardware so far**: the row counts as supported only if
//! [`works`] finds them right on the machine at hand.

#[cfg(test)]
pub(in super::super) mod software;
mod tiles;

pub(in super::super) use tiles::Hardware;

use super::super::acts::ActBlock;
use super::super::format::{BLOCK, Format, PANEL_ROWS, panel_bytes};
use super::{Job, avx512};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;
use tiles::{Shape, Tiles};

/// Returns whether this machine's tile instructions do what they should; asked once.
///
/// # Panics
/// Never, but it executes tile instructions: the caller knows that [`crate::Isa::Amx`] is available.
pub(in super::super) fn works() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| crate::Isa::Amx.is_available() && tiles::check::<Hardware>())
}

/// Rows from which on tiles pay: fewer leave most of a tile empty.
const ROWS_MIN: usize = 4;

/// Rows of activations in a tile.
const MR: usize = 16;

/// Blocks of a panel that are unpacked at once.
const CHUNK: usize = 8;

/// Sums that are buffered before they are scaled: of so many blocks, or halves of blocks.
const UNITS: usize = 4;

const A_HI: usize = 0;
const A_LO: usize = 1;

/// Blocks of the job's panels, unpacked: `[panels][CHUNK]`.
struct Weights {
    quants: [[MaybeUninit<Quants>; CHUNK]; 2],
    scales: [[MaybeUninit<Scales>; CHUNK]; 2],
}

/// What [`avx512::block_scales`] returns.
type Scales = ([__m512; 2], [__m512; 2]);

/// The 8-bit quants of a block: 8 rows of 16 x 4.
#[repr(C, align(64))]
struct Quants([__m512i; BLOCK / 4]);

/// `[units][panels][high, low][rows]` of 16 sums each.
#[repr(C, align(64))]
struct Sums([[[[MaybeUninit<__m512i>; MR]; 2]; 2]; UNITS]);

/// # Safety
/// As [`super::Kernel`] says; `T`'s instructions exist.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run<F: Format, T: Tiles>(job: &Job<'_>) {
    let n = job.rows.len();
    // The rest of a last tile that is too small for one.
    let n_tiled = if n % MR < ROWS_MIN { n - n % MR } else { n };
    if n_tiled > 0 {
        let rows = &job.rows[..n_tiled];
        // SAFETY: the caller's promises, for some of the rows.
        unsafe { tiled::<F, T>(&Job { rows, blocks: job.blocks.clone(), ..*job }) };
    }
    if n_tiled < n {
        let rows = &job.rows[n_tiled..];
        // SAFETY: as above; the rest's results begin `n_tiled` rows on. The CPU has all of the `avx512` row.
        unsafe {
            let out = job.out.add(n_tiled * job.ld);
            avx512::run::<F>(&Job { rows, out, blocks: job.blocks.clone(), ..*job });
        }
    }
}

/// # Safety
/// As [`run`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn tiled<F: Format, T: Tiles>(job: &Job<'_>) {
    let mut weights = Weights {
        quants: [const { [const { MaybeUninit::uninit() }; CHUNK] }; 2],
        scales: [const { [const { MaybeUninit::uninit() }; CHUNK] }; 2],
    };
    let mut tiles = T::default();
    let mut n_configured = 0;
    for first in job.blocks.clone().step_by(CHUNK) {
        let blocks = first..job.blocks.end.min(first + CHUNK);
        // SAFETY: the caller's promises, for blocks of the job and then rows of it; tiles are configured for as many.
        unsafe {
            unpack::<F>(job, blocks.clone(), &mut weights);
            for (at, rows) in job.rows.chunks(MR).enumerate() {
                if rows.len() != n_configured {
                    tiles.configure(&shapes::<F>(rows.len()));
                    n_configured = rows.len();
                }
                let out = job.out.add(at * MR * job.ld);
                tile::<F, T>(&Job { rows, out, blocks: blocks.clone(), ..*job }, &weights, &mut tiles);
            }
        }
    }
    // SAFETY: the instructions exist.
    unsafe { tiles.release() };
}

/// Values that one product takes: a block, or half of one where scales cover 16.
const fn unit_len<F: Format>() -> usize {
    if F::HALVES { BLOCK / 2 } else { BLOCK }
}

/// Returns the tiles' shapes for `mr` activation rows.
fn shapes<F: Format>(mr: usize) -> [Shape; 8] {
    let k = unit_len::<F>();
    let (a, b, c) = (Shape::new(mr, k), Shape::new(k / 4, 64), Shape::new(mr, 64));
    [a, a, b, b, c, c, c, c]
}

/// Unpacks some blocks of the job's panels; 8-bit quants are read where they are.
///
/// # Safety
/// As [`super::Kernel`] says; `blocks` are of the job, at most [`CHUNK`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn unpack<F: Format>(job: &Job<'_>, blocks: Range<usize>, weights: &mut Weights) {
    for p in 0..job.n_panels {
        for (at, b) in blocks.clone().enumerate() {
            // SAFETY: panel `p` is there, and block `b` in it.
            unsafe {
                let panel = job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks));
                weights.scales[p][at].write(avx512::block_scales::<F>(panel, b));
                if F::BITS != 8 {
                    let mut quants = [_mm512_setzero_si512(); BLOCK / 4];
                    for (j, quants) in quants.iter_mut().enumerate() {
                        *quants = avx512::unpack::<F>(panel.add(F::quants_at(b)), j);
                    }
                    weights.quants[p][at].write(Quants(quants));
                }
            }
        }
    }
}

/// Computes a tile of the job's rows (all of them, at most [`MR`]) by its panels and blocks.
///
/// # Safety
/// As [`run`] says; `weights` hold the job's blocks, and `tiles` are configured for its rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn tile<F: Format, T: Tiles>(job: &Job<'_>, weights: &Weights, tiles: &mut T) {
    let mut sums = Sums([const { [const { [const { [const { MaybeUninit::uninit() }; MR] }; 2] }; 2] }; UNITS]);
    let step = UNITS * unit_len::<F>() / BLOCK;
    for first in job.blocks.clone().step_by(step) {
        let blocks = first..job.blocks.end.min(first + step);
        // SAFETY: the caller's promises, for some of the blocks; the sums are those that were just computed.
        unsafe {
            for (at, b) in blocks.clone().enumerate() {
                products::<F, T>(job, weights, b, &mut sums.0[at * BLOCK / unit_len::<F>()..], tiles);
            }
            for p in 0..job.n_panels {
                for i in 0..job.rows.len() {
                    scale::<F>(job, weights, &blocks, &sums, p, i);
                }
            }
        }
    }
}

/// Computes the sums of block `b`, one unit or two.
///
/// # Safety
/// As [`tile`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn products<F: Format, T: Tiles>(
    job: &Job<'_>,
    weights: &Weights,
    b: usize,
    sums: &mut [[[[MaybeUninit<__m512i>; MR]; 2]; 2]],
    tiles: &mut T,
) {
    let mut gathered = MaybeUninit::<[__m512i; MR]>::uninit();
    // SAFETY: `Job::check` compared the row indices with the buffer, and block `b` is in each row.
    let (acts, stride) = unsafe { rows_of_block(job, b, &mut gathered) };
    let at = b - job.blocks.start;
    for (unit, sums) in sums.iter_mut().enumerate().take(BLOCK / unit_len::<F>()) {
        let from = unit * unit_len::<F>();
        // SAFETY: a row of activations starts with 32 high and 32 low bytes; a panel's block has 8 rows of 64 bytes,
        // in the panel or unpacked; a panel's sums are 2 x 16 rows of 64 bytes.
        unsafe {
            tiles.load::<A_HI>(acts.add(from), stride);
            tiles.load::<A_LO>(acts.add(BLOCK + from), stride);
            for p in 0..job.n_panels {
                let quants = if F::BITS == 8 {
                    job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks) + F::quants_at(b))
                } else {
                    weights.quants[p][at].as_ptr().cast()
                };
                let (quants, to) = (quants.add(from / 4 * 64), sums[p].as_mut_ptr().cast::<i32>());
                if p == 0 {
                    product::<T, 2, 4, 5>(tiles, quants, to);
                } else {
                    product::<T, 3, 6, 7>(tiles, quants, to);
                }
            }
        }
    }
}

/// Multiplies the loaded activations with a panel's quants: tile `B`, sums in `HI` and `LO`.
///
/// # Safety
/// As [`products`] says; `quants` are a tile's rows of 64 bytes, and `to` takes 2 x 16 rows of 16 sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn product<T: Tiles, const B: usize, const HI: usize, const LO: usize>(
    tiles: &mut T,
    quants: *const u8,
    to: *mut i32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        tiles.load::<B>(quants, 64);
        tiles.zero::<HI>();
        tiles.zero::<LO>();
        tiles.dot::<HI, A_HI, B>();
        tiles.dot::<LO, A_LO, B>();
        tiles.store::<HI>(to, 64);
        tiles.store::<LO>(to.add(MR * PANEL_ROWS), 64);
    }
}

/// Returns where the job's rows have block `b`, and the distance from row to row: in place where rows follow each
/// other, else gathered.
///
/// # Safety
/// The job's rows exist, and block `b` in them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn rows_of_block(job: &Job<'_>, b: usize, gathered: &mut MaybeUninit<[__m512i; MR]>) -> (*const u8, usize) {
    // SAFETY: the caller's promise.
    let block = |row: u32| unsafe { job.acts.as_ptr().add(row as usize * job.n_blocks + b).cast::<u8>() };
    if job.rows.windows(2).all(|pair| pair[0].wrapping_add(1) == pair[1]) {
        return (block(job.rows[0]), job.n_blocks * size_of::<ActBlock>());
    }
    let to = gathered.as_mut_ptr().cast::<__m512i>();
    for (i, &row) in job.rows.iter().enumerate() {
        // SAFETY: at most 16 rows; a block of activations starts with the 64 bytes that are multiplied.
        unsafe { to.add(i).write(_mm512_loadu_si512(block(row).cast())) };
    }
    (to.cast(), 64)
}

/// Adds the scaled sums of some blocks to the results of panel `p` and row `i`, as the `avx512` row does.
///
/// # Safety
/// As [`tile`] says; `sums` are of `blocks`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn scale<F: Format>(job: &Job<'_>, weights: &Weights, blocks: &Range<usize>, sums: &Sums, p: usize, i: usize) {
    let n_units = BLOCK / unit_len::<F>();
    // SAFETY: the job's results may be read once there are any, and written; sums and weights were written before.
    unsafe {
        let out = job.out.add(i * job.ld + p * PANEL_ROWS);
        let mut acc = if blocks.start > 0 { _mm512_loadu_ps(out) } else { _mm512_setzero_ps() };
        let acts = &job.acts[job.rows[i] as usize * job.n_blocks..][blocks.clone()];
        for (at, act) in acts.iter().enumerate() {
            let (w_scale, min) = weights.scales[p][blocks.start - job.blocks.start + at].assume_init();
            let a_scale = _mm512_set1_ps(act.scale);
            for unit in 0..n_units {
                let [hi, lo] = &sums.0[at * n_units + unit][p];
                let start = if F::HALVES { act.neg_half_sums[unit] } else { act.neg_sum } * F::OFFSET;
                let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(hi[i].assume_init()), lo[i].assume_init());
                let sum = _mm512_add_epi32(sum, _mm512_set1_epi32(start));
                let scale = _mm512_mul_ps(w_scale[unit], a_scale);
                acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc);
            }
            acc = avx512::min_add::<F>(acc, min, act);
        }
        _mm512_storeu_ps(out, acc);
    }
}
