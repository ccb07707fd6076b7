//! simd128: 4 values a vector.

use std::arch::wasm32::*;

use super::iq::scale4;
use super::scalar;
use super::vector::{chunk, each, two_patterns, vector_rows};
use crate::block::*;
use crate::lanes::simd128::{widen_f16, widen_i8};

pub(super) use super::scalar::{from_bf16, to_bf16, to_f16};

vector_rows!("simd128", v128);

#[inline]
#[target_feature(enable = "simd128")]
fn load(bytes: &[u8; 16]) -> v128 {
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { v128_load(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "simd128")]
fn bits(v: v128, shift: i32, mask: u8) -> v128 {
    v128_and(u8x16_shr(v, shift as u32), u8x16_splat(mask))
}

#[inline]
#[target_feature(enable = "simd128")]
fn or(a: v128, b: v128) -> v128 {
    v128_or(a, b)
}

#[inline]
#[target_feature(enable = "simd128")]
fn splat(n: i8) -> v128 {
    i8x16_splat(n)
}

#[inline]
#[target_feature(enable = "simd128")]
fn sub(a: v128, b: v128) -> v128 {
    i8x16_sub(a, b)
}

#[inline]
#[target_feature(enable = "simd128")]
fn high(v: v128) -> v128 {
    u8x16_shl(v, 4)
}

#[inline]
#[target_feature(enable = "simd128")]
fn all_ones(mask: u16) -> v128 {
    let [low, top] = mask.to_le_bytes();
    let bytes = u64x2(u64::from_le_bytes([low; 8]), u64::from_le_bytes([top; 8]));
    let bit = load(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
    u8x16_eq(v128_and(bytes, bit), bit)
}

#[inline]
#[target_feature(enable = "simd128")]
fn spread(mask: u16) -> v128 {
    v128_and(all_ones(mask), u8x16_splat(1))
}

#[inline]
#[target_feature(enable = "simd128")]
fn negate(v: v128, mask: u16) -> v128 {
    let minus = all_ones(mask);
    i8x16_sub(v128_xor(v, minus), minus)
}

#[inline]
#[target_feature(enable = "simd128")]
fn lookup(table: &[i8; 16], v: v128) -> v128 {
    u8x16_swizzle(load(bytemuck::must_cast_ref(table)), v)
}

#[inline]
#[target_feature(enable = "simd128")]
fn half(x: F16Le) -> f32 {
    f32x4_extract_lane::<0>(widen_f16(u32x4_splat(u32::from(u16::from_le_bytes(x.0)))))
}

#[inline]
#[target_feature(enable = "simd128")]
fn store(x: [v128; 4], out: &mut [f32; 16]) {
    for (x, out) in x.into_iter().zip(out.as_chunks_mut::<4>().0) {
        // SAFETY: `out` is 4 floats; the store needs no alignment.
        unsafe { v128_store(out.as_mut_ptr().cast(), x) };
    }
}

#[inline]
#[target_feature(enable = "simd128")]
fn scale16(v: v128, d: f32, out: &mut [f32; 16]) {
    store(widen_i8(v).map(|q| f32x4_mul(f32x4_splat(d), q)), out);
}

#[inline]
#[target_feature(enable = "simd128")]
fn affine16(v: v128, d: f32, m: f32, out: &mut [f32; 16]) {
    store(widen_i8(v).map(|q| f32x4_add(f32x4_mul(f32x4_splat(d), q), f32x4_splat(m))), out);
}

/// Returns 16 halves, each in the lower part of a lane.
#[inline]
#[target_feature(enable = "simd128")]
fn lanes16(bytes: &[u8; 32]) -> [v128; 4] {
    let (a, b) = (load(chunk(bytes, 0)), load(chunk(bytes, 1)));
    [u32x4_extend_low_u16x8(a), u32x4_extend_high_u16x8(a), u32x4_extend_low_u16x8(b), u32x4_extend_high_u16x8(b)]
}

#[target_feature(enable = "simd128")]
fn f16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        store(lanes16(x).map(widen_f16), out);
    }
    scalar::dequantize(GgmlType::F16, bytes_tail, tail);
}

#[target_feature(enable = "simd128")]
fn bf16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        store(lanes16(x).map(|x| u32x4_shl(x, 16)), out);
    }
    scalar::dequantize(GgmlType::BF16, bytes_tail, tail);
}

#[target_feature(enable = "simd128")]
pub(super) fn from_f16(x: &[u16], out: &mut [f32]) {
    f16_row(bytemuck::cast_slice(x), out);
}
