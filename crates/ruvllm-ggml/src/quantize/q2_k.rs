//! Q2_K: 16 parts of 16 values with scales and minimums of 4 bits.

use super::lanes::{importance, nearest, side_by_side, sums, unfold};
use super::offset::OffsetSearch;
use super::{SUPER, part, positive, sum_of_squares};
use crate::structs::{BlockQ2_K, F16Le};

/// Parts of a super-block.
const PARTS: usize = 16;

/// Scales and minimums of the parts, their levels, and the scales of both.
struct Scales {
    scales: [u8; PARTS],
    minimums: [u8; PARTS],
    d: f32,
    dmin: f32,
}

pub(super) fn row(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ2_K]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        let mut levels = [0; SUPER];
        let found = match part::<SUPER>(weights, i) {
            None => plain(x, &mut levels),
            Some(weights) => weighted(x, weights, &mut levels),
        };
        let scales = std::array::from_fn(|j| found.scales[j] | found.minimums[j] << 4);
        let mut new = BlockQ2_K { scales, qs: [0; 64], d: F16Le::from_f32(found.d), dmin: F16Le::from_f32(found.dmin) };
        let (d, dmin) = (new.d.to_f32(), new.dmin.to_f32());
        for (j, (x, levels)) in x.as_chunks::<16>().0.iter().zip(levels.as_chunks_mut::<16>().0).enumerate() {
            let d = d * f32::from(new.scales[j] & 15);
            let minimum = dmin * f32::from(new.scales[j] >> 4);
            if d != 0.0 {
                *levels = x.map(|x| nearest((x + minimum) / d).clamp(0, 3) as u8);
            }
        }
        new.qs = pairs_of_bits(&levels);
        *block = new;
    }
}

fn plain(x: &[f32; SUPER], levels: &mut [u8; SUPER]) -> Scales {
    let search = OffsetSearch { n: 3.0, first: -0.5, step: 0.1, n_steps: 15, is_absolute: true };
    let lanes = side_by_side::<16, PARTS>(x);
    let weights = lanes.map(|x| x.map(f32::abs));
    let found = search.run(&lanes, &weights);
    unfold(&found.levels, levels);
    let (scales, d) = of_largest(&found.scales);
    let (minimums, dmin) = of_largest(&found.minimums);
    Scales { scales, minimums, d, dmin }
}

/// Rounds values to 15ths of the largest.
fn of_largest(x: &[f32; PARTS]) -> ([u8; PARTS], f32) {
    let max = x.iter().fold(0.0f32, |max, &x| if x > max { x } else { max });
    if max > 0.0 {
        let inverse = 15.0 / max;
        return (x.map(|x| nearest(inverse * x) as u8), max / 15.0);
    }
    ([0; PARTS], 0.0)
}

fn weighted(x: &[f32; SUPER], weights: &[f32; SUPER], levels: &mut [u8; SUPER]) -> Scales {
    let search = OffsetSearch { n: 3.0, first: -0.9, step: 0.05, n_steps: 36, is_absolute: false };
    let weights = importance(x, weights, sum_of_squares(x) / SUPER as f32);
    let weights = side_by_side::<16, PARTS>(&weights);
    let found = search.run(&side_by_side(x), &weights);
    unfold(&found.levels, levels);
    let of_parts = sums(&weights);
    let (mut scales, mut minimums) = ([0; PARTS], [0; PARTS]);
    let d = positive::search(15, &found.scales, &of_parts, &mut scales);
    let dmin = positive::search(15, &found.minimums, &of_parts, &mut minimums);
    Scales { scales, minimums, d, dmin }
}

/// Packs levels of 2 bits, four a byte.
pub(super) fn pairs_of_bits(levels: &[u8; SUPER]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let l = |k: usize| levels[i / 32 * 128 + i % 32 + 32 * k];
        l(0) | l(1) << 2 | l(2) << 4 | l(3) << 6
    })
}
