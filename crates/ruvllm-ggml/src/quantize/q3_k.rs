//! Q3_K: 16 parts of 16 values with scales of 6 bits.

use super::lanes::{importance, nearest, side_by_side, sums, unfold};
use super::q2_k::pairs_of_bits;
use super::{SUPER, part, sum_of_squares, symmetric};
use crate::structs::{BlockQ3_K, F16Le};

/// Parts of a super-block.
const PARTS: usize = 16;

pub(super) fn row(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ3_K]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        let mut levels = [0; SUPER];
        let (scales, d) = match part::<SUPER>(weights, i) {
            None => plain(x, &mut levels),
            Some(weights) => weighted(x, weights, &mut levels),
        };
        let mut new = BlockQ3_K { hmask: [0; 32], qs: [0; 64], scales: pack(&scales), d: F16Le::from_f32(d) };
        let (d, scales) = (new.d.to_f32(), new.scales());
        for (j, (x, levels)) in x.as_chunks::<16>().0.iter().zip(levels.as_chunks_mut::<16>().0).enumerate() {
            let d = d * f32::from(scales[j]);
            if d != 0.0 {
                *levels = x.map(|x| (nearest(x / d).clamp(-4, 3) + 4) as u8);
            }
        }
        put_levels(&levels, &mut new);
        *block = new;
    }
}

/// Puts levels of 3 bits into a block.
pub(super) fn put_levels(levels: &[u8; SUPER], block: &mut BlockQ3_K) {
    block.hmask = [0; 32];
    for (k, levels) in levels.as_chunks::<32>().0.iter().enumerate() {
        block.hmask.iter_mut().zip(levels).for_each(|(bits, l)| *bits |= (l >> 2 & 1) << k);
    }
    block.qs = pairs_of_bits(&levels.map(|l| l & 3));
}

/// Scales of 0 to 63 and the scale of the scales.
fn plain(x: &[f32; SUPER], levels: &mut [u8; SUPER]) -> ([u8; PARTS], f32) {
    let found = symmetric::descend(4.0, &side_by_side::<16, PARTS>(x));
    unfold(&found.levels, levels);
    let max = found.scales.iter().fold(0.0f32, |max, &x| if x.abs() > max.abs() { x } else { max });
    if max == 0.0 {
        return ([0; PARTS], 0.0);
    }
    let inverse = -32.0 / max;
    (found.scales.map(|scale| ((nearest(inverse * scale) as i8).clamp(-32, 31) + 32) as u8), 1.0 / inverse)
}

fn weighted(x: &[f32; SUPER], weights: &[f32; SUPER], levels: &mut [u8; SUPER]) -> ([u8; PARTS], f32) {
    let weights = importance(x, weights, 2.0 * sum_of_squares(x) / SUPER as f32);
    let weights = side_by_side::<16, PARTS>(&weights);
    let found = symmetric::search(4.0, &side_by_side(x), &weights);
    unfold(&found.levels, levels);
    let found = symmetric::search(32.0, &found.scales.map(|x| [x]), &sums(&weights).map(|x| [x]));
    let mut scales = [0; PARTS];
    unfold(&found.levels, &mut scales);
    (scales, found.scales[0])
}

/// Packs scales of 6 bits: see [`BlockQ3_K::scales`].
pub(super) fn pack(scales: &[u8; PARTS]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (j, scale) in scales.iter().enumerate() {
        packed[j % 8] |= (scale & 15) << (4 * (j / 8));
        packed[8 + j % 4] |= (scale >> 4) << (2 * (j / 4));
    }
    packed
}
