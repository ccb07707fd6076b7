//! Q4_K and Q5_K: 8 parts of 32 values with scales and minimums of 6 bits.

use super::lanes::{importance, nearest, side_by_side, sums, unfold};
use super::offset::OffsetSearch;
use super::{SUPER, part, positive, sum_of_squares};
use crate::structs::{BlockQ4_K, BlockQ5_K, F16Le, scale_min_k4};

/// Parts of a super-block.
const PARTS: usize = 8;

/// A super-block before its levels are packed.
struct Parts {
    d: F16Le,
    dmin: F16Le,
    scales: [u8; 12],
    levels: [u8; SUPER],
}

pub(super) fn q4_k(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ4_K]) {
    let plain = OffsetSearch { n: 15.0, first: -1.0, step: 0.1, n_steps: 20, is_absolute: false };
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        let Parts { d, dmin, scales, levels } = quantize(x, part(weights, i), plain);
        *block = BlockQ4_K { d, dmin, scales, qs: nibbles(&levels) };
    }
}

pub(super) fn q5_k(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ5_K]) {
    let plain = OffsetSearch { n: 31.0, first: -0.5, step: 0.1, n_steps: 15, is_absolute: false };
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        let Parts { d, dmin, scales, levels } = quantize(x, part(weights, i), plain);
        *block = BlockQ5_K { d, dmin, scales, qh: fifth(&levels), qs: nibbles(&levels) };
    }
}

/// Quantises a super-block by the search `plain`, or with importance weights by a wider one.
fn quantize(x: &[f32; SUPER], weights: Option<&[f32; SUPER]>, plain: OffsetSearch) -> Parts {
    let mut levels = [0; SUPER];
    let lanes = side_by_side::<32, PARTS>(x);
    let (mut scales, mut minimums) = ([0; PARTS], [0; PARTS]);
    let (d, dmin) = if let Some(weights) = weights {
        let weights = importance(x, weights, 2.0 * sum_of_squares(x) / SUPER as f32);
        let weights = side_by_side::<32, PARTS>(&weights);
        let found = OffsetSearch { first: -0.9, step: 0.05, n_steps: 36, ..plain }.run(&lanes, &weights);
        unfold(&found.levels, &mut levels);
        let of_parts = sums(&weights);
        let d = positive::search(63, &found.scales, &of_parts, &mut scales);
        (d, positive::search(63, &found.minimums, &of_parts, &mut minimums))
    } else {
        let means = sums(&lanes.map(|x| x.map(|x| x * x))).map(|sum| (sum / 32.0).sqrt());
        let weights = lanes.map(|x| std::array::from_fn(|k| means[k] + x[k].abs()));
        let found = plain.run(&lanes, &weights);
        unfold(&found.levels, &mut levels);
        (of_largest(&found.scales, &mut scales), of_largest(&found.minimums, &mut minimums))
    };
    let mut parts =
        Parts { d: F16Le::from_f32(d), dmin: F16Le::from_f32(dmin), scales: pack(&scales, &minimums), levels };
    let (d, dmin) = (parts.d.to_f32(), parts.dmin.to_f32());
    let (scales, minimums) = scale_min_k4(&parts.scales);
    for (j, (x, levels)) in x.as_chunks::<32>().0.iter().zip(parts.levels.as_chunks_mut::<32>().0).enumerate() {
        let (d, minimum) = (d * f32::from(scales[j]), dmin * f32::from(minimums[j]));
        if d != 0.0 {
            *levels = x.map(|x| nearest((x + minimum) / d).clamp(0, plain.n as i32) as u8);
        }
    }
    parts
}

/// Rounds values to 63rds of the largest; returns one 63rd.
fn of_largest(x: &[f32; PARTS], levels: &mut [u8; PARTS]) -> f32 {
    let max = x.iter().fold(0.0f32, |max, &x| if x > max { x } else { max });
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    *levels = x.map(|x| (nearest(inverse * x) as u8).min(63));
    max / 63.0
}

/// Fifth bits of levels.
pub(super) fn fifth(levels: &[u8; SUPER]) -> [u8; 32] {
    let mut qh = [0; 32];
    for (k, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
        qh.iter_mut().zip(levels).for_each(|(bits, l)| *bits |= (l >> 4 & 1) << k);
    }
    qh
}

/// Packs scales and minimums of 6 bits: see [`scale_min_k4`].
pub(super) fn pack(scales: &[u8; PARTS], minimums: &[u8; PARTS]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
        packed[j + 4] = minimums[j] | minimums[j + 4] >> 4 << 6;
        packed[j + 8] = scales[j + 4] & 15 | minimums[j + 4] << 4;
    }
    packed
}

/// Low nibbles of levels, two parts in 32 bytes.
pub(super) fn nibbles(levels: &[u8; SUPER]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let at = i / 32 * 64 + i % 32;
        levels[at] & 15 | levels[at + 32] << 4
    })
}
