//! NEON: 4 values a vector.

use std::arch::aarch64::*;

use super::iq::scale4;
use super::scalar;
use super::vector::{chunk, each, two_patterns, vector_rows};
use crate::block::*;

pub(super) use super::scalar::{from_bf16, to_bf16};

vector_rows!("neon", uint8x16_t);

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; 16]) -> uint8x16_t {
    // SAFETY: 16 bytes are there; the load needs no alignment.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn bits(v: uint8x16_t, shift: i32, mask: u8) -> uint8x16_t {
    vandq_u8(vshlq_u8(v, vdupq_n_s8(-shift as i8)), vdupq_n_u8(mask))
}

#[inline]
#[target_feature(enable = "neon")]
fn or(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vorrq_u8(a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn splat(n: i8) -> uint8x16_t {
    vdupq_n_u8(n as u8)
}

#[inline]
#[target_feature(enable = "neon")]
fn sub(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
    vsubq_u8(a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn high(v: uint8x16_t) -> uint8x16_t {
    vshlq_n_u8::<4>(v)
}

#[inline]
#[target_feature(enable = "neon")]
fn all_ones(mask: u16) -> uint8x16_t {
    let [low, top] = mask.to_le_bytes();
    let bytes = vcombine_u8(vdup_n_u8(low), vdup_n_u8(top));
    vtstq_u8(bytes, load(&[1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]))
}

#[inline]
#[target_feature(enable = "neon")]
fn spread(mask: u16) -> uint8x16_t {
    vandq_u8(all_ones(mask), vdupq_n_u8(1))
}

#[inline]
#[target_feature(enable = "neon")]
fn negate(v: uint8x16_t, mask: u16) -> uint8x16_t {
    let minus = all_ones(mask);
    vsubq_u8(veorq_u8(v, minus), minus)
}

#[inline]
#[target_feature(enable = "neon")]
fn lookup(table: &[i8; 16], v: uint8x16_t) -> uint8x16_t {
    vqtbl1q_u8(load(bytemuck::must_cast_ref(table)), v)
}

#[inline]
#[target_feature(enable = "neon")]
fn half(x: F16Le) -> f32 {
    vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(u16::from_le_bytes(x.0)))))
}

/// Returns the int8 as four vectors of floats.
#[inline]
#[target_feature(enable = "neon")]
fn widen(v: uint8x16_t) -> [float32x4_t; 4] {
    let v = vreinterpretq_s8_u8(v);
    let (low, top) = (vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v));
    [vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(top)), vmovl_high_s16(top)]
        .map(|q| vcvtq_f32_s32(q))
}

#[inline]
#[target_feature(enable = "neon")]
fn store(x: [float32x4_t; 4], out: &mut [f32; 16]) {
    for (x, out) in x.into_iter().zip(out.as_chunks_mut::<4>().0) {
        // SAFETY: `out` is 4 floats; the store needs no alignment.
        unsafe { vst1q_f32(out.as_mut_ptr(), x) };
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn scale16(v: uint8x16_t, d: f32, out: &mut [f32; 16]) {
    store(widen(v).map(|q| vmulq_f32(vdupq_n_f32(d), q)), out);
}

#[inline]
#[target_feature(enable = "neon")]
fn affine16(v: uint8x16_t, d: f32, m: f32, out: &mut [f32; 16]) {
    store(widen(v).map(|q| vaddq_f32(vmulq_f32(vdupq_n_f32(d), q), vdupq_n_f32(m))), out);
}

/// Returns 8 u16 lanes of the bytes.
#[inline]
#[target_feature(enable = "neon")]
fn load16(bytes: &[u8; 16]) -> uint16x8_t {
    vreinterpretq_u16_u8(load(bytes))
}

#[target_feature(enable = "neon")]
fn f16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        let (a, b) = (load16(chunk(x, 0)), load16(chunk(x, 1)));
        let quarters = [vget_low_u16(a), vget_high_u16(a), vget_low_u16(b), vget_high_u16(b)];
        store(quarters.map(|x| vcvt_f32_f16(vreinterpret_f16_u16(x))), out);
    }
    scalar::dequantize(GgmlType::F16, bytes_tail, tail);
}

#[target_feature(enable = "neon")]
fn bf16_row(bytes: &[u8], out: &mut [f32]) {
    let (blocks, tail) = out.as_chunks_mut::<16>();
    let (bytes, bytes_tail) = bytes.split_at(2 * 16 * blocks.len());
    for (out, x) in blocks.iter_mut().zip(bytes.as_chunks::<32>().0) {
        let (a, b) = (load16(chunk(x, 0)), load16(chunk(x, 1)));
        let quarters = [vget_low_u16(a), vget_high_u16(a), vget_low_u16(b), vget_high_u16(b)];
        store(quarters.map(|x| vreinterpretq_f32_u32(vshll_n_u16::<16>(x))), out);
    }
    scalar::dequantize(GgmlType::BF16, bytes_tail, tail);
}

#[target_feature(enable = "neon")]
pub(super) fn from_f16(x: &[u16], out: &mut [f32]) {
    f16_row(bytemuck::cast_slice(x), out);
}

#[target_feature(enable = "neon")]
pub(super) fn to_f16(x: &[f32], out: &mut [u16]) {
    let ((blocks, tail), (out_blocks, out_tail)) = (x.as_chunks::<4>(), out.as_chunks_mut::<4>());
    for (out, x) in out_blocks.iter_mut().zip(blocks) {
        // SAFETY: 4 floats are read and 4 u16 written; neither needs alignment. The mode of rounding is to nearest even.
        unsafe { vst1_u16(out.as_mut_ptr(), vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x.as_ptr())))) };
    }
    scalar::to_f16(tail, out_tail);
}
