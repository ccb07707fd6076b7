//! Blocks with less weighted error than the reference's, for files that need not have its blocks: those of 32 values here, super-blocks in
//! `closest_super`.
//!
//! ```text
//! of each block, from the reference's scale and from some others:
//!     round the scale (and the minimum) to f16  ->  nearest levels  ->  weighted squared error; the least is kept
//!     fit scale and minimum to the levels by least squares, and begin again, some times
//! ```
//! The reference weighs values by `importance · sqrt(σ² + x²)`, tries few scales, and takes the largest value for the scale of Q8_0. Here the weight
//! is the importance itself, and the error is that of what is stored.

use super::iq4::{index, value};
use super::legacy::{fifth, nibbles};
use crate::structs::{BlockIQ4_NL, BlockQ4_0, BlockQ4_1, BlockQ5_0, BlockQ5_1, BlockQ8_0, F16Le};

/// Values of a block that are added up side by side.
const LANES: usize = 8;
/// Added to a float below 2^22 it leaves the nearest integer.
const MAGIC: f32 = 12_582_912.0;

pub(super) fn q4_0(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ4_0]) {
    each(row, weights, out, |at, block| {
        let scale = at.symmetric(block.d.to_f32(), &Levels::around_zero(8.0));
        let levels = at.levels(scale, |x| whole(x, -8.0, 7.0) + 8.0);
        (block.d, block.qs) = (F16Le::from_f32(scale), nibbles(&levels));
    });
}

pub(super) fn q5_0(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ5_0]) {
    each(row, weights, out, |at, block| {
        let scale = at.symmetric(block.d.to_f32(), &Levels::around_zero(16.0));
        let levels = at.levels(scale, |x| whole(x, -16.0, 15.0) + 16.0);
        (block.d, block.qh, block.qs) = (F16Le::from_f32(scale), fifth(&levels), nibbles(&levels));
    });
}

pub(super) fn q8_0(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ8_0]) {
    each(row, weights, out, |at, block| {
        let scale = at.symmetric(block.d.to_f32(), &Levels::of_bytes());
        let levels = at.levels(scale, |x| whole(x, -127.0, 127.0) + 128.0);
        (block.d, block.qs) = (F16Le::from_f32(scale), levels.map(|level| (level ^ 0x80) as i8));
    });
}

pub(super) fn iq4_nl(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ4_NL]) {
    each(row, weights, out, |at, block| {
        let scale = at.symmetric(block.d.to_f32(), &Levels::of_codebook());
        let levels = at.levels(scale, |x| f32::from(index(x)));
        (block.d, block.qs) = (F16Le::from_f32(scale), nibbles(&levels));
    });
}

pub(super) fn q4_1(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ4_1]) {
    each(row, weights, out, |at, block| {
        let (d, m) = at.offset((block.d.to_f32(), block.m.to_f32()), 15.0);
        let levels = at.offset_levels(d, m, 15.0);
        (block.d, block.m, block.qs) = (F16Le::from_f32(d), F16Le::from_f32(m), nibbles(&levels));
    });
}

pub(super) fn q5_1(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ5_1]) {
    each(row, weights, out, |at, block| {
        let (d, m) = at.offset((block.d.to_f32(), block.m.to_f32()), 31.0);
        let levels = at.offset_levels(d, m, 31.0);
        (block.d, block.m) = (F16Le::from_f32(d), F16Le::from_f32(m));
        (block.qh, block.qs) = (fifth(&levels), nibbles(&levels));
    });
}

/// Hands over each block of a row that the reference has quantised.
fn each<B>(row: &[f32], weights: Option<&[f32]>, out: &mut [B], work: impl Fn(Block<'_, 32>, &mut B)) {
    for (i, (x, block)) in row.as_chunks::<32>().0.iter().zip(out).enumerate() {
        work(Block { x, weights: super::part(weights, i).unwrap_or(&[1.0; 32]) }, block);
    }
}

/// Levels with a value of 0 among them, and scales to begin with.
struct Levels {
    nearest: fn(f32) -> f32,
    /// The largest value is brought to each of these.
    ends: Vec<f32>,
    /// The scale is that of the largest magnitude, whatever its sign.
    is_even: bool,
}

impl Levels {
    /// `-n` to `n - 1`.
    fn around_zero(n: f32) -> Levels {
        let ends = (-2..=12).map(|i| i as f32 * n / 32.0 - n).collect();
        let nearest = if n == 8.0 { |x| whole(x, -8.0, 7.0) } else { |x| whole(x, -16.0, 15.0) };
        Levels { nearest, ends, is_even: false }
    }

    fn of_bytes() -> Levels {
        let ends = (-5..=5).map(|i| i as f32 * 0.5 + 127.0).collect();
        Levels { nearest: |x| whole(x, -127.0, 127.0), ends, is_even: true }
    }

    fn of_codebook() -> Levels {
        let ends = (-4..=4).flat_map(|i| [i as f32 * 5.0 - 127.0, i as f32 * 5.0 + 127.0]).collect();
        Levels { nearest: value, ends, is_even: false }
    }
}

/// The nearest integer within bounds.
#[inline(always)]
pub(super) fn whole(x: f32, lowest: f32, highest: f32) -> f32 {
    (x.clamp(lowest, highest) + MAGIC) - MAGIC
}

pub(super) fn rounded(x: f32) -> f32 {
    F16Le::from_f32(x).to_f32()
}

/// Values of a block with their weights.
#[derive(Clone, Copy)]
pub(super) struct Block<'a, const N: usize> {
    pub(super) x: &'a [f32; N],
    pub(super) weights: &'a [f32; N],
}

/// Weighted sums over a block's values and levels.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    pub(super) error: f32,
    pub(super) l: f32,
    pub(super) l2: f32,
    pub(super) xl: f32,
}

impl<const N: usize> Block<'_, N> {
    /// Adds up, for levels `nearest((x - minimum) / scale)`.
    #[inline(always)]
    pub(super) fn sums(&self, scale: f32, minimum: f32, nearest: impl Fn(f32) -> f32) -> Sums {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        let mut lanes = [[0.0f32; LANES]; 4];
        let values = self.x.as_chunks::<LANES>().0.iter().zip(self.weights.as_chunks::<LANES>().0);
        for (x, w) in values {
            for k in 0..LANES {
                let level = nearest((x[k] - minimum) * inverse);
                let difference = x[k] - (scale * level + minimum);
                let weighted = w[k] * level;
                lanes[0][k] += w[k] * difference * difference;
                lanes[1][k] += weighted;
                lanes[2][k] += weighted * level;
                lanes[3][k] += weighted * x[k];
            }
        }
        let [error, l, l2, xl] = lanes.map(|lanes| lanes.iter().sum());
        Sums { error, l, l2, xl }
    }

    /// Searches a scale, as it is stored.
    fn symmetric(&self, reference: f32, levels: &Levels) -> f32 {
        let largest = self.x.iter().fold(0.0f32, |max, &x| if x.abs() > max.abs() { x } else { max });
        let largest = if levels.is_even { largest.abs() } else { largest };
        let (mut best, mut least) = (reference, self.sums(reference, 0.0, levels.nearest).error);
        for begin in levels.ends.iter().map(|end| largest / end).chain([reference]) {
            let mut scale = rounded(begin);
            for _ in 0..3 {
                let sums = self.sums(scale, 0.0, levels.nearest);
                if sums.error < least {
                    (best, least) = (scale, sums.error);
                }
                if sums.l2 <= 0.0 {
                    break;
                }
                scale = rounded(sums.xl / sums.l2);
            }
        }
        best
    }

    /// Searches a scale and a minimum, as they are stored, for levels 0 to `top`.
    fn offset(&self, reference: (f32, f32), top: f32) -> (f32, f32) {
        let (min, max) =
            self.x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &x| (x.min(min), x.max(max)));
        let sum_w: f32 = self.weights.iter().sum();
        let sum_x: f32 = self.weights.iter().zip(self.x).map(|(w, x)| w * x).sum();
        let nearest = |x| whole(x, 0.0, top);
        let (mut best, mut least) = (reference, self.sums(reference.0, reference.1, nearest).error);
        let begins = (-3..=3).map(|i| ((max - min) / (top + i as f32), min));
        for (d, m) in begins.chain([reference]) {
            let (mut scale, mut minimum) = (rounded(d), rounded(m));
            for _ in 0..4 {
                let sums = self.sums(scale, minimum, nearest);
                if sums.error < least {
                    (best, least) = ((scale, minimum), sums.error);
                }
                let determinant = sum_w * sums.l2 - sums.l * sums.l;
                if determinant <= 0.0 {
                    break;
                }
                scale = rounded((sum_w * sums.xl - sum_x * sums.l) / determinant);
                minimum = rounded((sums.l2 * sum_x - sums.l * sums.xl) / determinant);
            }
        }
        best
    }

    pub(super) fn levels(&self, scale: f32, level: impl Fn(f32) -> f32) -> [u8; N] {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        self.x.map(|x| level(x * inverse) as u8)
    }

    pub(super) fn offset_levels(&self, scale: f32, minimum: f32, top: f32) -> [u8; N] {
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        self.x.map(|x| whole((x - minimum) * inverse, 0.0, top) as u8)
    }
}
