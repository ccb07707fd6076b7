//! The truth: plain loops. Scalar types are here, block types in the file of their family.

use half::{bf16, f16};

use super::{iq, k_quants, legacy, ternary_fp4};
use crate::block::{self, GgmlType};

/// Dequantises whole blocks; the lengths are the caller's promise.
pub(super) fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    match ty {
        GgmlType::F32 => each(bytes, out, f32::from_le_bytes),
        GgmlType::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        GgmlType::BF16 => each(bytes, out, |b| from_bf16_bits(u16::from_le_bytes(b))),
        GgmlType::F64 => each(bytes, out, |b| f64::from_le_bytes(b) as f32),
        GgmlType::I8 => each(bytes, out, |b| f32::from(i8::from_le_bytes(b))),
        GgmlType::I16 => each(bytes, out, |b| f32::from(i16::from_le_bytes(b))),
        GgmlType::I32 => each(bytes, out, |b| i32::from_le_bytes(b) as f32),
        GgmlType::I64 => each(bytes, out, |b| i64::from_le_bytes(b) as f32),
        GgmlType::Q4_0 => blocks(bytes, out, legacy::q4_0),
        GgmlType::Q4_1 => blocks(bytes, out, legacy::q4_1),
        GgmlType::Q5_0 => blocks(bytes, out, legacy::q5_0),
        GgmlType::Q5_1 => blocks(bytes, out, legacy::q5_1),
        GgmlType::Q8_0 => blocks(bytes, out, legacy::q8_0),
        GgmlType::Q8_1 => blocks(bytes, out, legacy::q8_1),
        GgmlType::Q2_K => blocks(bytes, out, k_quants::q2_k),
        GgmlType::Q3_K => blocks(bytes, out, k_quants::q3_k),
        GgmlType::Q4_K => blocks(bytes, out, k_quants::q4_k),
        GgmlType::Q5_K => blocks(bytes, out, k_quants::q5_k),
        GgmlType::Q6_K => blocks(bytes, out, k_quants::q6_k),
        GgmlType::Q8_K => blocks(bytes, out, k_quants::q8_k),
        GgmlType::IQ2_XXS => blocks(bytes, out, iq::iq2_xxs),
        GgmlType::IQ2_XS => blocks(bytes, out, iq::iq2_xs),
        GgmlType::IQ2_S => blocks(bytes, out, iq::iq2_s),
        GgmlType::IQ3_XXS => blocks(bytes, out, iq::iq3_xxs),
        GgmlType::IQ3_S => blocks(bytes, out, iq::iq3_s),
        GgmlType::IQ1_S => blocks(bytes, out, iq::iq1_s),
        GgmlType::IQ1_M => blocks(bytes, out, iq::iq1_m),
        GgmlType::IQ4_NL => blocks(bytes, out, iq::iq4_nl),
        GgmlType::IQ4_XS => blocks(bytes, out, iq::iq4_xs),
        GgmlType::TQ1_0 => blocks(bytes, out, ternary_fp4::tq1_0),
        GgmlType::TQ2_0 => blocks(bytes, out, ternary_fp4::tq2_0),
        GgmlType::MXFP4 => blocks(bytes, out, ternary_fp4::mxfp4),
    }
}

/// Returns the f32 whose upper half this is; unlike `bf16::to_f32` it has no branch for NaN.
fn from_bf16_bits(x: u16) -> f32 {
    f32::from_bits(u32::from(x) << 16)
}

/// Converts each `N` bytes to one value.
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn([u8; N]) -> f32) {
    for (out, x) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = f(*x);
    }
}

/// Calls `f` on each block and its `N` values.
fn blocks<B: block::Block, const N: usize>(bytes: &[u8], out: &mut [f32], f: impl Fn(&B, &mut [f32; N])) {
    const { assert!(B::LEN == N) };
    for (out, x) in out.as_chunks_mut::<N>().0.iter_mut().zip(block::cast::<B>(bytes)) {
        f(x, out);
    }
}

pub(super) fn to_f16(x: &[f32], out: &mut [u16]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = f16::from_f32(*x).to_bits();
    }
}

pub(super) fn from_f16(x: &[u16], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = f16::from_bits(*x).to_f32();
    }
}

pub(super) fn to_bf16(x: &[f32], out: &mut [u16]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = bf16::from_f32(*x).to_bits();
    }
}

pub(super) fn from_bf16(x: &[u16], out: &mut [f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = from_bf16_bits(*x);
    }
}
