//! AVX2: a vector is 8 rows by 4 values (half of a panel's 64 bytes), `vpmaddubsw` with a broadcast of 4 activations.
//!
//! `vpmaddubsw` adds two products of u8 and i8 into an i16, which must not saturate. With activation bytes of at most 127:
//! 4 bits give 15 * 127 * 2 = 3,810, so eight groups fit (30,480 ≤ 32,767); 5 bits 7,874, four groups (31,496);
//! 6 bits 16,002, two groups (32,004). 8 bits multiply |w| ≤ 128 with the activation under the weight's sign: 32,512,
//! one group. `vpmaddwd` then widens, and multiplies the high bytes' sums by 256. A tile is `H` half panels by `MR` activation rows in 16 registers.

use super::super::acts::{ActBlock, block_scale};
use super::super::format::{BLOCK, Format, PANEL_ROWS, panel_bytes};
use super::Job;
use std::arch::x86_64::*;

/// Quantises whole blocks.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(in super::super) fn quantize(x: &[f32], blocks: &mut [ActBlock]) {
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let mut v = [_mm256_setzero_ps(); 4];
        let mut max = _mm256_setzero_si256();
        for (at, v) in v.iter_mut().enumerate() {
            // SAFETY: a block is 32 values: four vectors; loadu needs no alignment.
            *v = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * at)) };
            max = _mm256_max_epu32(max, _mm256_and_si256(_mm256_castps_si256(*v), magnitude));
        }
        let max = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
        let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
        let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
        let (scale, inverse) = block_scale(_mm_cvtsi128_si32(max) as u32);
        if inverse == 0.0 {
            *block = ActBlock::zeros(scale);
            continue;
        }
        let inverse = _mm256_set1_ps(inverse);
        let (mut q, mut high, mut low) =
            ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
        for (at, v) in v.into_iter().enumerate() {
            let rounded = _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse));
            // A low byte of -128 becomes -127: a comparison that holds is -1.
            let lowest = _mm256_and_si256(rounded, _mm256_set1_epi32(0xff));
            q[at] = _mm256_sub_epi32(rounded, _mm256_cmpeq_epi32(lowest, _mm256_set1_epi32(0x80)));
            high[at] = _mm256_srai_epi32::<8>(_mm256_add_epi32(q[at], _mm256_set1_epi32(128)));
            low[at] = _mm256_sub_epi32(q[at], _mm256_slli_epi32::<8>(high[at]));
        }
        let sums = [hsum(_mm256_add_epi32(q[0], q[1])), hsum(_mm256_add_epi32(q[2], q[3]))];
        *block = ActBlock::new(bytes(&high), bytes(&low), sums, scale);
    }
}

/// Narrows 32 integers that fit to bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn bytes(ints: &[__m256i; 4]) -> [i8; BLOCK] {
    // Packing works within 128-bit lanes; the permutation puts the dwords back in order.
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(ints[0], ints[1]), _mm256_packs_epi32(ints[2], ints[3]));
    let packed = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let mut bytes = [0; BLOCK];
    // SAFETY: 32 bytes.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), packed) };
    bytes
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn hsum(v: __m256i) -> i32 {
    let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
    _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v)))
}

/// # Safety
/// As [`super::Kernel`] says.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run<F: Format>(job: &Job<'_>) {
    for p in 0..job.n_panels {
        let mut i = 0;
        while i < job.rows.len() {
            // SAFETY: the caller's promises; `i + MR` stays within the job's rows, halves 0 and 1 within the panel.
            unsafe {
                match job.rows.len() - i {
                    // 8 bits keep the weights and their magnitudes: four rows would spill.
                    4.. if F::BITS != 8 => {
                        tile::<F, 1, 4>(job, p, 0, i);
                        tile::<F, 1, 4>(job, p, 1, i);
                        i += 4;
                    }
                    2.. => {
                        tile::<F, 2, 2>(job, p, 0, i);
                        i += 2;
                    }
                    _ => {
                        tile::<F, 2, 1>(job, p, 0, i);
                        i += 1;
                    }
                }
            }
        }
    }
}

/// Computes `H` half panels from `half` on by the `MR` rows from `i` on.
///
/// # Safety
/// As [`super::Kernel`] says, with `p` one of the job's panels, `half + H ≤ 2` and `i + MR` within its rows.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn tile<F: Format, const H: usize, const MR: usize>(job: &Job<'_>, p: usize, half: usize, i: usize) {
    let mut acts = [std::ptr::null::<ActBlock>(); MR];
    for r in 0..MR {
        // SAFETY: `Job::check` compared the row index with the buffer.
        acts[r] = unsafe { job.acts.as_ptr().add(job.rows[i + r] as usize * job.n_blocks) };
    }
    // SAFETY: panel `p` is there.
    let panel = unsafe { job.panels.as_ptr().add(p * panel_bytes::<F>(job.n_blocks)) };
    // SAFETY: row `i` is one of the job's results.
    let out = unsafe { job.out.add(i * job.ld + p * PANEL_ROWS + 8 * half) };
    let mut acc = [[_mm256_setzero_ps(); MR]; H];
    if job.blocks.start > 0 {
        for h in 0..H {
            for r in 0..MR {
                // SAFETY: the job's results may be read; 8 lanes per half.
                acc[h][r] = unsafe { _mm256_loadu_ps(out.add(r * job.ld + 8 * h)) };
            }
        }
    }
    for b in job.blocks.clone() {
        // SAFETY: block `b` is in each row of activations and in the panel.
        unsafe {
            let mut act = acts;
            for act in &mut act {
                *act = act.add(b);
            }
            let q = panel.add(F::quants_at(b) + 32 * half);
            let mut w_scale = [[_mm256_setzero_ps(); 2]; H];
            let mut min = [_mm256_setzero_ps(); H];
            for h in 0..H {
                (w_scale[h], min[h]) = block_scales::<F>(panel, b, half + h);
            }
            if F::HALVES {
                let mut dot = start::<F, H, MR>(&act, |act| &raw const (*act).neg_half_sums[0]);
                groups::<F, H, MR, 0, 1>(q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 0, &act);
                let mut dot = start::<F, H, MR>(&act, |act| &raw const (*act).neg_half_sums[1]);
                groups::<F, H, MR, 4, 1>(q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 1, &act);
            } else {
                let mut dot = start::<F, H, MR>(&act, |act| &raw const (*act).neg_sum);
                groups::<F, H, MR, 0, 2>(q, &act, &mut dot);
                scale_add(&mut acc, &dot, &w_scale, 0, &act);
            }
            if F::MIN {
                for r in 0..MR {
                    let sum = _mm256_set1_ps((*act[r]).scaled_sum);
                    for h in 0..H {
                        acc[h][r] = _mm256_fmadd_ps(min[h], sum, acc[h][r]);
                    }
                }
            }
        }
    }
    for h in 0..H {
        for r in 0..MR {
            // SAFETY: the job's results may be written; 8 lanes per half.
            unsafe { _mm256_storeu_ps(out.add(r * job.ld + 8 * h), acc[h][r]) };
        }
    }
}

/// Returns the integer sums' start: `-offset * Σa`; 8-bit weights are signed here and need none.
///
/// # Safety
/// `act` points to blocks, and `sum` returns a pointer into them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn start<F: Format, const H: usize, const MR: usize>(
    act: &[*const ActBlock; MR],
    sum: impl Fn(*const ActBlock) -> *const i32,
) -> [[__m256i; MR]; H] {
    let mut dot = [[_mm256_setzero_si256(); MR]; H];
    if F::BITS != 8 && F::OFFSET != 0 {
        for r in 0..MR {
            // SAFETY: the caller's promise.
            let start = _mm256_set1_epi32(unsafe { *sum(act[r]) } * F::OFFSET);
            for dot in &mut dot {
                dot[r] = start;
            }
        }
    }
    dot
}

/// Adds the dot products of groups `J..J + 4 * N4` of a block, widening as often as the format's bits ask.
///
/// The high bytes go first and the low ones after them: with both at once even one row is short of registers (Q5_0: 11
/// against 22 GiB/s).
///
/// # Safety
/// `q` and `act` point to a (half) block of the format and to one of activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn groups<F: Format, const H: usize, const MR: usize, const J: usize, const N4: usize>(
    q: *const u8,
    act: &[*const ActBlock; MR],
    dot: &mut [[__m256i; MR]; H],
) {
    let per_widening = match F::BITS {
        4 => 8,
        5 => 4,
        6 => 2,
        _ => 1,
    };
    let widen = |j: usize| (j + 1).is_multiple_of(per_widening) || j + 1 == J + 4 * N4;
    let mut sums = [[_mm256_setzero_si256(); MR]; H];
    for j in J..J + 4 * N4 {
        // SAFETY: the caller's promise.
        unsafe { group::<F, H, MR, HI>(q, act, j, &mut sums) };
        if widen(j) {
            add_widened(dot, &mut sums, 256);
        }
    }
    for j in J..J + 4 * N4 {
        // SAFETY: as above.
        unsafe { group::<F, H, MR, LO>(q, act, j, &mut sums) };
        if widen(j) {
            add_widened(dot, &mut sums, 1);
        }
    }
}

/// Where a block of activations has its high and its low bytes, in words of four.
const HI: usize = 0;
const LO: usize = BLOCK / 4;

/// Adds group `j`'s products with the bytes from word `PART` on to sums in i16.
///
/// # Safety
/// As [`groups`] says; `PART` is [`HI`] or [`LO`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn group<F: Format, const H: usize, const MR: usize, const PART: usize>(
    q: *const u8,
    act: &[*const ActBlock; MR],
    j: usize,
    sums: &mut [[__m256i; MR]; H],
) {
    let mut w = [_mm256_setzero_si256(); H];
    for (h, w) in w.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *w = unsafe { unpack::<F>(q.add(32 * h), j) };
    }
    for r in 0..MR {
        // SAFETY: bytes `4j..4j + 4` of the 32 high or low ones; a block is aligned and starts with them.
        let a = _mm256_set1_epi32(unsafe { act[r].cast::<i32>().add(PART + j).read() });
        for h in 0..H {
            let products = if F::BITS == 8 {
                _mm256_maddubs_epi16(_mm256_abs_epi8(w[h]), _mm256_sign_epi8(a, w[h]))
            } else {
                _mm256_maddubs_epi16(w[h], a)
            };
            sums[h][r] = _mm256_add_epi16(sums[h][r], products);
        }
    }
}

/// `dot += factor * sums`, and empties the sums; `factor` is 256 for high bytes and 1 for low ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn add_widened<const H: usize, const MR: usize>(
    dot: &mut [[__m256i; MR]; H],
    sums: &mut [[__m256i; MR]; H],
    factor: i16,
) {
    let factor = _mm256_set1_epi16(factor);
    for h in 0..H {
        for r in 0..MR {
            dot[h][r] = _mm256_add_epi32(dot[h][r], _mm256_madd_epi16(sums[h][r], factor));
            sums[h][r] = _mm256_setzero_si256();
        }
    }
}

/// Returns the weights of group `j`, 8 rows by 4 values: unsigned, but signed for 8 bits.
///
/// # Safety
/// `q` points to half of a block of the format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn unpack<F: Format>(q: *const u8, j: usize) -> __m256i {
    // SAFETY: the caller's promise; vectors 0..VECTORS are asked for, 32 bytes of each.
    let load = |vector: usize| unsafe { _mm256_load_si256(q.add(64 * vector).cast()) };
    if F::BITS == 8 {
        return _mm256_xor_si256(load(j), _mm256_set1_epi8(-128));
    }
    let nibbles = if j < 4 { load(j) } else { _mm256_srli_epi16::<4>(load(j - 4)) };
    let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
    // Shifts cross byte borders; the mask drops what came from the neighbour.
    if F::BITS == 5 {
        let high = load(4);
        let high = match j {
            0 => _mm256_slli_epi16::<4>(high),
            1 => _mm256_slli_epi16::<3>(high),
            2 => _mm256_slli_epi16::<2>(high),
            3 => _mm256_slli_epi16::<1>(high),
            4 => high,
            5 => _mm256_srli_epi16::<1>(high),
            6 => _mm256_srli_epi16::<2>(high),
            _ => _mm256_srli_epi16::<3>(high),
        };
        return _mm256_or_si256(nibbles, _mm256_and_si256(high, _mm256_set1_epi8(0x10)));
    }
    if F::BITS == 6 {
        let high = load(4 + j / 4);
        let high = match j % 4 {
            0 => _mm256_slli_epi16::<4>(high),
            1 => _mm256_slli_epi16::<2>(high),
            2 => high,
            _ => _mm256_srli_epi16::<2>(high),
        };
        return _mm256_or_si256(nibbles, _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
    }
    nibbles
}

/// Returns `([scale, scale of the second half], minimum)` of half a panel's block.
///
/// # Safety
/// `panel` points to a panel, `b` is one of its blocks, and `half` is 0 or 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn block_scales<F: Format>(panel: *const u8, b: usize, half: usize) -> ([__m256; 2], __m256) {
    // SAFETY: the caller's promise; all loads lie in the block's record.
    unsafe {
        let record = panel.add(F::record_at(b));
        let halfs = |plane: usize| _mm256_cvtph_ps(_mm_loadu_si128(record.add(32 * plane + 16 * half).cast()));
        let bytes = |index: usize| _mm_loadl_epi64(record.add(F::SCALE_HEAD + 16 * index + 8 * half).cast());
        let d = halfs(0);
        let m = if F::MIN { halfs(1) } else { _mm256_setzero_ps() };
        if !F::SUPER {
            return ([d, d], m);
        }
        let sub = b % 8;
        if F::HALVES {
            let signed = |index: usize| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes(index))));
            return ([signed(2 * sub), signed(2 * sub + 1)], m);
        }
        let float = |index: usize| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes(index)));
        let scale = _mm256_mul_ps(d, float(sub));
        ([scale, scale], if F::MIN { _mm256_mul_ps(m, float(8 + sub)) } else { m })
    }
}

/// `acc += dot * (w_scale * a_scale)`.
///
/// # Safety
/// `act` points to blocks.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn scale_add<const H: usize, const MR: usize>(
    acc: &mut [[__m256; MR]; H],
    dot: &[[__m256i; MR]; H],
    w_scale: &[[__m256; 2]; H],
    half: usize,
    act: &[*const ActBlock; MR],
) {
    for r in 0..MR {
        // SAFETY: the caller's promise.
        let a_scale = _mm256_set1_ps(unsafe { (*act[r]).scale });
        for h in 0..H {
            let scale = _mm256_mul_ps(w_scale[h][half], a_scale);
            acc[h][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[h][r]), scale, acc[h][r]);
        }
    }
}
