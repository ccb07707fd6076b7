//! AVX-512 VNNI for more than eight rows: weights are unpacked once for all of them, and of an activation's two bytes the
//! high one is multiplied only where it may not be 0.
//!
//! ```text
//! for some blocks at a time:
//!   unpack them, of one or two panels, into the first-level cache        8 vectors of bytes a block
//!   for each tile of rows, each of the blocks:
//!     dot = Σ u * a_hi    over the row's two large groups, wherever they are: the vector is found by its number
//!     dot = 256 * dot - offset * Σ a
//!     dot = dot + Σ u * a_lo    over all eight groups
//!     acc = fma(f32(dot), w_scale * a_scale, acc)
//! ```
//!
//! Ten dot products instead of sixteen (but for scales per 16, where either half has both bytes of all groups), and one sum
//! instead of two that are joined. The integers are those of the `avx512` row's small tiles, and so are the operations
//! that scale them: both give the same bits.
//!
//! Of two panels and `MR` rows a weight is loaded once for `MR` products and an activation once for two: 2 x 4 keeps eight
//! sums in i32 and eight in f32 in registers, and few of either to load.

use super::super::acts::{ActBlock, N_GROUPS, N_LARGE};
use super::super::format::{Format, PANEL_ROWS, panel_bytes};
use super::super::stream::Prefetcher;
use super::Job;
use super::avx512::{block_scales, min_add, times_offset, unpack};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most rows of a job: their sums so far stay in a first-level cache of 32 KiB.
pub(super) const ROWS: usize = 256;

/// Blocks that are unpacked at once: two panels' stay in a first-level cache.
const BLOCKS: usize = 8;

/// Up to so many rows, blocks are unpacked in smaller pieces: their weights come as fast as memory gives them, and are not
/// asked for in bursts.
const FEW_ROWS: usize = 31;
const FEW_BLOCKS: usize = 4;

/// A block of a panel, unpacked: a byte a weight, unsigned.
#[repr(C, align(64))]
struct Bytes([__m512i; N_GROUPS]);

/// A block of a panel: where its bytes are, and its scales as [`block_scales`] returns them.
#[derive(Clone, Copy)]
struct Weights {
    bytes: *const u8,
    scales: ([__m512; 2], [__m512; 2]),
}

impl Weights {
    /// Returns block `b` of a panel, unpacked to `scratch` but for 8-bit weights, which are read where they are.
    ///
    /// # Safety
    /// `panel` points to a panel, and `b` is one of its blocks.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
    unsafe fn of<F: Format>(panel: *const u8, b: usize, scratch: &mut MaybeUninit<Bytes>) -> Weights {
        // SAFETY: the caller's promise.
        unsafe {
            let quants = panel.add(F::quants_at(b));
            let scales = block_scales::<F>(panel, b);
            if F::BITS == 8 {
                return Weights { bytes: quants, scales };
            }
            let mut bytes = [_mm512_setzero_si512(); N_GROUPS];
            for (j, bytes) in bytes.iter_mut().enumerate() {
                *bytes = unpack::<F>(quants, j);
            }
            Weights { bytes: std::ptr::from_ref(scratch.write(Bytes(bytes))).cast(), scales }
        }
    }
}

/// Some blocks of a job's panels, `[panels][BLOCKS]`.
struct Scratch {
    bytes: [MaybeUninit<Bytes>; 2 * BLOCKS],
    weights: [MaybeUninit<Weights>; 2 * BLOCKS],
}

/// What a job's results have come to so far, `[rows][panels]`: side by side, where the results themselves lie a row apart and
/// crowd into a few sets of the caches.
type Sums = [MaybeUninit<[__m512; 2]>; ROWS];

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) unsafe fn run<F: Format>(job: &Job<'_>) {
    assert!(job.rows.len() <= ROWS, "a job has at most {ROWS} rows");
    let mut scratch = Scratch {
        bytes: [const { MaybeUninit::uninit() }; 2 * BLOCKS],
        weights: [const { MaybeUninit::uninit() }; 2 * BLOCKS],
    };
    let mut sums: Sums = [const { MaybeUninit::uninit() }; ROWS];
    let most = if job.rows.len() <= FEW_ROWS { FEW_BLOCKS } else { BLOCKS };
    let n_chunks = job.blocks.len().div_ceil(most).max(1);
    let n_blocks = job.blocks.len().div_ceil(n_chunks).max(1);
    for first in job.blocks.clone().step_by(n_blocks) {
        let blocks = first..job.blocks.end.min(first + n_blocks);
        // SAFETY: the caller's promises, for blocks of the job, which are then unpacked; `i + MR` stays within its rows, each
        // of which has its sums, written with the first blocks.
        unsafe {
            widen::<F>(job, blocks.clone(), &mut scratch);
            let (weights, sums) = (scratch.weights.as_ptr().cast(), sums.as_mut_ptr().cast());
            let mut i = 0;
            while i < job.rows.len() {
                i += match (job.n_panels, job.rows.len() - i) {
                    (2, 4..) => tile::<F, 2, 4>(job, &blocks, weights, sums, i),
                    (2, 2..) => tile::<F, 2, 2>(job, &blocks, weights, sums, i),
                    (2, _) => tile::<F, 2, 1>(job, &blocks, weights, sums, i),
                    (_, 8..) => tile::<F, 1, 8>(job, &blocks, weights, sums, i),
                    (_, 4..) => tile::<F, 1, 4>(job, &blocks, weights, sums, i),
                    (_, 2..) => tile::<F, 1, 2>(job, &blocks, weights, sums, i),
                    (_, _) => tile::<F, 1, 1>(job, &blocks, weights, sums, i),
                };
            }
        }
    }
}

/// Unpacks some blocks of the job's panels.
///
/// # Safety
/// As [`super::Kernel`] says; `blocks` are of the job, at most [`BLOCKS`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn widen<F: Format>(job: &Job<'_>, blocks: Range<usize>, scratch: &mut Scratch) {
    let ahead = Prefetcher::new(job.stream);
    for p in 0..job.n_panels {
        for (at, b) in blocks.clone().enumerate() {
            let at = p * BLOCKS + at;
            // SAFETY: panel `p` is there, and block `b` in it.
            unsafe {
                let panel = job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks));
                ahead.prefetch::<F>(panel, b);
                let weights = Weights::of::<F>(panel, b, &mut scratch.bytes[at]);
                scratch.weights[at].write(weights);
            }
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
    job: &Job<'_>,
    blocks: &Range<usize>,
    weights: *const Weights,
    sums: *mut [__m512; 2],
    i: usize,
) -> usize {
    let mut acts = [std::ptr::null::<ActBlock>(); MR];
    for r in 0..MR {
        // SAFETY: `Job::check` compared the row index with the buffer, and the blocks with a row.
        acts[r] = unsafe { job.acts.as_ptr().add(job.rows[i + r] as usize * job.n_blocks + blocks.start) };
    }
    // SAFETY: row `i` is one of the job's results.
    let out = unsafe { job.out.add(i * job.ld) };
    let mut acc = [[_mm512_setzero_ps(); MR]; P];
    if blocks.start > 0 {
        for p in 0..P {
            for r in 0..MR {
                // SAFETY: the results or sums are there: the blocks before these wrote them.
                acc[p][r] = unsafe {
                    match blocks.start == job.blocks.start {
                        true => _mm512_loadu_ps(out.add(r * job.ld + p * PANEL_ROWS)),
                        false => (*sums.add(i + r))[p],
                    }
                };
            }
        }
    }
    for at in 0..blocks.len() {
        // SAFETY: the block is in each row of activations and, unpacked, in each panel.
        unsafe {
            let act = acts.map(|act| &*act.add(at));
            let mut w = [&*weights.add(at); P];
            for p in 1..P {
                w[p] = &*weights.add(p * BLOCKS + at);
            }
            add_block::<F, P, MR>(&mut acc, w, act);
        }
    }
    for p in 0..P {
        for r in 0..MR {
            // SAFETY: the job's results may be written, 16 lanes per panel, and so may the sums.
            unsafe {
                match blocks.end == job.blocks.end {
                    true => _mm512_storeu_ps(out.add(r * job.ld + p * PANEL_ROWS), acc[p][r]),
                    false => (*sums.add(i + r))[p] = acc[p][r],
                }
            }
        }
    }
    MR
}

/// Adds the products of a block.
///
/// # Safety
/// `w` points to the bytes of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn add_block<F: Format, const P: usize, const MR: usize>(
    acc: &mut [[__m512; MR]; P],
    w: [&Weights; P],
    act: [&ActBlock; MR],
) {
    // SAFETY: the caller's promise.
    unsafe {
        if F::HALVES {
            let mut dot = high::<F, P, MR, 4>(w, act, |_| [0, 1, 2, 3], |act| act.neg_half_sums[0]);
            low::<P, MR, 0>(w, act, &mut dot);
            scale_add::<P, MR, 0>(acc, &dot, w, act);
            let mut dot = high::<F, P, MR, 4>(w, act, |_| [4, 5, 6, 7], |act| act.neg_half_sums[1]);
            low::<P, MR, 1>(w, act, &mut dot);
            scale_add::<P, MR, 1>(acc, &dot, w, act);
        } else {
            let mut dot = high::<F, P, MR, N_LARGE>(w, act, |act| act.large, |act| act.neg_sum);
            low::<P, MR, 0>(w, act, &mut dot);
            low::<P, MR, 1>(w, act, &mut dot);
            scale_add::<P, MR, 0>(acc, &dot, w, act);
        }
    }
    for r in 0..MR {
        for p in 0..P {
            acc[p][r] = min_add::<F>(acc[p][r], w[p].scales.1, act[r]);
        }
    }
}

/// Returns the integer sums of a block, or of a half of it, as far as they do not come from low bytes:
/// `256 * Σ u * a_hi - offset * Σ a`, of the groups that a row may have high bytes in and the sum of its quants.
///
/// # Safety
/// `w` points to the bytes of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn high<F: Format, const P: usize, const MR: usize, const N: usize>(
    w: [&Weights; P],
    act: [&ActBlock; MR],
    groups: impl Fn(&ActBlock) -> [u32; N],
    neg_sum: impl Fn(&ActBlock) -> i32,
) -> [[__m512i; MR]; P] {
    let mut dot = [[_mm512_setzero_si512(); MR]; P];
    for r in 0..MR {
        let bytes: &[i32; N_GROUPS] = bytemuck::cast_ref(&act[r].hi);
        for j in groups(act[r]) {
            let j = j as usize % N_GROUPS;
            let a = _mm512_set1_epi32(bytes[j]);
            for p in 0..P {
                // SAFETY: the caller's promise; `j` is one of 8 vectors.
                let u = unsafe { _mm512_load_si512(w[p].bytes.add(64 * j).cast()) };
                dot[p][r] = _mm512_dpbusd_epi32(dot[p][r], u, a);
            }
        }
        for p in 0..P {
            dot[p][r] = _mm512_slli_epi32::<8>(dot[p][r]);
            if let Some(log2) = F::OFFSET_LOG2 {
                dot[p][r] = _mm512_add_epi32(dot[p][r], times_offset(_mm512_set1_epi32(neg_sum(act[r])), log2));
            }
        }
    }
    dot
}

/// Adds the products of the low bytes of groups `4 * HALF..4 * HALF + 4`.
///
/// # Safety
/// `w` points to the bytes of blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn low<const P: usize, const MR: usize, const HALF: usize>(
    w: [&Weights; P],
    act: [&ActBlock; MR],
    dot: &mut [[__m512i; MR]; P],
) {
    for j in 4 * HALF..4 * HALF + 4 {
        let mut u = [_mm512_setzero_si512(); P];
        for p in 0..P {
            // SAFETY: the caller's promise.
            u[p] = unsafe { _mm512_load_si512(w[p].bytes.add(64 * j).cast()) };
        }
        for r in 0..MR {
            let groups: &[i32; N_GROUPS] = bytemuck::cast_ref(&act[r].lo);
            let a = _mm512_set1_epi32(groups[j]);
            for p in 0..P {
                dot[p][r] = _mm512_dpbusd_epi32(dot[p][r], u[p], a);
            }
        }
    }
}

/// `acc += dot * (w_scale * a_scale)`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
fn scale_add<const P: usize, const MR: usize, const HALF: usize>(
    acc: &mut [[__m512; MR]; P],
    dot: &[[__m512i; MR]; P],
    w: [&Weights; P],
    act: [&ActBlock; MR],
) {
    for r in 0..MR {
        let a_scale = _mm512_set1_ps(act[r].scale);
        for p in 0..P {
            let scale = _mm512_mul_ps(w[p].scales.0[HALF], a_scale);
            acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p][r]), scale, acc[p][r]);
        }
    }
}
