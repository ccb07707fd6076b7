//! AVX-512 VNNI for many rows: weights and activations as i16, in pairs that `vpdpwssd` multiplies and adds in i32.
//!
//! One instruction takes all 16 bits of an activation, so a result needs one sum instead of two that are joined for each
//! block, and weights are signed, so nothing is subtracted. What it costs, weights of two bytes each, is paid once for all
//! rows: some blocks of the job's panels are unpacked into the first-level cache, and each tile of 2 panels by 4 rows does
//! hardly more than its 128 products. Of formats with 5 bits and more that is 3 to 15 % faster than bytes (512 rows); those
//! of 4 bits have little to unpack, and lose 2 to 4 %.
//!
//! The integers are those of the `avx512` row, and so are the operations that scale them: both give the same bits.

use super::super::acts::{PairBlock, log2};
use super::super::format::{BLOCK, Format, PANEL_ROWS, panel_bytes};
use super::super::stream::Ahead;
use super::avx512::{block_scales, quants, unpack};
use super::{Job, PAIR_BLOCKS, PAIR_ROWS};
use crate::prefetch::{LINE_BYTES, Level};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Quantises whole blocks, as [`super::avx512::quantize`] does.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) fn quantize(x: &[f32], blocks: &mut [PairBlock]) {
    // Each group of four words holds an even and an odd pair first.
    let order = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let (scale, quants) = quants(x);
        let Some(quants) = quants else {
            *block = PairBlock { log2_scale: log2(scale), scaled_sum: scale * 0.0, ..bytemuck::Zeroable::zeroed() };
            continue;
        };
        let sum = _mm512_reduce_add_epi32(_mm512_add_epi32(quants[0], quants[1]));
        let paired = quants.map(|q| {
            let next = _mm512_slli_epi32::<16>(_mm512_shuffle_epi32::<0b11_10_11_10>(q));
            _mm512_mask_blend_epi16(0xaaaa_aaaa, q, next)
        });
        let words = _mm512_permutex2var_epi32(paired[0], order, paired[1]);
        (block.log2_scale, block.scaled_sum) = (log2(scale), scale * sum as f32);
        // SAFETY: the pairs are 64 bytes.
        unsafe { _mm512_storeu_si512(block.pairs.as_mut_ptr().cast(), words) };
    }
}

/// A block of a panel, unpacked.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Wide {
    /// `[group][even bytes, odd bytes]`, signed.
    pairs: [[__m512i; 2]; BLOCK / 4],
    /// As [`block_scales`] returns them.
    scales: ([__m512; 2], __m512),
}

/// Some blocks of a job's panels: `[panels][PAIR_BLOCKS]`.
type Weights = [MaybeUninit<Wide>; 2 * PAIR_BLOCKS];

/// What a job's results have come to so far, `[rows][panels]`: side by side, where the results themselves lie a row apart and
/// crowd into a few sets of the caches.
type Sums = [MaybeUninit<[__m512; 2]>; PAIR_ROWS];

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run<F: Format>(job: &Job<'_, PairBlock>) {
    assert!(job.rows.len() <= PAIR_ROWS && job.blocks == (0..job.n_blocks), "some rows, and whole ones");
    let mut weights: Weights = [const { MaybeUninit::uninit() }; 2 * PAIR_BLOCKS];
    let mut sums: Sums = [const { MaybeUninit::uninit() }; PAIR_ROWS];
    let n_chunks = job.n_blocks.div_ceil(PAIR_BLOCKS).max(1);
    let n_blocks = job.n_blocks.div_ceil(n_chunks).max(1);
    for first in (0..job.n_blocks).step_by(n_blocks) {
        let blocks = first..job.n_blocks.min(first + n_blocks);
        // SAFETY: the caller's promises, for blocks of the job, which are then unpacked; `i + MR` stays within its rows, each
        // of which has its sums, written with the first blocks.
        unsafe {
            widen::<F>(job, blocks.clone(), &mut weights);
            let (weights, sums) = (weights.as_ptr().cast(), sums.as_mut_ptr().cast());
            let mut i = 0;
            while i < job.rows.len() {
                i += match (job.n_panels, job.rows.len() - i) {
                    (2, 4..) => tile::<F, 2, 4>(job, &blocks, weights, sums, i),
                    (2, 2..) => tile::<F, 2, 2>(job, &blocks, weights, sums, i),
                    (2, _) => tile::<F, 2, 1>(job, &blocks, weights, sums, i),
                    (_, 8..) => tile::<F, 1, 8>(job, &blocks, weights, sums, i),
                    (_, 4..) => tile::<F, 1, 4>(job, &blocks, weights, sums, i),
                    (_, _) => tile::<F, 1, 1>(job, &blocks, weights, sums, i),
                };
            }
        }
    }
}

/// Unpacks some blocks of the job's panels.
///
/// # Safety
/// As [`super::Kernel`] says; `blocks` are of the job, at most [`PAIR_BLOCKS`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn widen<F: Format>(job: &Job<'_, PairBlock>, blocks: Range<usize>, weights: &mut Weights) {
    let (ahead, offset) = (Ahead::straight(job.stream), _mm512_set1_epi16(F::OFFSET as i16));
    for p in 0..job.n_panels {
        for (at, b) in blocks.clone().enumerate() {
            // SAFETY: panel `p` is there, and block `b` in it.
            weights[p * PAIR_BLOCKS + at].write(unsafe {
                let panel = job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks));
                ahead.prefetch::<F, true>(panel, b);
                let mut pairs = [[_mm512_setzero_si512(); 2]; BLOCK / 4];
                for (j, pairs) in pairs.iter_mut().enumerate() {
                    let bytes = unpack::<F>(panel.add(F::quants_at(b)), j);
                    let even = _mm512_and_si512(bytes, _mm512_set1_epi16(0xff));
                    let odd = _mm512_srli_epi16::<8>(bytes);
                    *pairs = [even, odd].map(|half| _mm512_sub_epi16(half, offset));
                }
                Wide { pairs, scales: block_scales::<F>(panel, b) }
            });
        }
    }
}

/// Computes some blocks of `P` panels by the `MR` rows from `i` on; returns `MR`.
///
/// # Safety
/// As [`super::Kernel`] says, with `P` the job's panels and `i + MR` within its rows; `blocks` are of the job, and
/// `weights` are they, unpacked; each of the job's rows has its `sums`, of all blocks before these.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn tile<F: Format, const P: usize, const MR: usize>(
    job: &Job<'_, PairBlock>,
    blocks: &Range<usize>,
    weights: *const Wide,
    sums: *mut [__m512; 2],
    i: usize,
) -> usize {
    let mut acts = [std::ptr::null::<PairBlock>(); MR];
    for r in 0..MR {
        // SAFETY: `Job::check` compared the row index with the buffer, and the blocks with a row.
        acts[r] = unsafe { job.acts.as_ptr().add(job.rows[i + r] as usize * job.n_blocks + blocks.start) };
    }
    // The rows of the next tile; the last one again where there are no more.
    let next_row = |r: usize| job.rows[(i + MR + r).min(job.rows.len() - 1)] as usize;
    let next: [_; MR] =
        std::array::from_fn(|r| job.acts.as_ptr().wrapping_add(next_row(r) * job.n_blocks + blocks.start));
    // SAFETY: row `i` is one of the job's results.
    let out = unsafe { job.out.add(i * job.ld) };
    let mut acc = [[_mm512_setzero_ps(); MR]; P];
    if blocks.start > 0 {
        for p in 0..P {
            for r in 0..MR {
                // SAFETY: the rows' sums are there: the blocks before these wrote them.
                acc[p][r] = unsafe { (*sums.add(i + r))[p] };
            }
        }
    }
    for at in 0..blocks.len() {
        // SAFETY: the block is in each row of activations and, unpacked, in each panel.
        unsafe {
            let act = acts.map(|act| &*act.add(at));
            next.iter().for_each(|next| prefetch(next.wrapping_add(at)));
            let mut w = [&*weights.add(at); P];
            for p in 1..P {
                w[p] = &*weights.add(p * PAIR_BLOCKS + at);
            }
            let mut dot = [[_mm512_setzero_si512(); MR]; P];
            // Written out here, so that the sums stay in registers.
            macro_rules! groups {
                ($($j:literal)*) => { $( group::<P, MR, $j, 0>(w, act, &mut dot); group::<P, MR, $j, 1>(w, act, &mut dot); )* };
            }
            groups!(0 1 2 3);
            if F::HALVES {
                scale_add(&mut acc, &dot, w.map(|w| w.scales.0[0]), act);
                dot = [[_mm512_setzero_si512(); MR]; P];
            }
            groups!(4 5 6 7);
            scale_add(&mut acc, &dot, w.map(|w| w.scales.0[1]), act);
            if F::MIN {
                for r in 0..MR {
                    let sum = _mm512_set1_ps(act[r].scaled_sum);
                    for p in 0..P {
                        acc[p][r] = _mm512_fmadd_ps(w[p].scales.1, sum, acc[p][r]);
                    }
                }
            }
        }
    }
    for p in 0..P {
        for r in 0..MR {
            // SAFETY: the job's results may be written, 16 lanes per panel, and so may the sums.
            unsafe {
                match blocks.end == job.n_blocks {
                    true => _mm512_storeu_ps(out.add(r * job.ld + p * PANEL_ROWS), acc[p][r]),
                    false => (*sums.add(i + r))[p] = acc[p][r],
                }
            }
        }
    }
    MR
}

/// Asks for a block of activations that the next tile reads: rows seldom follow each other closely enough for the hardware to.
#[inline]
fn prefetch(block: *const PairBlock) {
    Level::First.prefetch(block);
    Level::First.prefetch(block.cast::<u8>().wrapping_add(LINE_BYTES));
}

/// Adds the products of the pairs of one parity of group `J`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn group<const P: usize, const MR: usize, const J: usize, const PARITY: usize>(
    w: [&Wide; P],
    act: [&PairBlock; MR],
    dot: &mut [[__m512i; MR]; P],
) {
    for r in 0..MR {
        let a = _mm512_set1_epi32(act[r].pairs[PARITY][J]);
        for p in 0..P {
            dot[p][r] = multiply_add(dot[p][r], w[p].pairs[J][PARITY], a);
        }
    }
}

/// Returns `acc + w * a`, products of i16 added by pairs. Of the intrinsic the compiler makes a multiplication and an
/// addition, which are slower by two fifths.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn multiply_add(mut acc: __m512i, w: __m512i, a: __m512i) -> __m512i {
    // SAFETY: registers only; the function's features have the instruction.
    unsafe {
        asm!(
            "vpdpwssd {acc}, {w}, {a}",
            acc = inout(zmm_reg) acc, w = in(zmm_reg) w, a = in(zmm_reg) a,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    acc
}

/// `acc += dot * (w_scale * a_scale)`, the scales multiplied as [`super::avx512`] does.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn scale_add<const P: usize, const MR: usize>(
    acc: &mut [[__m512; MR]; P],
    dot: &[[__m512i; MR]; P],
    w_scale: [__m512; P],
    act: [&PairBlock; MR],
) {
    for r in 0..MR {
        let log2_scale = _mm512_set1_ps(act[r].log2_scale);
        for p in 0..P {
            let scale = _mm512_scalef_ps(w_scale[p], log2_scale);
            acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p][r]), scale, acc[p][r]);
        }
    }
}
