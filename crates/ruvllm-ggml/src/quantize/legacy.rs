//! Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 with scales of their own.
//!
//! Where the inverse of a scale overflows the reference converts infinities to integers, which C leaves open. The scale is 0 then
//! as an f16, so the levels do not matter, and are others here.

use super::lanes::{importance, side_by_side, unfold};
use super::offset::OffsetSearch;
use super::{part, sum_of_squares, symmetric};
use crate::structs::{BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, F16Le};

/// Blocks that are searched at once.
const AT_ONCE: usize = 8;

/// A block's scale, minimum and levels.
struct Found {
    d: f32,
    m: f32,
    levels: [u8; 32],
}

pub(super) fn q4_0(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ4_0]) {
    each(row, weights, out, Kind::symmetric(8), |block, found| {
        *block = BlockQ4_0 { d: F16Le::from_f32(found.d), qs: nibbles(&found.levels) };
    });
}

pub(super) fn q4_1(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ4_1]) {
    each(row, weights, out, Kind::offset(15), |block, found| {
        *block = BlockQ4_1 { d: F16Le::from_f32(found.d), m: F16Le::from_f32(found.m), qs: nibbles(&found.levels) };
    });
}

pub(super) fn q5_0(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ5_0]) {
    each(row, weights, out, Kind::symmetric(16), |block, found| {
        *block = BlockQ5_0 { d: F16Le::from_f32(found.d), qh: fifth(&found.levels), qs: nibbles(&found.levels) };
    });
}

pub(super) fn q5_1(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ5_1]) {
    each(row, weights, out, Kind::offset(31), |block, found| {
        let (d, m) = (F16Le::from_f32(found.d), F16Le::from_f32(found.m));
        *block = BlockQ5_1 { d, m, qh: fifth(&found.levels), qs: nibbles(&found.levels) };
    });
}

pub(super) fn q8_0(row: &[f32], out: &mut [BlockQ8_0]) {
    for (x, block) in row.as_chunks::<32>().0.iter().zip(out) {
        let max = x.iter().fold(0.0f32, |max, x| if x.abs() > max { x.abs() } else { max });
        let d = max / 127.0;
        let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
        *block = BlockQ8_0 { d: F16Le::from_f32(d), qs: x.map(|x| away_from_zero(x * inverse) as i32 as i8) };
    }
}

/// Rounds to the nearest integer, ties away from 0.
fn away_from_zero(x: f32) -> f32 {
    let whole = x as i32 as f32;
    let rest = x - whole;
    let up = if rest >= 0.5 { 1.0 } else { 0.0 };
    let down = if rest <= -0.5 { 1.0 } else { 0.0 };
    whole + up - down
}

/// Kind of levels: `n` below 0 and `n - 1` above, or 0 to `n`.
#[derive(Clone, Copy)]
struct Kind {
    n: i32,
    has_minimum: bool,
}

impl Kind {
    fn symmetric(n: i32) -> Kind {
        Kind { n, has_minimum: false }
    }

    fn offset(n: i32) -> Kind {
        Kind { n, has_minimum: true }
    }

    /// The extreme value gets the lowest level, or minimum and maximum the lowest and the highest.
    fn plain(self, x: &[f32; 32]) -> Found {
        let n = self.n as f32;
        let byte = |x: f32, top: i32| (x as i32).clamp(0, top) as u8;
        if self.has_minimum {
            let (mut min, mut max) = (f32::MAX, f32::MIN);
            for &x in x {
                min = if x < min { x } else { min };
                max = if x > max { x } else { max };
            }
            let d = (max - min) / n;
            let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
            return Found { d, m: min, levels: x.map(|x| byte((x - min) * inverse + 0.5, self.n)) };
        }
        let max = x.iter().fold(0.0f32, |max, &x| if max.abs() < x.abs() { x } else { max });
        let d = max / -n;
        let inverse = if d != 0.0 { 1.0 / d } else { 0.0 };
        Found { d, m: 0.0, levels: x.map(|x| byte(x * inverse + (n + 0.5), 2 * self.n - 1)) }
    }

    /// Searches scales for up to eight blocks by importance; `write` gets the number of each.
    fn weighted(self, x: &[f32], weights: &[f32], write: &mut impl FnMut(usize, Found)) {
        let (x_lanes, w_lanes) = (side_by_side::<32, AT_ONCE>(x), side_by_side(weights));
        let mut levels = [0u8; 32 * AT_ONCE];
        let (scales, minimums) = if self.has_minimum {
            let search = OffsetSearch { n: self.n as f32, first: -0.9, step: 0.05, n_steps: 36, is_absolute: false };
            let found = search.run(&x_lanes, &w_lanes);
            unfold(&found.levels, &mut levels);
            (found.scales, found.minimums.map(|m| -m))
        } else {
            let found = symmetric::search(self.n as f32, &x_lanes, &w_lanes);
            unfold(&found.levels, &mut levels);
            (found.scales, [0.0; AT_ONCE])
        };
        for (k, levels) in levels.as_chunks().0.iter().take(x.len() / 32).enumerate() {
            write(k, Found { d: scales[k], m: minimums[k], levels: *levels });
        }
    }
}

/// Quantises the blocks of a row and hands each over.
fn each<B>(row: &[f32], weights: Option<&[f32]>, out: &mut [B], kind: Kind, write: impl Fn(&mut B, Found)) {
    let blocks = row.as_chunks::<32>().0;
    if weights.is_none() {
        blocks.iter().zip(out).for_each(|(x, block)| write(block, kind.plain(x)));
        return;
    }
    let sigma2 = sum_of_squares(row) / row.len() as f32;
    for (first, out) in out.chunks_mut(AT_ONCE).enumerate().map(|(i, out)| (i * AT_ONCE, out)) {
        let mut scaled = [[0.0; 32]; AT_ONCE];
        for (k, (to, x)) in scaled.iter_mut().zip(&blocks[first..first + out.len()]).enumerate() {
            *to = part(weights, first + k).map_or([0.0; 32], |weights| importance(x, weights, sigma2));
        }
        let x = blocks[first..first + out.len()].as_flattened();
        kind.weighted(x, scaled.as_flattened(), &mut |k, found| write(&mut out[k], found));
    }
}

/// Low nibbles of the first 16 levels, and of the others above them.
pub(super) fn nibbles(levels: &[u8; 32]) -> [u8; 16] {
    std::array::from_fn(|j| levels[j] & 15 | levels[j + 16] << 4)
}

/// Fifth bits of levels.
pub(super) fn fifth(levels: &[u8; 32]) -> [u8; 4] {
    let bits = levels.iter().enumerate().fold(0u32, |bits, (j, &l)| bits | u32::from(l >> 4 & 1) << j);
    bits.to_le_bytes()
}
