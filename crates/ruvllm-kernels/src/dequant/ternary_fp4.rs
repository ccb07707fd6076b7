//! The ternary types and MXFP4.

use super::legacy::nibbles;
use crate::block::{BlockMXFP4, BlockTQ1_0, BlockTQ2_0, MXFP4_VALUES};

/// Digit `k` of `bytes[j]` becomes value `k * bytes.len() + j`.
fn base3(d: f32, bytes: &[u8], out: &mut [f32]) {
    for (out, power) in out.chunks_exact_mut(bytes.len()).zip([1u8, 3, 9, 27, 81]) {
        for (out, byte) in out.iter_mut().zip(bytes) {
            // The byte is a fraction of 256: shift the digit to the front, then it is the integer part of three times it.
            let digit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *out = d * (f32::from(digit) - 1.0);
        }
    }
}

pub(super) fn tq1_0(block: &BlockTQ1_0, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    base3(d, &block.qs[..32], &mut out[..160]);
    base3(d, &block.qs[32..], &mut out[160..240]);
    base3(d, &block.qh, &mut out[240..]);
}

pub(super) fn tq2_0(block: &BlockTQ2_0, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (out, q) in out.iter_mut().zip(&block.qs[32 * (i / 4)..]) {
            *out = d * f32::from((q >> (2 * (i % 4)) & 3) as i8 - 1);
        }
    }
}

pub(super) fn mxfp4(block: &BlockMXFP4, out: &mut [f32; 32]) {
    let d = block.half_scale();
    for (out, q) in out.iter_mut().zip(nibbles(&block.qs)) {
        *out = d * f32::from(MXFP4_VALUES[usize::from(q)]);
    }
}
