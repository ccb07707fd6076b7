//! IQ1_S and IQ1_M: levels -1, 0 and 1 with an offset of an eighth up or down, eight of which are a point of a codebook.
//!
//! The levels of a part are found exactly: sorted values are cut into three runs in every way. Then eights that are no point become the
//! nearest one, and the scale is fitted to what is left.

use super::codebook::{Fit, IQ1, Near};
use super::lanes::{importance, nearest};
use super::{SUPER, part, sum_of_squares};
use crate::structs::{BlockIQ1_M, BlockIQ1_S, F16Le};

/// Values of the levels, with the offset up and down.
const VALUES: [[f32; 3]; 2] = [[-0.875, 0.125, 1.125], [-1.125, -0.125, 0.875]];

/// A way to cut a part's sorted values: the ends of the first two runs, and the offset of each half (0 up, 1 down).
#[derive(Clone, Copy, Debug)]
struct Cut {
    first: usize,
    second: usize,
    offsets: [usize; 2],
    scale: f32,
}

/// A part: points of its eights, offsets of its halves.
#[derive(Clone, Copy, Debug)]
struct Part<const EIGHTS: usize> {
    points: [u16; EIGHTS],
    offsets: [usize; 2],
    scale: f32,
}

pub(super) fn s(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ1_S]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = BlockIQ1_S { d: F16Le::from_f32(0.0), qs: [0; 32], qh: [[0; 2]; 8] };
        let sigma2 = 2.0 * sum_of_squares(x) / SUPER as f32;
        let weights = all_weights(x, part(weights, i), sigma2);
        let mut found: [Option<Part<4>>; 8] = [None; 8];
        for (k, (x, weights)) in x.as_chunks::<32>().0.iter().zip(weights.as_chunks::<32>().0).enumerate() {
            let cut = if is_zero(x, 1e-12) { None } else { cut_whole(x, weights) };
            found[k] = cut.map(|(cut, order)| points(x, weights, cut, &order));
        }
        let max = largest_scale(&found);
        let inverse = 1.0 / (max / 15.0);
        for (k, found) in found.iter().enumerate() {
            let mut high = 0;
            if let Some(Part { points, .. }) = found {
                block.qs.as_chunks_mut::<4>().0[k] = points.map(|point| point as u8);
                high = (0..4).fold(0, |high, j| high | (points[j] >> 8) << (3 * j));
            }
            if max != 0.0 {
                let is_down = found.is_some_and(|found| found.offsets[0] == 1);
                high |= (scale_level(inverse, found) | u16::from(is_down) << 3) << 12;
            }
            block.qh[k] = high.to_le_bytes();
        }
        if max != 0.0 {
            // The reference found by trying that slightly larger scales are better.
            block.d = F16Le::from_f32(max / 15.0 * 1.125);
        }
    }
}

pub(super) fn m(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ1_M]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = BlockIQ1_M { qs: [0; 32], qh: [0; 16], scales: [[0; 2]; 4] };
        let sigma2 = 2.0 * sum_of_squares(x) / SUPER as f32;
        let weights = all_weights(x, part(weights, i), sigma2);
        let parts = x.as_chunks::<16>().0.iter().zip(weights.as_chunks::<16>().0);
        let mut found: [Option<Part<2>>; 16] = [None; 16];
        for (to, (x, weights)) in found.iter_mut().zip(parts) {
            let cut = if is_zero(x, 1e-7) { None } else { cut_halves(x, weights) };
            *to = cut.map(|(cut, order)| points(x, weights, cut, &order));
        }
        let max = largest_scale(&found);
        for (k, Part { points: [a, b], .. }) in found.iter().enumerate().filter_map(|(k, found)| Some((k, (*found)?))) {
            block.qs.as_chunks_mut::<2>().0[k] = [a as u8, b as u8];
            block.qh[k] = (a >> 8 | b >> 8 << 4) as u8;
        }
        if max != 0.0 {
            scales_of_m(x, &weights, &found, max, block);
        }
    }
}

/// Writes the scales and offsets of a block whose points are there, and fits the scale of scales.
fn scales_of_m(
    x: &[f32; SUPER],
    weights: &[f32; SUPER],
    found: &[Option<Part<2>>; 16],
    max: f32,
    block: &mut BlockIQ1_M,
) {
    let mut d = max / 15.0;
    let inverse = 1.0 / d;
    let (mut products, mut squares) = (0.0, 0.0);
    let mut scales = [0u16; 4];
    let parts = x.as_chunks::<16>().0.iter().zip(weights.as_chunks::<16>().0);
    for (k, (found, (x, weights))) in found.iter().zip(parts).enumerate() {
        let level = scale_level(inverse, found);
        scales[k / 4] |= level << (3 * (k % 4));
        let (points, offsets) = found.map_or(([0; 2], [0; 2]), |found| (found.points, found.offsets));
        block.qh[k] |= (offsets[0] << 3 | offsets[1] << 7) as u8;
        for (j, (x, weights)) in x.as_chunks::<8>().0.iter().zip(weights.as_chunks::<8>().0).enumerate() {
            for ((&x, &w), &l) in x.iter().zip(weights).zip(IQ1.point(points[j])) {
                let q = VALUES[offsets[j]][usize::from(l)] * f32::from(2 * level + 1);
                products += w * q * x;
                squares += w * q * q;
            }
        }
    }
    if squares > 0.0 {
        d = products / squares;
    }
    let bits = u16::from_le_bytes(F16Le::from_f32(d * 1.1125).0);
    for (k, scale) in scales.iter_mut().enumerate() {
        *scale |= (bits >> (4 * k) & 15) << 12;
    }
    block.scales = scales.map(u16::to_le_bytes);
}

/// Returns the level of a part's scale: `2·level + 1` of 15 are the largest scale.
fn scale_level<const EIGHTS: usize>(inverse: f32, found: &Option<Part<EIGHTS>>) -> u16 {
    let scale = found.map_or(0.0, |found| found.scale);
    nearest(0.5 * (inverse * scale - 1.0)).clamp(0, 7) as u16
}

fn largest_scale<const EIGHTS: usize>(found: &[Option<Part<EIGHTS>>]) -> f32 {
    found.iter().flatten().fold(0.0, |max, found| if max > found.scale { max } else { found.scale })
}

fn all_weights(x: &[f32; SUPER], weights: Option<&[f32; SUPER]>, sigma2: f32) -> [f32; SUPER] {
    match weights {
        Some(weights) => importance(x, weights, sigma2),
        None => x.map(|x| x * x),
    }
}

fn is_zero(x: &[f32], epsilon: f32) -> bool {
    x.iter().fold(0.0f32, |max, x| if max > x.abs() { max } else { x.abs() }) < epsilon
}

/// Returns the places of values from small to large; of equal ones the first comes first.
fn sorted<const N: usize>(x: &[f32; N]) -> [usize; N] {
    let mut order = std::array::from_fn(|i| i);
    // Zeros of both signs are equal.
    order.sort_by(|&a: &usize, &b| (x[a] + 0.0).total_cmp(&(x[b] + 0.0)));
    order
}

/// Cuts a part whose offset is one.
fn cut_whole(x: &[f32; 32], weights: &[f32; 32]) -> Option<(Cut, [usize; 32])> {
    let order = sorted(x);
    let (mut sum_x, mut sum_w) = ([0.0; 33], [0.0; 33]);
    for (j, &i) in order.iter().enumerate() {
        sum_x[j + 1] = sum_x[j] + weights[i] * x[i];
        sum_w[j + 1] = sum_w[j] + weights[i];
    }
    let (mut best, mut score) = (None, -f32::MAX);
    for first in 0..=32 {
        for second in first..=32 {
            for (offset, v) in VALUES.iter().enumerate() {
                let products =
                    sum_x[first] * v[0] + (sum_x[second] - sum_x[first]) * v[1] + (sum_x[32] - sum_x[second]) * v[2];
                let squares = sum_w[first] * v[0] * v[0]
                    + (sum_w[second] - sum_w[first]) * v[1] * v[1]
                    + (sum_w[32] - sum_w[second]) * v[2] * v[2];
                if squares > 0.0 && products * products > score * squares {
                    let scale = products / squares;
                    score = scale * products;
                    best = Some(Cut { first, second, offsets: [offset; 2], scale });
                }
            }
        }
    }
    best.map(|best| (best, order))
}

/// Cuts a part whose halves have offsets of their own. With `v[1] - v[0] = v[2] - v[1] = 1` sums over three runs are a total and two
/// sums from the begin.
fn cut_halves(x: &[f32; 16], weights: &[f32; 16]) -> Option<(Cut, [usize; 16])> {
    let order = sorted(x);
    let (mut sum_x, mut sum_w) = ([[0.0; 17]; 2], [[0.0; 17]; 2]);
    for (j, &i) in order.iter().enumerate() {
        for h in 0..2 {
            let is_here = i / 8 == h;
            sum_x[h][j + 1] = if is_here { sum_x[h][j] + weights[i] * x[i] } else { sum_x[h][j] };
            sum_w[h][j + 1] = if is_here { sum_w[h][j] + weights[i] } else { sum_w[h][j] };
        }
    }
    let (mut best, mut score) = (None, -f32::MAX);
    for first in 0..=16 {
        for second in first..=16 {
            // Of each half, of each offset.
            let (mut products, mut squares) = ([[0.0; 2]; 2], [[0.0; 2]; 2]);
            for h in 0..2 {
                let sum = sum_x[h][first] + sum_x[h][second];
                for (offset, v) in VALUES.iter().enumerate() {
                    products[h][offset] = sum_x[h][16] * v[2] - sum;
                    squares[h][offset] = sum_w[h][16] * v[2] * v[2]
                        + sum_w[h][first] * (v[0] * v[0] - v[1] * v[1])
                        + sum_w[h][second] * (v[1] * v[1] - v[2] * v[2]);
                }
            }
            for offsets in [[0, 0], [0, 1], [1, 0], [1, 1]] {
                let [a, b] = offsets;
                let (products, squares) = (products[0][a] + products[1][b], squares[0][a] + squares[1][b]);
                if squares > 0.0 && products * products > score * squares {
                    let scale = products / squares;
                    score = scale * products;
                    best = Some(Cut { first, second, offsets, scale });
                }
            }
        }
    }
    best.map(|best| (best, order))
}

/// Rounds the eights of a part to points, and fits the scale to them.
fn points<const N: usize, const EIGHTS: usize>(
    x: &[f32; N],
    weights: &[f32; N],
    cut: Cut,
    order: &[usize; N],
) -> Part<EIGHTS> {
    let Cut { first, second, mut offsets, mut scale } = cut;
    let mut levels = [0u8; N];
    for (j, &i) in order.iter().enumerate() {
        levels[i] = u8::from(j >= first) + u8::from(j >= second);
    }
    if scale < 0.0 {
        levels = levels.map(|level| 2 - level);
        scale = -scale;
        offsets = offsets.map(|offset| 1 - offset);
    }
    let values = |eight: usize| &VALUES[offsets[eight * 2 / EIGHTS]];
    let eights = || x.as_chunks::<8>().0.iter().zip(weights.as_chunks::<8>().0);
    let (mut points, mut has_others) = ([0; EIGHTS], false);
    for (k, ((x, weights), levels)) in eights().zip(levels.as_chunks::<8>().0).enumerate() {
        points[k] = match IQ1.near(levels) {
            Near::Point(point) => point,
            Near::Others(near) => {
                has_others = true;
                IQ1.best(near, &Fit { x, weights, scale, step: 1.0, offset: values(k)[0] })
            }
        };
    }
    if has_others {
        let (mut products, mut squares) = (0.0, 0.0);
        for (k, (x, weights)) in eights().enumerate() {
            for ((&x, &w), &level) in x.iter().zip(weights).zip(IQ1.point(points[k])) {
                let q = values(k)[usize::from(level)];
                products += w * q * x;
                squares += w * q * q;
            }
        }
        if products > 0.0 && squares > 0.0 {
            scale = products / squares;
        }
    }
    Part { points, offsets, scale }
}
