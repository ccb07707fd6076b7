//! AVX2 and AVX-VNNI: a 32-byte vector (half of a panel's 64) is 8 rows by 4 values.
//!
//! Weights of 4 and 5 bits are multiplied as bytes ([`bytes`]), all others, and all with AVX-VNNI, as pairs of i16 ([`pairs`]), with
//! the same integers and the same operations to scale them.

mod bytes;
mod pairs;

use super::super::acts::{ActBlock, Grid, key};
use super::super::format::{BLOCK, Format, SubScales};
use super::Job;
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// As [`super::Kernel`] says; with `VNNI` the CPU has AVX-VNNI.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(in super::super) unsafe fn run<F: Format, const VNNI: bool>(job: &Job<'_>) {
    // SAFETY: the caller's promises.
    unsafe {
        if F::IS_NARROW && !VNNI {
            bytes::run::<F>(job);
        } else {
            pairs::run::<F, VNNI>(job);
        }
    }
}

/// Returns the rows of the next tile when `n` are left: with 2 x 4 sums two weights and a broadcast fit in 16 registers.
fn tile_rows(n: usize) -> usize {
    match n {
        4.. => 4,
        2.. => 2,
        _ => 1,
    }
}

/// Quantises whole blocks.
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
pub(in super::super) fn quantize(x: &[f32], blocks: &mut [ActBlock]) {
    for (x, block) in x.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        let mut v = [_mm256_setzero_ps(); 4];
        for (at, v) in v.iter_mut().enumerate() {
            // SAFETY: a block is 32 values: four vectors; loadu needs no alignment.
            *v = unsafe { _mm256_loadu_ps(x.as_ptr().add(8 * at)) };
        }
        let grid = Grid::new(largest_keys(&v));
        if grid.inverse == 0.0 {
            *block = ActBlock::zeros(grid);
            continue;
        }
        let inverse = _mm256_set1_ps(grid.inverse);
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
        *block = ActBlock::new(narrow(&high), narrow(&low), sums, grid);
    }
}

/// Returns the three largest keys of a block's groups.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn largest_keys(v: &[__m256; 4]) -> [u32; 3] {
    // The largest of each group, in all its lanes; then lane `at` of each half from vector `at`.
    let of_groups = v.map(|v| {
        let bits = _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fff_ffff));
        let max = _mm256_max_epu32(bits, _mm256_shuffle_epi32::<0b10_11_00_01>(bits));
        _mm256_max_epu32(max, _mm256_shuffle_epi32::<0b01_00_11_10>(max))
    });
    let bits = _mm256_blend_epi32::<0b0010_0010>(of_groups[0], of_groups[1]);
    let bits = _mm256_blend_epi32::<0b0100_0100>(bits, of_groups[2]);
    let bits = _mm256_blend_epi32::<0b1000_1000>(bits, of_groups[3]);
    let clear = _mm256_set1_epi32(key(u32::MAX, 0) as i32);
    let mut keys = _mm256_or_si256(_mm256_and_si256(bits, clear), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    [(); 3].map(|()| {
        let max = _mm256_max_epu32(keys, _mm256_permute2x128_si256::<1>(keys, keys));
        let max = _mm256_max_epu32(max, _mm256_shuffle_epi32::<0b01_00_11_10>(max));
        let max = _mm256_max_epu32(max, _mm256_shuffle_epi32::<0b10_11_00_01>(max));
        keys = _mm256_andnot_si256(_mm256_cmpeq_epi32(keys, max), keys);
        _mm256_cvtsi256_si32(max) as u32
    })
}

/// Narrows 32 integers that fit to bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn narrow(ints: &[__m256i; 4]) -> [i8; BLOCK] {
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

/// Returns a tile's results so far, `[half][row]`: what earlier blocks came to.
///
/// # Safety
/// The job's results at `out` may be read, 16 lanes of `MR` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn results_so_far<const MR: usize>(job: &Job<'_>, blocks: &Range<usize>, out: *const f32) -> [[__m256; MR]; 2] {
    let mut acc = [[_mm256_setzero_ps(); MR]; 2];
    if blocks.start > 0 {
        for half in 0..2 {
            for r in 0..MR {
                // SAFETY: the caller's promise; 8 lanes per half.
                acc[half][r] = unsafe { _mm256_loadu_ps(out.add(r * job.ld + 8 * half)) };
            }
        }
    }
    acc
}

/// Writes a tile's results.
///
/// # Safety
/// The job's results at `out` may be written, 16 lanes of `MR` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn write_results<const MR: usize>(job: &Job<'_>, acc: &[[__m256; MR]; 2], out: *mut f32) {
    for half in 0..2 {
        for r in 0..MR {
            // SAFETY: the caller's promise; 8 lanes per half.
            unsafe { _mm256_storeu_ps(out.add(r * job.ld + 8 * half), acc[half][r]) };
        }
    }
}

/// `acc += min * a_sum`, of what activations sum up to; `min` is `[half of the panel]`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn min_add<const MR: usize>(acc: &mut [[__m256; MR]; 2], min: [__m256; 2], a_sum: [f32; MR]) {
    for r in 0..MR {
        let a_sum = _mm256_set1_ps(a_sum[r]);
        for half in 0..2 {
            acc[half][r] = _mm256_fmadd_ps(min[half], a_sum, acc[half][r]);
        }
    }
}

/// Returns what integer sums start with, `[half][row]`: of each row `-offset * Σa`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn start<F: Format, const MR: usize>(starts: [i32; MR]) -> [[__m256i; MR]; 2] {
    match F::OFFSET {
        0 => [[_mm256_setzero_si256(); MR]; 2],
        _ => [starts.map(|start| _mm256_set1_epi32(start)); 2],
    }
}

/// `acc += dot * (w_scale * a_scale)`; `w_scale` is `[half]`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn scale_add<const MR: usize>(
    acc: &mut [[__m256; MR]; 2],
    dot: &[[__m256i; MR]; 2],
    w_scale: [__m256; 2],
    a_scale: [f32; MR],
) {
    for r in 0..MR {
        let a_scale = _mm256_set1_ps(a_scale[r]);
        for half in 0..2 {
            let scale = _mm256_mul_ps(w_scale[half], a_scale);
            acc[half][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[half][r]), scale, acc[half][r]);
        }
    }
}

/// Returns the unsigned weights of group `j`, 8 rows by 4 values.
///
/// # Safety
/// `q` points to half of a block of the format.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn unpack<F: Format>(q: *const u8, j: usize) -> __m256i {
    // SAFETY: the caller's promise; vectors 0..VECTORS are asked for, 32 bytes of each.
    let load = |vector: usize| unsafe { _mm256_load_si256(q.add(64 * vector).cast()) };
    if F::BITS == 8 {
        return load(j);
    }
    if F::BITS <= 3 {
        return unpack_low::<F>(load(j / 4), || load(2), j);
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
    if F::CODES.is_some() {
        // SAFETY: 16 bytes.
        let codes = unsafe { _mm_loadu_si128(F::UNSIGNED_CODES.as_ptr().cast()) };
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(codes), nibbles);
    }
    nibbles
}

/// Returns the weights of group `j` of two or three bits, of the vector that has its two low bits and of the one that has
/// the high bits.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn unpack_low<F: Format>(pairs: __m256i, high: impl Fn() -> __m256i, j: usize) -> __m256i {
    // Shifts cross byte borders; the mask drops what came from the neighbour.
    let pairs = match j % 4 {
        0 => pairs,
        1 => _mm256_srli_epi16::<2>(pairs),
        2 => _mm256_srli_epi16::<4>(pairs),
        _ => _mm256_srli_epi16::<6>(pairs),
    };
    let pairs = _mm256_and_si256(pairs, _mm256_set1_epi8(3));
    if F::BITS == 2 {
        return pairs;
    }
    let high = match j {
        0 => _mm256_slli_epi16::<2>(high()),
        1 => _mm256_slli_epi16::<1>(high()),
        2 => high(),
        3 => _mm256_srli_epi16::<1>(high()),
        4 => _mm256_srli_epi16::<2>(high()),
        5 => _mm256_srli_epi16::<3>(high()),
        6 => _mm256_srli_epi16::<4>(high()),
        _ => _mm256_srli_epi16::<5>(high()),
    };
    _mm256_or_si256(pairs, _mm256_and_si256(high, _mm256_set1_epi8(4)))
}

/// Returns the scales and the minima of the halves of a block, of half a panel.
///
/// # Safety
/// `panel` points to a panel, `b` is one of its blocks, and `half` is 0 or 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
unsafe fn block_scales<F: Format>(panel: *const u8, b: usize, half: usize) -> ([__m256; 2], [__m256; 2]) {
    // SAFETY: the caller's promise; all loads lie in the block's record.
    unsafe {
        let record = panel.add(F::record_at(b));
        let halfs = |plane: usize| _mm256_cvtph_ps(_mm_loadu_si128(record.add(32 * plane + 16 * half).cast()));
        let bytes = |index: usize| _mm_loadl_epi64(record.add(F::SCALE_HEAD + 16 * index + 8 * half).cast());
        let d = if F::E8M0 { powers(_mm_loadl_epi64(record.add(8 * half).cast())) } else { halfs(0) };
        let m = if F::MIN { halfs(1) } else { _mm256_setzero_ps() };
        let float = |ints: __m256i| _mm256_cvtepi32_ps(ints);
        let unsigned = |index: usize| float(_mm256_cvtepu8_epi32(bytes(index)));
        let sub = b % 8;
        let subs = if F::HALVES { [2 * sub, 2 * sub + 1] } else { [sub; 2] };
        match F::SUB_SCALES {
            SubScales::None => ([d; 2], [m; 2]),
            SubScales::Signed => {
                let signed = |sub: usize| _mm256_mul_ps(d, float(_mm256_cvtepi8_epi32(bytes(sub))));
                (subs.map(signed), [m; 2])
            }
            SubScales::Nibbles => {
                let ints = |sub: usize| _mm256_cvtepu8_epi32(bytes(sub));
                let low = |sub: usize| float(_mm256_and_si256(ints(sub), _mm256_set1_epi32(15)));
                let high = |sub: usize| float(_mm256_srli_epi32::<4>(ints(sub)));
                (subs.map(|sub| _mm256_mul_ps(d, low(sub))), subs.map(|sub| _mm256_mul_ps(m, high(sub))))
            }
            SubScales::Unsigned => {
                let scales = subs.map(|sub| _mm256_mul_ps(d, unsigned(sub)));
                let min = |sub: usize| if F::MIN { _mm256_mul_ps(m, unsigned(F::N_SUB + sub)) } else { m };
                (scales, subs.map(min))
            }
        }
    }
}

/// Returns `2^(e - 128)` of bytes `e`, as [`BlockMXFP4::half_scale`](crate::block::BlockMXFP4::half_scale) does.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,bmi2")]
fn powers(exponents: __m128i) -> __m256 {
    let e = _mm256_cvtepu8_epi32(exponents);
    let normal = _mm256_sub_epi32(_mm256_slli_epi32::<23>(e), _mm256_set1_epi32(1 << 23));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    let is_normal = _mm256_cmpgt_epi32(e, _mm256_set1_epi32(1));
    _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
}
