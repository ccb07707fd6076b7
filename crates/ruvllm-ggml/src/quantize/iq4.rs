//! IQ4_NL and IQ4_XS: levels of a codebook that is not even.

use super::lanes::{importance, nearest, side_by_side};
use super::legacy::nibbles;
use super::{EPSILON, SUPER, part, sum_of_squares};
use crate::grids::IQ4_VALUES;
use crate::structs::{BlockIQ4_NL, BlockIQ4_XS, F16Le};

/// Blocks of 32 that are searched at once.
const AT_ONCE: usize = 8;

/// Scales tried on either side of the first.
const N_TRIES: i32 = 7;

pub(super) fn nl(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ4_NL]) {
    let blocks = row.as_chunks::<32>().0;
    for (first, out) in out.chunks_mut(AT_ONCE).enumerate().map(|(i, out)| (i * AT_ONCE, out)) {
        let x = &blocks[first..first + out.len()];
        let mut scaled = [[0.0; 32]; AT_ONCE];
        for (k, (to, x)) in scaled.iter_mut().zip(x).enumerate() {
            *to = weighed(x, part(weights, first + k), sum_of_squares(x) * (2.0 / 32.0));
        }
        let scales = search(x.as_flattened(), scaled.as_flattened());
        for ((x, scale), block) in x.iter().zip(scales).zip(out) {
            let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
            *block = BlockIQ4_NL { d: F16Le::from_f32(scale), qs: nibbles(&x.map(|x| index(inverse * x))) };
        }
    }
}

pub(super) fn xs(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ4_XS]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        let sigma2 = sum_of_squares(x) * (2.0 / SUPER as f32);
        let parts = x.as_chunks::<32>().0;
        let mut scaled = [[0.0; 32]; AT_ONCE];
        for (k, (to, x)) in scaled.iter_mut().zip(parts).enumerate() {
            *to = weighed(x, part(weights, AT_ONCE * i + k), sigma2);
        }
        let scales = search(x, scaled.as_flattened());
        let max = scales.iter().fold(0.0f32, |max, &x| if x.abs() > max.abs() { x } else { max });
        let d = -max / 32.0;
        let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
        let scales = scales.map(|scale| nearest(inverse * scale).clamp(-32, 31));
        let mut levels = [0; SUPER];
        for ((x, levels), scale) in parts.iter().zip(levels.as_chunks_mut::<32>().0).zip(scales) {
            let d = d * scale as f32;
            let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
            *levels = x.map(|x| index(inverse * x));
        }
        *block = packed(&levels, &scales, F16Le::from_f32(d));
    }
}

/// Puts levels and scales of -32 to 31 into a super-block.
pub(super) fn packed(levels: &[u8; SUPER], scales: &[i32; AT_ONCE], d: F16Le) -> BlockIQ4_XS {
    let (mut scales_l, mut scales_h) = ([0u8; 4], 0u16);
    for (k, scale) in scales.iter().enumerate() {
        let bits = (scale + 32) as u8;
        scales_l[k / 2] |= (bits & 15) << (4 * (k % 2));
        scales_h |= u16::from(bits >> 4) << (2 * k);
    }
    let mut qs = [0; 128];
    for (to, levels) in qs.as_chunks_mut::<16>().0.iter_mut().zip(levels.as_chunks::<32>().0) {
        *to = nibbles(levels);
    }
    BlockIQ4_XS { d, scales_h: scales_h.to_le_bytes(), scales_l, qs }
}

/// Weights of values: by importance, or their squares.
fn weighed(x: &[f32; 32], weights: Option<&[f32; 32]>, sigma2: f32) -> [f32; 32] {
    weights.map_or_else(|| x.map(|x| x * x), |weights| importance(x, weights, sigma2))
}

/// Value of the codebook that is nearest.
///
/// Value `i` is taken from half the way between it and the one before on; the halves are exact.
#[inline(always)]
pub(super) fn value(x: f32) -> f32 {
    let mut value = f32::from(IQ4_VALUES[0]);
    for pair in IQ4_VALUES.windows(2) {
        let (a, b) = (f32::from(pair[0]), f32::from(pair[1]));
        value += if x < (a + b) / 2.0 { 0.0 } else { b - a };
    }
    value
}

/// Index of the value of the codebook that is nearest.
#[inline(always)]
pub(super) fn index(x: f32) -> u8 {
    let is_below = |pair: &[i8]| x < (f32::from(pair[0]) + f32::from(pair[1])) / 2.0;
    15 - IQ4_VALUES.windows(2).map(|pair| u8::from(is_below(pair))).sum::<u8>()
}

/// Searches the scales of up to eight blocks that have the least weighted squared error.
fn search(x: &[f32], weights: &[f32]) -> [f32; AT_ONCE] {
    let (x, weights) = (side_by_side::<32, AT_ONCE>(x), side_by_side::<32, AT_ONCE>(weights));
    let first = f32::from(IQ4_VALUES[0]);
    let (mut max, mut abs_max) = ([0.0f32; AT_ONCE], [0.0f32; AT_ONCE]);
    for x in &x {
        for k in 0..AT_ONCE {
            let is_larger = x[k].abs() > abs_max[k];
            max[k] = if is_larger { x[k] } else { max[k] };
            abs_max[k] = if is_larger { x[k].abs() } else { abs_max[k] };
        }
    }
    let (products, squares) = sums(&max.map(|max| 1.0 / (-max / first)), &x, &weights);
    let mut scales: [f32; AT_ONCE] =
        std::array::from_fn(|k| if squares[k] > 0.0 { products[k] / squares[k] } else { 0.0 });
    let mut best: [f32; AT_ONCE] = std::array::from_fn(|k| scales[k] * products[k]);
    for step in -N_TRIES..=N_TRIES {
        let (products, squares) = sums(&max.map(|max| (step as f32 + first) / max), &x, &weights);
        for k in 0..AT_ONCE {
            let is_better = squares[k] > 0.0 && products[k] * products[k] > best[k] * squares[k];
            let scale = products[k] / squares[k];
            scales[k] = if is_better { scale } else { scales[k] };
            best[k] = if is_better { scale * products[k] } else { best[k] };
        }
    }
    std::array::from_fn(|k| if abs_max[k] < EPSILON { 0.0 } else { scales[k] })
}

/// Sums `w·q·x` and `w·q²` of each lane.
#[inline(always)]
fn sums(
    inverse: &[f32; AT_ONCE],
    x: &[[f32; AT_ONCE]; 32],
    weights: &[[f32; AT_ONCE]; 32],
) -> ([f32; AT_ONCE], [f32; AT_ONCE]) {
    let (mut products, mut squares) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
    for (x, w) in x.iter().zip(weights) {
        for k in 0..AT_ONCE {
            let q = value(inverse[k] * x[k]);
            products[k] += w[k] * q * x[k];
            squares[k] += w[k] * q * q;
        }
    }
    (products, squares)
}
