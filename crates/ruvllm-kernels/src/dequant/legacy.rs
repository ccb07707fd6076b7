//! Blocks of 32 with an f16 scale, and their activation formats.

use crate::block::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, BlockQ8_1};

/// Returns the nibbles of a block of 32: the low ones, then the high ones.
#[inline]
pub(super) fn nibbles(qs: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|j| qs[j % 16] >> (4 * (j / 16)) & 15)
}

/// As [`nibbles`], with bit `j` of `qh` as the fifth bit of value `j`.
#[inline]
fn five_bits(qs: &[u8; 16], qh: [u8; 4]) -> [u8; 32] {
    let (low, qh) = (nibbles(qs), u32::from_le_bytes(qh));
    std::array::from_fn(|j| low[j] | (((qh >> j) as u8 & 1) << 4))
}

pub(super) fn q4_0(block: &BlockQ4_0, out: &mut [f32; 32]) {
    let d = block.d.to_f32();
    for (out, q) in out.iter_mut().zip(nibbles(&block.qs)) {
        *out = d * f32::from(q as i8 - 8);
    }
}

pub(super) fn q4_1(block: &BlockQ4_1, out: &mut [f32; 32]) {
    let (d, m) = (block.d.to_f32(), block.m.to_f32());
    for (out, q) in out.iter_mut().zip(nibbles(&block.qs)) {
        *out = d * f32::from(q) + m;
    }
}

pub(super) fn q5_0(block: &BlockQ5_0, out: &mut [f32; 32]) {
    let d = block.d.to_f32();
    for (out, q) in out.iter_mut().zip(five_bits(&block.qs, block.qh)) {
        *out = d * f32::from(q as i8 - 16);
    }
}

pub(super) fn q5_1(block: &BlockQ5_1, out: &mut [f32; 32]) {
    let (d, m) = (block.d.to_f32(), block.m.to_f32());
    for (out, q) in out.iter_mut().zip(five_bits(&block.qs, block.qh)) {
        *out = d * f32::from(q) + m;
    }
}

pub(super) fn q8_0(block: &BlockQ8_0, out: &mut [f32; 32]) {
    let d = block.d.to_f32();
    for (out, q) in out.iter_mut().zip(block.qs) {
        *out = d * f32::from(q);
    }
}

pub(super) fn q8_1(block: &BlockQ8_1, out: &mut [f32; 32]) {
    let d = block.d.to_f32();
    for (out, q) in out.iter_mut().zip(block.qs) {
        *out = d * f32::from(q);
    }
}
