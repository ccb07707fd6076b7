//! AVX2: 8 values a vector.

use std::arch::x86_64::*;

use super::iq::scale4;
use super::scalar;
use super::vector::{chunk, each, two_patterns, vector_rows};
use super::x86::{bits, half, high, load, lookup, negate, or, splat, spread, sub};
use crate::block::*;

vector_rows!("avx2,fma,f16c,bmi2", __m128i);

/// Returns the int8 as two vectors of floats.
#[inline]
#[target_feature(enable = "avx2")]
fn widen(v: __m128i) -> [__m256; 2] {
    [v, _mm_unpackhi_epi64(v, v)].map(|v| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)))
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(x: [__m256; 2], out: &mut [f32; 16]) {
    for (x, out) in x.into_iter().zip(out.as_chunks_mut::<8>().0) {
        // SAFETY: `out` is 8 floats; storeu needs no alignment.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), x) };
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn scale16(v: __m128i, d: f32, out: &mut [f32; 16]) {
    store(widen(v).map(|q| _mm256_mul_ps(_mm256_set1_ps(d), q)), out);
}

#[inline]
#[target_feature(enable = "avx2")]
fn affine16(v: __m128i, d: f32, m: f32, out: &mut [f32; 16]) {
    store(widen(v).map(|q| _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(d), q), _mm256_set1_ps(m))), out);
}

#[target_feature(enable = "avx2,f16c")]
fn f16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        store([chunk(x, 0), chunk(x, 1)].map(|x| _mm256_cvtph_ps(load(x))), out);
    }
    scalar::dequantize(GgmlType::F16, bytes_tail, tail);
}

#[target_feature(enable = "avx2")]
fn bf16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        let upper = |x| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(load(x))));
        store([upper(chunk(x, 0)), upper(chunk(x, 1))], out);
    }
    scalar::dequantize(GgmlType::BF16, bytes_tail, tail);
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn from_f16(x: &[u16], out: &mut [f32]) {
    f16_row(bytemuck::cast_slice(x), out);
}

#[target_feature(enable = "avx2")]
pub(super) fn from_bf16(x: &[u16], out: &mut [f32]) {
    bf16_row(bytemuck::cast_slice(x), out);
}

#[target_feature(enable = "avx2,f16c")]
pub(super) fn to_f16(x: &[f32], out: &mut [u16]) {
    let ((blocks, tail), (out_blocks, out_tail)) = (x.as_chunks::<8>(), out.as_chunks_mut::<8>());
    for (out, x) in out_blocks.iter_mut().zip(blocks) {
        // SAFETY: 8 floats are read and 8 u16 (16 bytes) written; neither needs alignment.
        unsafe {
            let half = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(x.as_ptr()));
            _mm_storeu_si128(out.as_mut_ptr().cast(), half);
        }
    }
    scalar::to_f16(tail, out_tail);
}

/// Returns bf16 in the low halves: rounded to nearest even, or truncated and quieted if NaN.
#[inline]
#[target_feature(enable = "avx2")]
fn round_bf16(x: __m256) -> __m256i {
    let bits = _mm256_castps_si256(x);
    let top = _mm256_srli_epi32::<16>(bits);
    let odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
    let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd));
    let quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
    _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x)))
}

#[target_feature(enable = "avx2")]
pub(super) fn to_bf16(x: &[f32], out: &mut [u16]) {
    let ((blocks, tail), (out_blocks, out_tail)) = (x.as_chunks::<16>(), out.as_chunks_mut::<16>());
    for (out, x) in out_blocks.iter_mut().zip(blocks) {
        // SAFETY: 16 floats are read and 16 u16 (32 bytes) written; neither needs alignment.
        unsafe {
            let (a, b) = (_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8)));
            // Packing works within 128-bit lanes: put the middle quarters back in order.
            let packed = _mm256_packus_epi32(round_bf16(a), round_bf16(b));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    scalar::to_bf16(tail, out_tail);
}
