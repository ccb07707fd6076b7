//! Super-blocks with less weighted error than the reference's. From its scales on, in turns: each part takes the scale (and the minimum) next to its
//! own with the least error, and the scales of scales are fitted to all parts by least squares.

use super::SUPER;
use super::closest::{Block, Sums, rounded, whole};
use super::iq4::{self, index, value};
use super::{q3_k, q6_k, q45_k};
use crate::structs::{BlockIQ4_XS, BlockQ3_K, BlockQ4_K, BlockQ5_K, BlockQ6_K, F16Le, scale_min_k4};

/// The most turns.
const N_TURNS: usize = 4;

pub(super) fn q3_k(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ3_K]) {
    each::<16, 16, _>(row, weights, out, |parts, block| {
        let begin = Scales { d: block.d.to_f32(), scales: block.scales().map(i32::from) };
        let Scales { d, scales } = begin.search(&parts, (-32, 31), |x| whole(x, -4.0, 3.0));
        let levels = levels(&parts, |p| d * scales[p] as f32, |x| whole(x, -4.0, 3.0) + 4.0);
        (block.d, block.scales) = (F16Le::from_f32(d), q3_k::pack(&scales.map(|scale| (scale + 32) as u8)));
        q3_k::put_levels(&levels, block);
    });
}

pub(super) fn q6_k(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ6_K]) {
    each::<16, 16, _>(row, weights, out, |parts, block| {
        let begin = Scales { d: block.d.to_f32(), scales: block.scales.map(i32::from) };
        let Scales { d, scales } = begin.search(&parts, (-128, 127), |x| whole(x, -32.0, 31.0));
        let levels = levels(&parts, |p| d * scales[p] as f32, |x| whole(x, -32.0, 31.0) + 32.0);
        *block = q6_k::packed(&levels, scales.map(|scale| scale as i8), F16Le::from_f32(d));
    });
}

pub(super) fn iq4_xs(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ4_XS]) {
    each::<32, 8, _>(row, weights, out, |parts, block| {
        let begin = Scales { d: block.d.to_f32(), scales: block.scales().map(i32::from) };
        let Scales { d, scales } = begin.search(&parts, (-32, 31), value);
        let levels = levels(&parts, |p| d * scales[p] as f32, |x| f32::from(index(x)));
        *block = iq4::packed(&levels, &scales, F16Le::from_f32(d));
    });
}

pub(super) fn q4_k(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ4_K]) {
    each::<32, 8, _>(row, weights, out, |parts, block| {
        let found = Offsets::of(block.d, block.dmin, &block.scales).search(&parts, 15.0);
        (block.d, block.dmin) = (F16Le::from_f32(found.d), F16Le::from_f32(found.dmin));
        block.scales = q45_k::pack(&found.scales, &found.minimums);
        block.qs = q45_k::nibbles(&found.levels(&parts, 15.0));
    });
}

pub(super) fn q5_k(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockQ5_K]) {
    each::<32, 8, _>(row, weights, out, |parts, block| {
        let found = Offsets::of(block.d, block.dmin, &block.scales).search(&parts, 31.0);
        (block.d, block.dmin) = (F16Le::from_f32(found.d), F16Le::from_f32(found.dmin));
        block.scales = q45_k::pack(&found.scales, &found.minimums);
        let levels = found.levels(&parts, 31.0);
        (block.qh, block.qs) = (q45_k::fifth(&levels), q45_k::nibbles(&levels));
    });
}

/// Hands over each super-block as parts of `N` values.
fn each<const N: usize, const PARTS: usize, B>(
    row: &[f32],
    weights: Option<&[f32]>,
    out: &mut [B],
    work: impl Fn([Block<'_, N>; PARTS], &mut B),
) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        let weights = super::part(weights, i).unwrap_or(&[1.0; SUPER]);
        let (x, weights) = (x.as_chunks::<N>().0, weights.as_chunks::<N>().0);
        work(std::array::from_fn(|p| Block { x: &x[p], weights: &weights[p] }), block);
    }
}

/// Levels of all parts, as they are stored.
fn levels<const N: usize, const PARTS: usize>(
    parts: &[Block<'_, N>; PARTS],
    scale: impl Fn(usize) -> f32,
    level: impl Fn(f32) -> f32 + Copy,
) -> [u8; SUPER] {
    let mut all = [0; SUPER];
    for (p, (part, to)) in parts.iter().zip(all.as_chunks_mut::<N>().0).enumerate() {
        *to = part.levels(scale(p), level);
    }
    all
}

/// Scales of a super-block without minimums.
#[derive(Clone, Copy)]
struct Scales<const PARTS: usize> {
    d: f32,
    scales: [i32; PARTS],
}

impl<const PARTS: usize> Scales<PARTS> {
    fn error<const N: usize>(&self, parts: &[Block<'_, N>; PARTS], nearest: impl Fn(f32) -> f32 + Copy) -> f32 {
        parts.iter().zip(self.scales).map(|(part, scale)| part.sums(self.d * scale as f32, 0.0, nearest).error).sum()
    }

    fn search<const N: usize>(
        self,
        parts: &[Block<'_, N>; PARTS],
        (lowest, highest): (i32, i32),
        nearest: impl Fn(f32) -> f32 + Copy,
    ) -> Scales<PARTS> {
        let (mut best, mut least) = (self, self.error(parts, nearest));
        let mut new = self;
        for _ in 0..N_TURNS {
            let (mut products, mut squares) = (0.0, 0.0);
            for (part, scale) in parts.iter().zip(&mut new.scales) {
                let tried = (*scale - 2).max(lowest)..=(*scale + 2).min(highest);
                let sums = tried.map(|scale| (scale, part.sums(new.d * scale as f32, 0.0, nearest)));
                let Some((found, sums)) = sums.reduce(|a, b| if b.1.error < a.1.error { b } else { a }) else {
                    continue;
                };
                *scale = found;
                products += found as f32 * sums.xl;
                squares += (found * found) as f32 * sums.l2;
            }
            // The new scales, and then those with the scale of scales that fits them.
            for d in [new.d, if squares > 0.0 { rounded(products / squares) } else { new.d }] {
                new.d = d;
                let error = new.error(parts, nearest);
                if error < least {
                    (best, least) = (new, error);
                }
            }
        }
        best
    }
}

/// Scales and minimums of a super-block: `x = d·scale·level - dmin·minimum`.
#[derive(Clone, Copy)]
struct Offsets {
    d: f32,
    dmin: f32,
    scales: [u8; 8],
    minimums: [u8; 8],
}

impl Offsets {
    fn of(d: F16Le, dmin: F16Le, packed: &[u8; 12]) -> Offsets {
        let (scales, minimums) = scale_min_k4(packed);
        Offsets { d: d.to_f32(), dmin: dmin.to_f32(), scales, minimums }
    }

    /// Scale and minimum of a part.
    fn of_part(&self, scale: u8, minimum: u8) -> (f32, f32) {
        (self.d * f32::from(scale), -self.dmin * f32::from(minimum))
    }

    fn error(&self, parts: &[Block<'_, 32>; 8], top: f32) -> f32 {
        let one = |(p, part): (usize, &Block<'_, 32>)| {
            let (scale, minimum) = self.of_part(self.scales[p], self.minimums[p]);
            part.sums(scale, minimum, |x| whole(x, 0.0, top)).error
        };
        parts.iter().enumerate().map(one).sum()
    }

    fn levels(&self, parts: &[Block<'_, 32>; 8], top: f32) -> [u8; SUPER] {
        let mut all = [0; SUPER];
        for (p, (part, to)) in parts.iter().zip(all.as_chunks_mut::<32>().0).enumerate() {
            let (scale, minimum) = self.of_part(self.scales[p], self.minimums[p]);
            *to = part.offset_levels(scale, minimum, top);
        }
        all
    }

    /// Takes the scale and minimum next to those of a part that have the least error, and returns them with the sums of it.
    fn best_of(&self, part: &Block<'_, 32>, p: usize, top: f32) -> (u8, u8, Sums) {
        let around = |x: u8| x.saturating_sub(1)..=(x + 1).min(63);
        let pairs = around(self.scales[p]).flat_map(|scale| around(self.minimums[p]).map(move |min| (scale, min)));
        let tried = pairs.map(|(scale, minimum)| {
            let (d, m) = self.of_part(scale, minimum);
            (scale, minimum, part.sums(d, m, |x| whole(x, 0.0, top)))
        });
        tried.reduce(|a, b| if b.2.error < a.2.error { b } else { a }).expect("its own are among them")
    }

    fn search(self, parts: &[Block<'_, 32>; 8], top: f32) -> Offsets {
        let (mut best, mut least) = (self, self.error(parts, top));
        let mut new = self;
        for _ in 0..N_TURNS {
            // Sums of the squares of `scale·level` and `minimum`, of their product, and of both with the values.
            let (mut aa, mut ab, mut bb, mut xa, mut xb) = (0.0, 0.0, 0.0, 0.0, 0.0);
            for (p, part) in parts.iter().enumerate() {
                let (scale, minimum, sums) = new.best_of(part, p, top);
                (new.scales[p], new.minimums[p]) = (scale, minimum);
                let (a, b) = (f32::from(scale), f32::from(minimum));
                let weight: f32 = part.weights.iter().sum();
                let product: f32 = part.weights.iter().zip(part.x).map(|(w, x)| w * x).sum();
                aa += a * a * sums.l2;
                ab += a * b * sums.l;
                bb += b * b * weight;
                xa += a * sums.xl;
                xb += b * product;
            }
            let determinant = aa * bb - ab * ab;
            let fitted = match determinant > 0.0 {
                true => (rounded((xa * bb - xb * ab) / determinant), rounded((xa * ab - xb * aa) / determinant)),
                false if aa > 0.0 => (rounded(xa / aa), new.dmin),
                false => (new.d, new.dmin),
            };
            for (d, dmin) in [(new.d, new.dmin), fitted] {
                (new.d, new.dmin) = (d, dmin);
                let error = new.error(parts, top);
                if error < least {
                    (best, least) = (new, error);
                }
            }
        }
        best
    }
}
