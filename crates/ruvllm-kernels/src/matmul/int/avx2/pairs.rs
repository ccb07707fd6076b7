//! Weights and activations as i16, in pairs that one instruction multiplies and adds in i32.
//!
//! The even bytes and the odd bytes of a vector make two vectors of i16, each multiplied with a broadcast of two activations by
//! `vpmaddwd`, which takes all 16 bits of an activation at once and cannot overflow: 255 * 32,512 * 32 < 2^28. With `VNNI` one
//! `vpdpwssd` also adds.
//!
//! A chunk of activations is widened once for all panels of the job. A tile is a panel by `MR` rows. From
//! [`dense_rows`] on a chunk of the panels is widened once too, else each tile unpacks it on the way.

use super::super::super::acts::ActBlock;
use super::super::super::format::{BLOCK, Format, PANEL_ROWS, panel_bytes};
use super::super::super::stream::Prefetcher;
use super::super::Job;
use super::{block_scales, min_add, results_so_far, scale_add, start, tile_rows, unpack, write_results};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// 32 activations as products take them.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
struct WideActs {
    /// Pairs of i16: `(4j, 4j + 2)` in word `j` of the first, `(4j + 1, 4j + 3)` of the second.
    pairs: [[i32; BLOCK / 4]; 2],
    /// What the integer sums start with, `-offset * Σa`: of all, or of each half.
    start: [i32; 2],
    scale: f32,
    /// Of all, or of each half.
    scaled_sums: [f32; 2],
}

/// A block of a panel, unpacked.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
struct WideWeights {
    /// `[half][group][even bytes, odd bytes]`, unsigned.
    pairs: [[[__m256i; 2]; BLOCK / 4]; 2],
    /// `[half]`, as [`block_scales`] returns them.
    scales: [([__m256; 2], [__m256; 2]); 2],
}

/// Blocks of a panel widened at once: two panels' stay in a first-level cache.
const DENSE_BLOCKS: usize = 8;

/// Returns the rows from which on widening a panel first pays: the sooner, the more there is to unpack.
const fn dense_rows<F: Format>() -> usize {
    if matches!(F::BITS, 4 | 8) && F::CODES.is_none() { 16 } else { 8 }
}

/// Blocks of activations widened at once, of a tile's rows together: long enough for straight streams of weights.
const ACT_BLOCKS: usize = 128;

type Weights = [MaybeUninit<WideWeights>; 2 * DENSE_BLOCKS];
type Acts = [MaybeUninit<WideActs>; ACT_BLOCKS];

/// # Safety
/// As [`Kernel`](super::super::Kernel) says; with `VNNI` the CPU has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(super) unsafe fn run<F: Format, const VNNI: bool>(job: &Job<'_>) {
    let mut weights: Weights = [const { MaybeUninit::uninit() }; 2 * DENSE_BLOCKS];
    let mut acts: Acts = [const { MaybeUninit::uninit() }; ACT_BLOCKS];
    let dense = job.rows.len() >= dense_rows::<F>();
    let chunk = if dense { DENSE_BLOCKS } else { ACT_BLOCKS / tile_rows(job.rows.len()) };
    for first in job.blocks.clone().step_by(chunk) {
        let blocks = first..job.blocks.end.min(first + chunk);
        // SAFETY: the caller's promises, for blocks of the job.
        unsafe {
            if dense {
                widen_weights::<F>(job, blocks.clone(), &mut weights);
                rows::<F, VNNI, true>(job, blocks, chunk, &weights, &mut acts);
            } else {
                rows::<F, VNNI, false>(job, blocks, chunk, &weights, &mut acts);
            }
        }
    }
}

/// Unpacks some blocks of the job's panels: `[panels][DENSE_BLOCKS]`.
///
/// # Safety
/// As [`Kernel`](super::super::Kernel) says; `blocks` are of the job, at most [`DENSE_BLOCKS`].
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn widen_weights<F: Format>(job: &Job<'_>, blocks: Range<usize>, weights: &mut Weights) {
    let ahead = Prefetcher::new(job.stream);
    for p in 0..job.n_panels {
        for (at, b) in blocks.clone().enumerate() {
            // SAFETY: panel `p` is there, and block `b` in it.
            weights[p * DENSE_BLOCKS + at].write(unsafe {
                let panel = job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks));
                ahead.prefetch::<F>(panel, b);
                let q = panel.add(F::quants_at(b));
                let mut pairs = [[[_mm256_setzero_si256(); 2]; BLOCK / 4]; 2];
                for (half, pairs) in pairs.iter_mut().enumerate() {
                    for (j, pairs) in pairs.iter_mut().enumerate() {
                        *pairs = split(unpack::<F>(q.add(32 * half), j));
                    }
                }
                WideWeights { pairs, scales: [block_scales::<F>(panel, b, 0), block_scales::<F>(panel, b, 1)] }
            });
        }
    }
}

/// Computes some blocks of all the job's rows and panels.
///
/// # Safety
/// As [`Kernel`](super::super::Kernel) says; `blocks` are of the job, at most `chunk`, and so many for each row of a tile fit in
/// `acts`; with `DENSE`, `weights` are theirs.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn rows<F: Format, const VNNI: bool, const DENSE: bool>(
    job: &Job<'_>,
    blocks: Range<usize>,
    chunk: usize,
    weights: &Weights,
    acts: &mut Acts,
) {
    let mut i = 0;
    while i < job.rows.len() {
        let mr = tile_rows(job.rows.len() - i);
        for (row, acts) in job.rows[i..i + mr].iter().zip(acts.chunks_exact_mut(chunk)) {
            let row = &job.acts[*row as usize * job.n_blocks..][blocks.clone()];
            for (act, wide) in row.iter().zip(acts) {
                wide.write(widen_acts::<F>(act));
            }
        }
        for p in 0..job.n_panels {
            // SAFETY: the caller's promises; `i + mr` stays within the job's rows, whose activations were just widened,
            // and a panel has 16 lanes of results.
            unsafe {
                let panel = job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks));
                let weights = weights.as_ptr().add(p * DENSE_BLOCKS).cast();
                let out = job.out.add(i * job.ld + p * PANEL_ROWS);
                let part = Part { panel, weights, acts: acts.as_ptr().cast(), chunk, out, first: i == 0 };
                match mr {
                    4 => tile::<F, VNNI, DENSE, 4>(job, &blocks, &part),
                    2 => tile::<F, VNNI, DENSE, 2>(job, &blocks, &part),
                    _ => tile::<F, VNNI, DENSE, 1>(job, &blocks, &part),
                }
            }
        }
        i += mr;
    }
}

/// Widens the activations of a block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn widen_acts<F: Format>(act: &ActBlock) -> WideActs {
    // SAFETY: 32 bytes each.
    let (hi, lo) = unsafe { (_mm256_loadu_si256(act.hi.as_ptr().cast()), _mm256_loadu_si256(act.lo.as_ptr().cast())) };
    let signed = |low: __m256i| _mm256_srai_epi16::<8>(low);
    let even = _mm256_add_epi16(_mm256_slli_epi16::<8>(hi), signed(_mm256_slli_epi16::<8>(lo)));
    let odd = _mm256_add_epi16(_mm256_and_si256(hi, _mm256_set1_epi16(-256)), signed(lo));
    let mut pairs = [[0; BLOCK / 4]; 2];
    // SAFETY: 32 bytes each.
    unsafe {
        _mm256_storeu_si256(pairs[0].as_mut_ptr().cast(), even);
        _mm256_storeu_si256(pairs[1].as_mut_ptr().cast(), odd);
    }
    let sums = if F::HALVES { act.neg_half_sums } else { [act.neg_sum; 2] };
    let scaled_sums = if F::HALVES { [act.scaled_half_sum(0), act.scaled_half_sum(1)] } else { [act.scaled_sum, 0.0] };
    WideActs { pairs, start: sums.map(|sum| sum * F::OFFSET), scale: act.scale, scaled_sums }
}

/// A panel of a job by the rows of a tile.
struct Part {
    panel: *const u8,
    /// The panel's unpacked blocks, if they are.
    weights: *const WideWeights,
    /// `[MR][chunk]`.
    acts: *const WideActs,
    chunk: usize,
    /// The first result.
    out: *mut f32,
    /// Whether no other tile read these weights before.
    first: bool,
}

/// Computes some blocks of a panel by `MR` rows.
///
/// # Safety
/// As [`Kernel`](super::super::Kernel) says; `blocks` are of the job, `part` is one of its panels and rows, and holds what the blocks
/// need; with `DENSE` that includes their weights.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn tile<F: Format, const VNNI: bool, const DENSE: bool, const MR: usize>(
    job: &Job<'_>,
    blocks: &Range<usize>,
    part: &Part,
) {
    // SAFETY: the job's results may be read.
    let mut acc = unsafe { results_so_far(job, blocks, part.out) };
    let ahead = Prefetcher::new(job.stream);
    for b in blocks.clone() {
        // SAFETY: block `b` is in the panel and, counted from the first, among the widened ones.
        unsafe {
            let at = b - blocks.start;
            let q = part.panel.add(F::quants_at(b));
            if !DENSE && part.first {
                ahead.prefetch::<F>(part.panel, b);
            }
            let mut act = [part.acts; MR];
            for (r, act) in act.iter_mut().enumerate() {
                *act = act.add(r * part.chunk + at);
            }
            // Without `DENSE` there is no such block, and the pointer is not followed.
            let wide = part.weights.wrapping_add(at);
            let scales = |half| if DENSE { (*wide).scales[half] } else { block_scales::<F>(part.panel, b, half) };
            let scales = [scales(0), scales(1)];
            if F::HALVES {
                let dot = groups::<F, VNNI, DENSE, MR, 0, 4>(q, wide, &act);
                scale_add(&mut acc, &dot, [scales[0].0[0], scales[1].0[0]], act.map(|act| (*act).scale));
                let dot = groups::<F, VNNI, DENSE, MR, 4, 8>(q, wide, &act);
                scale_add(&mut acc, &dot, [scales[0].0[1], scales[1].0[1]], act.map(|act| (*act).scale));
            } else {
                let dot = groups::<F, VNNI, DENSE, MR, 0, 8>(q, wide, &act);
                scale_add(&mut acc, &dot, [scales[0].0[0], scales[1].0[0]], act.map(|act| (*act).scale));
            }
            if F::MIN {
                min_add(&mut acc, scales.map(|(_, min)| min[0]), act.map(|act| (*act).scaled_sums[0]));
            }
            if F::MIN && F::HALVES {
                min_add(&mut acc, scales.map(|(_, min)| min[1]), act.map(|act| (*act).scaled_sums[1]));
            }
        }
    }
    // SAFETY: the job's results may be written.
    unsafe { write_results(job, &acc, part.out) };
}

/// Returns the dot products of groups `FROM..TO` of a block, `[half][row]`.
///
/// # Safety
/// `q` or, with `DENSE`, `wide` point to a block of the format, and `act` to activations; with `VNNI` the CPU has it.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn groups<
    F: Format,
    const VNNI: bool,
    const DENSE: bool,
    const MR: usize,
    const FROM: usize,
    const TO: usize,
>(
    q: *const u8,
    wide: *const WideWeights,
    act: &[*const WideActs; MR],
) -> [[__m256i; MR]; 2] {
    // SAFETY: the caller's promise.
    let mut dot = start::<F, MR>(act.map(|act| unsafe { (*act).start[FROM / 4 % 2] }));
    // Written out, so that the shifts of `unpack` are constants: as a loop it runs at a quarter of the speed.
    macro_rules! steps {
        ($($j:literal)*) => { $(
            if FROM <= $j && $j < TO {
                // SAFETY: the caller's promise.
                unsafe { group::<F, VNNI, DENSE, MR, $j>(q, wide, act, &mut dot) };
            }
        )* };
    }
    steps!(0 1 2 3 4 5 6 7);
    dot
}

/// Adds the products of group `J` to `dot`.
///
/// # Safety
/// As [`groups`] says.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn group<F: Format, const VNNI: bool, const DENSE: bool, const MR: usize, const J: usize>(
    q: *const u8,
    wide: *const WideWeights,
    act: &[*const WideActs; MR],
    dot: &mut [[__m256i; MR]; 2],
) {
    // SAFETY: the caller's promise.
    let w = [0, 1]
        .map(|half| unsafe { if DENSE { (*wide).pairs[half][J] } else { split(unpack::<F>(q.add(32 * half), J)) } });
    for parity in 0..2 {
        for r in 0..MR {
            // SAFETY: the caller's promise.
            let a = _mm256_set1_epi32(unsafe { (*act[r]).pairs[parity][J] });
            for half in 0..2 {
                // SAFETY: the caller's promise.
                dot[half][r] = unsafe { multiply_add::<VNNI>(dot[half][r], w[half][parity], a) };
            }
        }
    }
}

/// Returns `acc + w * a`, products of i16 added by pairs.
///
/// # Safety
/// With `VNNI` the CPU has AVX-VNNI.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn multiply_add<const VNNI: bool>(mut acc: __m256i, w: __m256i, a: __m256i) -> __m256i {
    // SAFETY: registers only; the caller knows that the instructions exist.
    unsafe {
        if VNNI {
            // Its intrinsic would be a call in functions that do not enable the feature.
            asm!(
                "{{vex}} vpdpwssd {acc}, {w}, {a}",
                acc = inout(ymm_reg) acc, w = in(ymm_reg) w, a = in(ymm_reg) a,
                options(pure, nomem, nostack, preserves_flags)
            );
        } else {
            // The compiler would make trees of the sums, which spill registers (8-bit, 4 rows: 55 against 74 G/s).
            asm!(
                "vpmaddwd {product}, {w}, {a}",
                "vpaddd {acc}, {acc}, {product}",
                acc = inout(ymm_reg) acc, w = in(ymm_reg) w, a = in(ymm_reg) a, product = out(ymm_reg) _,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
    }
    acc
}

/// Returns the even bytes and the odd bytes of a vector, as 16 bits each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn split(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_and_si256(bytes, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(bytes)]
}
