//! Weights of 4 and 5 bits as bytes, and of an activation's two bytes the high one only where it may not be 0.
//!
//! ```text
//! for each block:
//!   lo  = Σ u * a_lo      over all eight groups, in i16: of 4 bits 8 * 2 * 15 * 127 < 2^15, of 5 bits those of four groups
//!   hi  = Σ u * a_hi      over the row's two large groups, wherever they are: 2 * 2 * 31 * 127 < 2^15
//!   dot = 256 * hi + lo - offset * Σ a
//! ```
//!
//! `vpmaddubsw` multiplies 32 bytes and adds pairs in i16; with 1 and with 256 `vpmaddwd` adds pairs of those in i32. From
//! [`unpacked_rows`] on some blocks of the panels are unpacked once for all rows, and a large group's weights are loaded
//! from there; fewer rows unpack weights in registers, a large group's once more.

use super::super::super::acts::{ActBlock, N_GROUPS, N_LARGE};
use super::super::super::format::{Format, PANEL_ROWS, panel_bytes};
use super::super::super::stream::Prefetcher;
use super::super::Job;
use super::{block_scales, min_add, results_so_far, scale_add, start, tile_rows, unpack, write_results};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Blocks of a panel unpacked at once: two panels' stay in a first-level cache.
const BLOCKS: usize = 16;

/// Returns the rows from which on it pays to unpack a panel once for all.
const fn unpacked_rows<F: Format>() -> usize {
    if F::BITS == 5 { 8 } else { 16 }
}

/// A block of a panel, unpacked.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
struct Weights {
    /// `[group][half]`, unsigned.
    bytes: [[__m256i; 2]; N_GROUPS],
    /// `[half]`: scale and minimum.
    scales: [(__m256, __m256); 2],
}

type Scratch = [MaybeUninit<Weights>; 2 * BLOCKS];

/// # Safety
/// As [`Kernel`](super::super::Kernel) says.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(super) unsafe fn run<F: Format>(job: &Job<'_>) {
    // SAFETY: the caller's promises, for blocks of the job, which are then unpacked.
    unsafe {
        if job.rows.len() < unpacked_rows::<F>() {
            return rows::<F, false>(job, job.blocks.clone(), std::ptr::null());
        }
        let mut scratch: Scratch = [const { MaybeUninit::uninit() }; 2 * BLOCKS];
        for first in job.blocks.clone().step_by(BLOCKS) {
            let blocks = first..job.blocks.end.min(first + BLOCKS);
            unpack_blocks::<F>(job, blocks.clone(), &mut scratch);
            rows::<F, true>(job, blocks, scratch.as_ptr().cast());
        }
    }
}

/// Unpacks some blocks of the job's panels: `[panels][BLOCKS]`.
///
/// # Safety
/// As [`Kernel`](super::super::Kernel) says; `blocks` are of the job, at most [`BLOCKS`].
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn unpack_blocks<F: Format>(job: &Job<'_>, blocks: Range<usize>, scratch: &mut Scratch) {
    let ahead = Prefetcher::new(job.stream);
    for p in 0..job.n_panels {
        for (at, b) in blocks.clone().enumerate() {
            // SAFETY: panel `p` is there, and block `b` in it.
            scratch[p * BLOCKS + at].write(unsafe {
                let panel = job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks));
                ahead.prefetch::<F>(panel, b);
                let q = panel.add(F::quants_at(b));
                let mut bytes = [[_mm256_setzero_si256(); 2]; N_GROUPS];
                for (j, bytes) in bytes.iter_mut().enumerate() {
                    *bytes = [unpack::<F>(q, j), unpack::<F>(q.add(32), j)];
                }
                Weights { bytes, scales: [scales::<F>(panel, b, 0), scales::<F>(panel, b, 1)] }
            });
        }
    }
}

/// Computes some blocks of all the job's rows and panels.
///
/// # Safety
/// As [`Kernel`](super::super::Kernel) says; `blocks` are of the job, and with `UNPACKED` `weights` are theirs.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn rows<F: Format, const UNPACKED: bool>(job: &Job<'_>, blocks: Range<usize>, weights: *const Weights) {
    let mut i = 0;
    while i < job.rows.len() {
        let mr = tile_rows(job.rows.len() - i);
        for p in 0..job.n_panels {
            // Without `UNPACKED` there are none, and the pointer is not followed.
            let weights = weights.wrapping_add(p * BLOCKS);
            // SAFETY: the caller's promises; `i + mr` stays within the job's rows.
            unsafe {
                match mr {
                    4 => tile::<F, UNPACKED, 4>(job, &blocks, weights, i, p),
                    2 => tile::<F, UNPACKED, 2>(job, &blocks, weights, i, p),
                    _ => tile::<F, UNPACKED, 1>(job, &blocks, weights, i, p),
                }
            }
        }
        i += mr;
    }
}

/// Computes some blocks of panel `p` by the `MR` rows from `i` on.
///
/// # Safety
/// As [`Kernel`](super::super::Kernel) says, with `i + MR` within the job's rows; `blocks` are of the job, and with
/// `UNPACKED` `weights` are the panel's.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn tile<F: Format, const UNPACKED: bool, const MR: usize>(
    job: &Job<'_>,
    blocks: &Range<usize>,
    weights: *const Weights,
    i: usize,
    p: usize,
) {
    // SAFETY: the panel is there; row `i` is one of the job's results, `PANEL_ROWS` lanes for each panel; `Job::check` compared
    // the indices of rows with the buffer.
    let (panel, out, acts) = unsafe {
        let mut acts = [job.acts.as_ptr(); MR];
        for r in 0..MR {
            acts[r] = acts[r].add(job.rows[i + r] as usize * job.n_blocks);
        }
        (job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks)), job.out.add(i * job.ld + p * PANEL_ROWS), acts)
    };
    // SAFETY: the job's results may be read.
    let mut acc = unsafe { results_so_far(job, blocks, out) };
    let ahead = Prefetcher::new(job.stream);
    for b in blocks.clone() {
        // SAFETY: block `b` is in the panel, in each row of activations and, counted from the first, among the unpacked ones.
        unsafe {
            let wide = weights.wrapping_add(b - blocks.start);
            let q = panel.add(F::quants_at(b));
            if !UNPACKED && i == 0 {
                ahead.prefetch::<F>(panel, b);
            }
            let mut act = acts;
            for act in &mut act {
                *act = act.add(b);
            }
            let scales = |half| if UNPACKED { (*wide).scales[half] } else { scales::<F>(panel, b, half) };
            let scales = [scales(0), scales(1)];
            let mut dot = start::<F, MR>(act.map(|act| (*act).neg_sum * F::OFFSET));
            add_low::<F, UNPACKED, MR>(q, wide, &act, &mut dot);
            add_high::<F, UNPACKED, MR>(q, wide, &act, &mut dot);
            scale_add(&mut acc, &dot, [scales[0].0, scales[1].0], act.map(|act| (*act).scale));
            if F::MIN {
                min_add(&mut acc, [scales[0].1, scales[1].1], act.map(|act| (*act).scaled_sum));
            }
        }
    }
    // SAFETY: the job's results may be written.
    unsafe { write_results(job, &acc, out) };
}

/// Adds the products with the low bytes of a block.
///
/// # Safety
/// `q` or, with `UNPACKED`, `wide` point to a block of the format, and `act` to activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn add_low<F: Format, const UNPACKED: bool, const MR: usize>(
    q: *const u8,
    wide: *const Weights,
    act: &[*const ActBlock; MR],
    dot: &mut [[__m256i; MR]; 2],
) {
    let mut sums = [[_mm256_setzero_si256(); MR]; 2];
    // Written out, so that the shifts of `unpack` are constants.
    macro_rules! steps {
        ($($j:literal)*) => { $(
            // SAFETY: the caller's promise; bytes `4j..4j + 4` of the 32 low ones.
            unsafe {
                let w = if UNPACKED { (*wide).bytes[$j] } else { [unpack::<F>(q, $j), unpack::<F>(q.add(32), $j)] };
                for r in 0..MR {
                    let a = _mm256_set1_epi32((&raw const (*act[r]).lo).cast::<i32>().add($j).read());
                    for half in 0..2 {
                        sums[half][r] = match $j {
                            0 => _mm256_maddubs_epi16(w[half], a),
                            4 if F::BITS == 5 => _mm256_maddubs_epi16(w[half], a),
                            _ => add_products(sums[half][r], w[half], a),
                        };
                    }
                }
            }
            if $j == N_GROUPS - 1 || (F::BITS == 5 && $j == N_GROUPS / 2 - 1) {
                for half in 0..2 {
                    for r in 0..MR {
                        let pairs = _mm256_madd_epi16(sums[half][r], _mm256_set1_epi16(1));
                        dot[half][r] = _mm256_add_epi32(dot[half][r], pairs);
                    }
                }
            }
        )* };
    }
    steps!(0 1 2 3 4 5 6 7);
}

/// Adds the products with the high bytes of a block.
///
/// # Safety
/// As [`add_low`] says.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn add_high<F: Format, const UNPACKED: bool, const MR: usize>(
    q: *const u8,
    wide: *const Weights,
    act: &[*const ActBlock; MR],
    dot: &mut [[__m256i; MR]; 2],
) {
    for r in 0..MR {
        let mut sums = [_mm256_setzero_si256(); 2];
        for k in 0..N_LARGE {
            // SAFETY: the caller's promise; a large group is one of the block's.
            unsafe {
                let j = (*act[r]).large[k] as usize;
                let a = _mm256_set1_epi32((&raw const (*act[r]).hi).cast::<i32>().add(j).read());
                for half in 0..2 {
                    let w = if UNPACKED {
                        (&raw const (*wide).bytes).cast::<__m256i>().add(2 * j + half).read()
                    } else {
                        unpack_at::<F>(q.add(32 * half), j)
                    };
                    sums[half] = _mm256_add_epi16(sums[half], _mm256_maddubs_epi16(w, a));
                }
            }
        }
        for half in 0..2 {
            let pairs = _mm256_madd_epi16(sums[half], _mm256_set1_epi16(256));
            dot[half][r] = _mm256_add_epi32(dot[half][r], pairs);
        }
    }
}

/// Returns `sum + w * a`, products of bytes added by pairs in i16.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn add_products(mut sum: __m256i, w: __m256i, a: __m256i) -> __m256i {
    // SAFETY: registers only; the instructions are AVX2's. The compiler would make trees of the sums, which spill registers.
    unsafe {
        asm!(
            "vpmaddubsw {product}, {w}, {a}",
            "vpaddw {sum}, {sum}, {product}",
            sum = inout(ymm_reg) sum, w = in(ymm_reg) w, a = in(ymm_reg) a, product = out(ymm_reg) _,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Returns what [`unpack`] does, where only a number says which group.
///
/// # Safety
/// `q` points to half of a block of the format, and `j` is one of its groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn unpack_at<F: Format>(q: *const u8, j: usize) -> __m256i {
    // SAFETY: the caller's promise: 32 bytes of a vector.
    let load = |vector: usize| unsafe { _mm256_load_si256(q.add(64 * vector).cast()) };
    let by = |n: usize| _mm_cvtsi32_si128(n as i32);
    let nibbles = _mm256_and_si256(_mm256_srl_epi16(load(j % 4), by(j & 4)), _mm256_set1_epi8(15));
    if F::BITS == 4 {
        return nibbles;
    }
    let high = _mm256_slli_epi16::<4>(_mm256_srl_epi16(load(4), by(j)));
    _mm256_or_si256(nibbles, _mm256_and_si256(high, _mm256_set1_epi8(0x10)))
}

/// Returns the scale and the minimum of half a panel's block.
///
/// # Safety
/// As [`block_scales`] says.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn scales<F: Format>(panel: *const u8, b: usize, half: usize) -> (__m256, __m256) {
    // SAFETY: the caller's promise.
    let ([scale, _], [min, _]) = unsafe { block_scales::<F>(panel, b, half) };
    (scale, min)
}
