//! AVX-512: 16 values a vector.

use std::arch::x86_64::*;

use super::iq::scale4;
use super::scalar;
use super::vector::{chunk, each, two_patterns, vector_rows};
use super::x86::{bits, half, high, load, lookup, negate, or, splat, spread, sub};
use crate::block::*;

vector_rows!("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512dq,avx512vl", __m128i);

#[inline]
#[target_feature(enable = "avx512f")]
fn store(x: __m512, out: &mut [f32; 16]) {
    // SAFETY: `out` is 16 floats; storeu needs no alignment.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) };
}

#[inline]
#[target_feature(enable = "avx512f")]
fn widen(v: __m128i) -> __m512 {
    _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn scale16(v: __m128i, d: f32, out: &mut [f32; 16]) {
    store(_mm512_mul_ps(_mm512_set1_ps(d), widen(v)), out);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn affine16(v: __m128i, d: f32, m: f32, out: &mut [f32; 16]) {
    store(_mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(d), widen(v)), _mm512_set1_ps(m)), out);
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: 32 bytes are there; loadu needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
fn f16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        store(_mm512_cvtph_ps(load32(x)), out);
    }
    scalar::dequantize(GgmlType::F16, bytes_tail, tail);
}

#[target_feature(enable = "avx512f")]
fn bf16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        store(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(load32(x)))), out);
    }
    scalar::dequantize(GgmlType::BF16, bytes_tail, tail);
}

#[target_feature(enable = "avx512f")]
pub(super) fn from_f16(x: &[u16], out: &mut [f32]) {
    f16_row(bytemuck::cast_slice(x), out);
}

#[target_feature(enable = "avx512f")]
pub(super) fn from_bf16(x: &[u16], out: &mut [f32]) {
    bf16_row(bytemuck::cast_slice(x), out);
}

/// Calls `convert` on each 16 floats and stores its 16 u16; returns how many values were done.
macro_rules! narrow {
    ($x:ident, $out:ident, $convert:expr) => {{
        for (out, x) in $out.as_chunks_mut::<16>().0.iter_mut().zip($x.as_chunks::<16>().0) {
            // SAFETY: 16 floats are read and 16 u16 (32 bytes) written; neither needs alignment.
            unsafe {
                let narrow: __m256i = $convert(_mm512_loadu_ps(x.as_ptr()));
                _mm256_storeu_si256(out.as_mut_ptr().cast(), narrow);
            }
        }
        $x.len() / 16 * 16
    }};
}

#[target_feature(enable = "avx512f")]
pub(super) fn to_f16(x: &[f32], out: &mut [u16]) {
    let done = narrow!(x, out, |x| _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x));
    scalar::to_f16(&x[done..], &mut out[done..]);
}

/// Returns bf16, rounded to nearest even, or truncated and quieted if NaN.
#[inline]
#[target_feature(enable = "avx512f")]
fn round_bf16(x: __m512) -> __m256i {
    let bits = _mm512_castps_si512(x);
    let top = _mm512_srli_epi32::<16>(bits);
    let odd = _mm512_and_si512(top, _mm512_set1_epi32(1));
    let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd));
    let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
    _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, top, _mm512_set1_epi32(0x40)))
}

#[target_feature(enable = "avx512f")]
pub(super) fn to_bf16(x: &[f32], out: &mut [u16]) {
    let done = narrow!(x, out, round_bf16);
    scalar::to_bf16(&x[done..], &mut out[done..]);
}
