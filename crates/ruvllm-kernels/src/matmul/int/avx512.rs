//! AVX-512 VNNI: a vector is 16 rows by 4 values, `vpdpbusd` with a broadcast of 4 activations.
//!
//! A tile is `P` panels by `MR` activation rows. With 2 x 4 or 1 x 8 the eight sums in f32 and sixteen in i32, of the
//! activations' high and low bytes, leave room for the weights and two broadcasts in 32 registers. 2 x 4 loads least.
//! 1 x 8 unpacks no weight twice and takes a batch of eight through memory once (head of SmolLM2: 149 against 107 G/s);
//! formats with scales per 16 gain as well (162 against 151 G/s). A larger tile in two passes, high bytes and then
//! low ones, is not faster.

use super::super::acts::{ActBlock, block_scale};
use super::super::format::{BLOCK, Format, PANEL_ROWS, panel_bytes};
use super::super::stream::Ahead;
use super::Job;
use std::arch::x86_64::*;

/// Returns the scale of a block and its quants, 16 in each half; none where all are zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) fn quants(x: &[f32; BLOCK]) -> (f32, Option<[__m512i; 2]>) {
    // SAFETY: a block is 32 values: two vectors; loadu needs no alignment.
    let halves = unsafe { [_mm512_loadu_ps(x.as_ptr()), _mm512_loadu_ps(x.as_ptr().add(16))] };
    let bits = halves.map(|v| _mm512_and_epi32(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff)));
    let (scale, inverse) = block_scale(_mm512_reduce_max_epu32(_mm512_max_epu32(bits[0], bits[1])));
    let quants = halves.map(|v| {
        let q = _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse)));
        // A low byte of -128 becomes -127.
        let low = _mm512_and_si512(q, _mm512_set1_epi32(0xff));
        let lowest = _mm512_cmpeq_epi32_mask(low, _mm512_set1_epi32(0x80));
        _mm512_mask_add_epi32(q, lowest, q, _mm512_set1_epi32(1))
    });
    (scale, (inverse != 0.0).then_some(quants))
}

/// Quantises whole blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) fn quantize(x: &[f32], blocks: &mut [ActBlock]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let (scale, quants) = quants(x);
        let Some(quants) = quants else {
            *block = ActBlock::zeros(scale);
            continue;
        };
        let (mut hi, mut lo, mut sums) = ([0i8; BLOCK], [0i8; BLOCK], [0; 2]);
        for (half, q) in quants.into_iter().enumerate() {
            let high = _mm512_srai_epi32::<8>(_mm512_add_epi32(q, _mm512_set1_epi32(128)));
            // SAFETY: 16 bytes of 32, from 0 or 16 on.
            unsafe {
                _mm_storeu_si128(hi.as_mut_ptr().add(16 * half).cast(), _mm512_cvtepi32_epi8(high));
                _mm_storeu_si128(lo.as_mut_ptr().add(16 * half).cast(), _mm512_cvtepi32_epi8(q));
            }
            sums[half] = _mm512_reduce_add_epi32(q);
        }
        *block = ActBlock::new(hi, lo, sums, scale);
    }
}

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run<F: Format>(job: &Job<'_>) {
    let mut i = 0;
    while i < job.rows.len() {
        let n = job.rows.len() - i;
        // SAFETY: the caller's promises; `i + MR` stays within the job's rows.
        i += unsafe {
            match (job.n_panels, n) {
                (2, 8..) if job.rows.len() == 8 => pair::<F, 8, true>(job, i),
                (2, 8..) if F::HALVES => pair::<F, 8, false>(job, i),
                (2, 4..) if job.rows.len() < 8 => tile::<F, 2, 4, true>(job, i),
                (2, 4..) => tile::<F, 2, 4, false>(job, i),
                (2, 3..) => tile::<F, 2, 3, true>(job, i),
                (2, 2..) => tile::<F, 2, 2, true>(job, i),
                (2, _) => tile::<F, 2, 1, true>(job, i),
                (_, 6..) => tile::<F, 1, 6, true>(job, i),
                (_, 4..) => tile::<F, 1, 4, true>(job, i),
                (_, 2..) => tile::<F, 1, 2, true>(job, i),
                (_, _) => tile::<F, 1, 1, true>(job, i),
            }
        };
    }
}

/// Returns the rows of a tile, as [`run`] cuts them, but for the last tiles.
fn tile_rows<F: Format, const MR: usize>(job: &Job<'_>) -> usize {
    match job.n_panels {
        1 if MR < 8 => 6,
        2 if !F::HALVES || job.rows.len() < 8 => 4,
        _ => 8,
    }
}

/// Computes both panels of a job, one after the other, as [`tile`] does; returns `MR`.
///
/// # Safety
/// As [`super::Kernel`] says, with two panels and `i + MR` within the job's rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn pair<F: Format, const MR: usize, const STREAMS: bool>(job: &Job<'_>, i: usize) -> usize {
    let (first, second) = job.panels.split_at(job.panels.len() / 2);
    let single = |panels, out| Job { panels, n_panels: 1, blocks: job.blocks.clone(), out, ..*job };
    // SAFETY: the caller's promises; the second panel's results begin 16 lanes on.
    unsafe {
        tile::<F, 1, MR, STREAMS>(&single(first, job.out), i);
        tile::<F, 1, MR, STREAMS>(&single(second, job.out.add(PANEL_ROWS)), i)
    }
}

/// Computes `P` panels by the `MR` rows from `i` on; returns `MR`. `STREAMS` says whether these may be all rows.
///
/// # Safety
/// As [`super::Kernel`] says, with `P` the job's panels and `i + MR` within its rows.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn tile<F: Format, const P: usize, const MR: usize, const STREAMS: bool>(job: &Job<'_>, i: usize) -> usize {
    let panel_bytes = panel_bytes::<F>(job.n_blocks);
    let mut acts = [std::ptr::null::<ActBlock>(); MR];
    for r in 0..MR {
        // SAFETY: `Job::check` compared the row index with the buffer.
        acts[r] = unsafe { job.acts.as_ptr().add(job.rows[i + r] as usize * job.n_blocks) };
    }
    let panels = job.panels.as_ptr();
    // SAFETY: row `i` is one of the job's results.
    let out = unsafe { job.out.add(i * job.ld) };
    let mut acc = [[_mm512_setzero_ps(); MR]; P];
    if job.blocks.start > 0 {
        for p in 0..P {
            for r in 0..MR {
                // SAFETY: the job's results may be read; 16 lanes per panel.
                acc[p][r] = unsafe { _mm512_loadu_ps(out.add(r * job.ld + p * PANEL_ROWS)) };
            }
        }
    }
    let ahead = Ahead::new(job.stream, (i, job.rows.len()), tile_rows::<F, MR>(job), 2 * panel_bytes);
    for b in job.blocks.clone() {
        // SAFETY: block `b` is in each row of activations and each panel.
        unsafe {
            let mut act = acts;
            for act in &mut act {
                *act = act.add(b);
            }
            let mut q = [panels; P];
            for (p, q) in q.iter_mut().enumerate() {
                ahead.prefetch::<F, STREAMS>(q.add(p * panel_bytes), b);
                *q = q.add(p * panel_bytes + F::quants_at(b));
            }
            let mut w_scale = [[_mm512_setzero_ps(); 2]; P];
            let mut min = [_mm512_setzero_ps(); P];
            for p in 0..P {
                (w_scale[p], min[p]) = block_scales::<F>(panels.add(p * panel_bytes), b);
            }
            if F::HALVES {
                let mut dot = start::<F, P, MR>(&act, |act| &raw const (*act).neg_half_sums[0]);
                groups::<F, P, MR, 0>(&q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 0, &act);
                let mut dot = start::<F, P, MR>(&act, |act| &raw const (*act).neg_half_sums[1]);
                groups::<F, P, MR, 4>(&q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 1, &act);
            } else {
                let mut dot = start::<F, P, MR>(&act, |act| &raw const (*act).neg_sum);
                groups::<F, P, MR, 0>(&q, &act, &mut dot);
                groups::<F, P, MR, 4>(&q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 0, &act);
            }
            if F::MIN {
                for r in 0..MR {
                    let sum = _mm512_set1_ps((*act[r]).scaled_sum);
                    for p in 0..P {
                        acc[p][r] = _mm512_fmadd_ps(min[p], sum, acc[p][r]);
                    }
                }
            }
        }
    }
    for p in 0..P {
        for r in 0..MR {
            // SAFETY: the job's results may be written; 16 lanes per panel.
            unsafe { _mm512_storeu_ps(out.add(r * job.ld + p * PANEL_ROWS), acc[p][r]) };
        }
    }
    MR
}

/// Sums of a tile's block: of the activations' high bytes and of the low ones.
struct Dot<const P: usize, const MR: usize> {
    hi: [[__m512i; MR]; P],
    lo: [[__m512i; MR]; P],
}

/// Returns the integer sums' start: `-offset * Σa`, exact, with the low ones.
///
/// # Safety
/// `act` points to blocks, and `sum` returns a pointer into them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn start<F: Format, const P: usize, const MR: usize>(
    act: &[*const ActBlock; MR],
    sum: impl Fn(*const ActBlock) -> *const i32,
) -> Dot<P, MR> {
    let zeros = [[_mm512_setzero_si512(); MR]; P];
    let mut dot = Dot { hi: zeros, lo: zeros };
    if let Some(log2) = F::OFFSET_LOG2 {
        for r in 0..MR {
            // SAFETY: the caller's promise.
            let start = _mm512_set1_epi32(unsafe { *sum(act[r]) });
            let start = match log2 {
                3 => _mm512_slli_epi32::<3>(start),
                4 => _mm512_slli_epi32::<4>(start),
                5 => _mm512_slli_epi32::<5>(start),
                _ => _mm512_slli_epi32::<7>(start),
            };
            for lo in &mut dot.lo {
                lo[r] = start;
            }
        }
    }
    dot
}

/// Adds the dot products of groups `J..J + 4` of a block.
///
/// # Safety
/// `q` and `act` point to a block of the format and of activations.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn groups<F: Format, const P: usize, const MR: usize, const J: usize>(
    q: &[*const u8; P],
    act: &[*const ActBlock; MR],
    dot: &mut Dot<P, MR>,
) {
    for j in J..J + 4 {
        let mut w = [_mm512_setzero_si512(); P];
        for p in 0..P {
            // SAFETY: the caller's promise.
            w[p] = unsafe { unpack::<F>(q[p], j) };
        }
        for r in 0..MR {
            // SAFETY: bytes `4j..4j + 4` of the 32 high and the 32 low ones; a block is aligned and starts with them.
            let (hi, lo) = unsafe { (act[r].cast::<i32>().add(j).read(), act[r].cast::<i32>().add(8 + j).read()) };
            let (hi, lo) = (_mm512_set1_epi32(hi), _mm512_set1_epi32(lo));
            for p in 0..P {
                dot.hi[p][r] = _mm512_dpbusd_epi32(dot.hi[p][r], w[p], hi);
                dot.lo[p][r] = _mm512_dpbusd_epi32(dot.lo[p][r], w[p], lo);
            }
        }
    }
}

/// Returns the unsigned weights of group `j`: 16 rows by 4 values.
///
/// # Safety
/// `q` points to a block of the format, 64-byte aligned.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) unsafe fn unpack<F: Format>(q: *const u8, j: usize) -> __m512i {
    // SAFETY: the caller's promise; vectors 0..VECTORS are asked for.
    let load = |vector: usize| unsafe { _mm512_load_si512(q.add(64 * vector).cast()) };
    if F::BITS == 8 {
        return load(j);
    }
    let low = _mm512_set1_epi8(15);
    let nibbles = if j < 4 { load(j) } else { _mm512_srli_epi16::<4>(load(j - 4)) };
    let nibbles = _mm512_and_si512(nibbles, low);
    // Shifts cross byte borders; the mask drops what came from the neighbour. 0xea: (a & b) | c.
    if F::BITS == 5 {
        let high = load(4);
        let high = match j {
            0 => _mm512_slli_epi16::<4>(high),
            1 => _mm512_slli_epi16::<3>(high),
            2 => _mm512_slli_epi16::<2>(high),
            3 => _mm512_slli_epi16::<1>(high),
            4 => high,
            5 => _mm512_srli_epi16::<1>(high),
            6 => _mm512_srli_epi16::<2>(high),
            _ => _mm512_srli_epi16::<3>(high),
        };
        return _mm512_ternarylogic_epi32::<0xea>(high, _mm512_set1_epi8(0x10), nibbles);
    }
    if F::BITS == 6 {
        let high = load(4 + j / 4);
        let high = match j % 4 {
            0 => _mm512_slli_epi16::<4>(high),
            1 => _mm512_slli_epi16::<2>(high),
            2 => high,
            _ => _mm512_srli_epi16::<2>(high),
        };
        return _mm512_ternarylogic_epi32::<0xea>(high, _mm512_set1_epi8(0x30), nibbles);
    }
    nibbles
}

/// Returns `([scale, scale of the second half], minimum)` of a panel's block.
///
/// # Safety
/// `panel` points to a panel, and `b` is one of its blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
pub(super) unsafe fn block_scales<F: Format>(panel: *const u8, b: usize) -> ([__m512; 2], __m512) {
    // SAFETY: the caller's promise; all loads lie in the block's record.
    unsafe {
        let record = panel.add(F::record_at(b));
        let halfs = |plane: usize| _mm512_cvtph_ps(_mm256_loadu_si256(record.add(32 * plane).cast()));
        let bytes = |index: usize| _mm_loadu_si128(record.add(F::SCALE_HEAD + 16 * index).cast());
        let d = halfs(0);
        let m = if F::MIN { halfs(1) } else { _mm512_setzero_ps() };
        if !F::SUPER {
            return ([d, d], m);
        }
        let sub = b % 8;
        if F::HALVES {
            let signed = |index: usize| _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes(index))));
            return ([signed(2 * sub), signed(2 * sub + 1)], m);
        }
        let float = |index: usize| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes(index)));
        let scale = _mm512_mul_ps(d, float(sub));
        ([scale, scale], if F::MIN { _mm512_mul_ps(m, float(8 + sub)) } else { m })
    }
}

/// `acc += (256 * dot.hi + dot.lo) * (w_scale * a_scale)`; the scales meet by the addition of an exponent, in pipes that the
/// products leave free.
///
/// # Safety
/// `act` points to blocks.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx2,fma,f16c,bmi2")]
unsafe fn scale_add<const P: usize, const MR: usize>(
    acc: &mut [[__m512; MR]; P],
    dot: &Dot<P, MR>,
    w_scale: &[[__m512; 2]; P],
    half: usize,
    act: &[*const ActBlock; MR],
) {
    for r in 0..MR {
        // SAFETY: the caller's promise.
        let log2_scale = _mm512_set1_ps(unsafe { (*act[r]).log2_scale });
        for p in 0..P {
            let scale = _mm512_scalef_ps(w_scale[p][half], log2_scale);
            let sum = _mm512_add_epi32(_mm512_slli_epi32::<8>(dot.hi[p][r]), dot.lo[p][r]);
            acc[p][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc[p][r]);
        }
    }
}
