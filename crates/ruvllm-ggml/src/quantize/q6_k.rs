//! Q6_K: 16 parts of 16 values with scales of 8 bits.

use bytemuck::Zeroable as _;

use super::lanes::{nearest, side_by_side, unfold};
use super::{EPSILON, SUPER, part, symmetric};
use crate::structs::{BlockQ6_K, F16Le};

/// Parts of a super-block.
const PARTS: usize = 16;

pub(super) fn row(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ6_K]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = quantize(x, part(weights, i));
    }
}

fn quantize(x: &[f32; SUPER], weights: Option<&[f32; SUPER]>) -> BlockQ6_K {
    let lanes = side_by_side::<16, PARTS>(x);
    let weights = weights.map_or_else(|| lanes.map(|x| x.map(|x| x * x)), |weights| side_by_side(weights));
    let found = symmetric::search(32.0, &lanes, &weights);
    let mut levels = [0; SUPER];
    unfold(&found.levels, &mut levels);
    let max = found.scales.iter().fold(0.0f32, |max, &x| if x.abs() > max.abs() { x } else { max });
    if max.abs() < EPSILON {
        return BlockQ6_K::zeroed();
    }
    let inverse = -128.0 / max;
    let d = F16Le::from_f32(1.0 / inverse);
    let scales = found.scales.map(|scale| nearest(inverse * scale).min(127) as i8);
    for (j, (x, levels)) in x.as_chunks::<16>().0.iter().zip(levels.as_chunks_mut::<16>().0).enumerate() {
        let d = d.to_f32() * f32::from(scales[j]);
        if d != 0.0 {
            *levels = x.map(|x| (nearest(x / d).clamp(-32, 31) + 32) as u8);
        }
    }
    packed(&levels, scales, d)
}

/// Puts levels of 6 bits into a block.
pub(super) fn packed(levels: &[u8; SUPER], scales: [i8; PARTS], d: F16Le) -> BlockQ6_K {
    let (mut ql, mut qh) = ([0; 128], [0; 64]);
    for (i, (ql, qh)) in ql.as_chunks_mut::<64>().0.iter_mut().zip(qh.as_chunks_mut::<32>().0).enumerate() {
        let l = |k: usize, j: usize| levels[128 * i + 32 * k + j];
        for j in 0..32 {
            ql[j] = l(0, j) & 15 | l(2, j) << 4;
            ql[j + 32] = l(1, j) & 15 | l(3, j) << 4;
            qh[j] = l(0, j) >> 4 | l(1, j) >> 4 << 2 | l(2, j) >> 4 << 4 | l(3, j) >> 4 << 6;
        }
    }
    BlockQ6_K { ql, qh, scales, d }
}
