//! The 16-byte primitives of `vector.rs`, shared by AVX2 and AVX-512.

use std::arch::x86_64::*;

use crate::block::F16Le;

/// Returns the 16 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes are there; loadu needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// Returns `v >> shift & mask` in each byte, where `mask << shift` fits a byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn bits(v: __m128i, shift: i32, mask: i8) -> __m128i {
    // The shift is one of 16-bit lanes; what enters from the neighbour is masked off.
    _mm_and_si128(_mm_srl_epi16(v, _mm_cvtsi32_si128(shift)), _mm_set1_epi8(mask))
}

/// Returns `a | b`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn or(a: __m128i, b: __m128i) -> __m128i {
    _mm_or_si128(a, b)
}

/// Returns `n` in each byte.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn splat(n: i8) -> __m128i {
    _mm_set1_epi8(n)
}

/// Returns `a - b` in each byte, wrapping.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn sub(a: __m128i, b: __m128i) -> __m128i {
    _mm_sub_epi8(a, b)
}

/// Returns `v << 4` in each byte, where `v < 16`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn high(v: __m128i) -> __m128i {
    _mm_slli_epi16::<4>(v)
}

/// Returns bit `j` of `mask` in byte `j`, as 0 or -1.
#[inline]
#[target_feature(enable = "avx2")]
fn all_ones(mask: u16) -> __m128i {
    let bytes = _mm_shuffle_epi8(_mm_cvtsi32_si128(i32::from(mask)), _mm_set_epi64x(0x0101_0101_0101_0101, 0));
    let bit = _mm_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm_cmpeq_epi8(_mm_and_si128(bytes, bit), bit)
}

/// Returns bit `j` of `mask` in byte `j`, as 0 or 1.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn spread(mask: u16) -> __m128i {
    _mm_and_si128(all_ones(mask), _mm_set1_epi8(1))
}

/// Returns `-v` in the bytes whose bit is set.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn negate(v: __m128i, mask: u16) -> __m128i {
    let minus = all_ones(mask);
    _mm_sub_epi8(_mm_xor_si128(v, minus), minus)
}

/// Returns `table[v]` for each byte, where `v < 16`.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn lookup(table: &[i8; 16], v: __m128i) -> __m128i {
    _mm_shuffle_epi8(load(bytemuck::must_cast_ref(table)), v)
}

/// Returns the value of an f16.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) fn half(x: F16Le) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(x.0)))))
}
