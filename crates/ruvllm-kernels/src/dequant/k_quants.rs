//! Super-blocks of 256 with integer scales.

use crate::block::{BlockQ2_K, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, BlockQ8_K, scale_min_k4};

pub(super) fn q2_k(block: &BlockQ2_K, out: &mut [f32; 256]) {
    let (d, dmin) = (block.d.to_f32(), block.dmin.to_f32());
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = block.scales[i];
        let (dl, ml) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
        let (start, shift) = (32 * (i / 8) + 16 * (i % 2), 2 * (i / 2 % 4));
        for (out, q) in out.iter_mut().zip(&block.qs[start..]) {
            *out = dl * f32::from(q >> shift & 3) - ml;
        }
    }
}

pub(super) fn q3_k(block: &BlockQ3_K, out: &mut [f32; 256]) {
    let (d, scales) = (block.d.to_f32(), block.scales());
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = d * f32::from(scales[i]);
        let (start, shift) = (32 * (i / 8) + 16 * (i % 2), 2 * (i / 2 % 4));
        let high = &block.hmask[16 * (i % 2)..];
        for ((out, q), h) in out.iter_mut().zip(&block.qs[start..]).zip(high) {
            // The bit is set where nothing is to be subtracted.
            let q = (q >> shift & 3) as i8 - (!h >> (i / 2) & 1) as i8 * 4;
            *out = dl * f32::from(q);
        }
    }
}

pub(super) fn q4_k(block: &BlockQ4_K, out: &mut [f32; 256]) {
    let (d, dmin) = (block.d.to_f32(), block.dmin.to_f32());
    let (scales, mins) = scale_min_k4(&block.scales);
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (dl, ml) = (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        for (out, q) in out.iter_mut().zip(&block.qs[32 * (i / 2)..]) {
            *out = dl * f32::from(q >> (4 * (i % 2)) & 15) - ml;
        }
    }
}

pub(super) fn q5_k(block: &BlockQ5_K, out: &mut [f32; 256]) {
    let (d, dmin) = (block.d.to_f32(), block.dmin.to_f32());
    let (scales, mins) = scale_min_k4(&block.scales);
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (dl, ml) = (d * f32::from(scales[i]), dmin * f32::from(mins[i]));
        for ((out, q), h) in out.iter_mut().zip(&block.qs[32 * (i / 2)..]).zip(&block.qh) {
            let q = q >> (4 * (i % 2)) & 15 | (h >> i & 1) << 4;
            *out = dl * f32::from(q) - ml;
        }
    }
}

pub(super) fn q6_k(block: &BlockQ6_K, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let dl = d * f32::from(block.scales[i]);
        // `half` of 128 values, `group` of 32 in it, start of the 16 in that.
        let (half, group, start) = (i / 8, i / 2 % 4, 16 * (i % 2));
        let low = &block.ql[64 * half + 32 * (group % 2) + start..];
        let high = &block.qh[32 * half + start..];
        for ((out, l), h) in out.iter_mut().zip(low).zip(high) {
            let q = l >> (4 * (group / 2)) & 15 | (h >> (2 * group) & 3) << 4;
            *out = dl * f32::from(q as i8 - 32);
        }
    }
}

pub(super) fn q8_k(block: &BlockQ8_K, out: &mut [f32; 256]) {
    let d = f32::from_le_bytes(block.d);
    for (out, q) in out.iter_mut().zip(block.qs) {
        *out = d * f32::from(q);
    }
}
