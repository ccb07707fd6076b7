//! Searches for the scale `d` of `x = d·l` with levels `l` on both sides of 0.

use super::EPSILON;
use super::lanes::{nearest, signed_level};

/// Scales and levels of blocks side by side.
pub(super) struct Symmetric<const N: usize, const L: usize> {
    pub(super) scales: [f32; L],
    /// From 0 to `2n - 1`.
    pub(super) levels: [[f32; L]; N],
}

/// Value of each block that is largest without its sign, as it is.
#[inline(always)]
fn extremes<const N: usize, const L: usize>(x: &[[f32; L]; N]) -> [f32; L] {
    let (mut max, mut abs_max) = ([0.0f32; L], [0.0f32; L]);
    for x in x {
        for k in 0..L {
            let is_larger = x[k].abs() > abs_max[k];
            max[k] = if is_larger { x[k] } else { max[k] };
            abs_max[k] = if is_larger { x[k].abs() } else { abs_max[k] };
        }
    }
    max
}

/// Searches the scale with the least weighted squared error among 19 about `-n / extreme` (`make_qx_quants`): `n` levels below 0,
/// 0, and `n - 1` above.
#[inline(always)]
pub(super) fn search<const N: usize, const L: usize>(
    n: f32,
    x: &[[f32; L]; N],
    weights: &[[f32; L]; N],
) -> Symmetric<N, L> {
    let max = extremes(x);
    let mut inverse = max.map(|max| -n / max);
    let (products, squares) = sums(n, &inverse, x, weights);
    let mut scales: [f32; L] = std::array::from_fn(|k| if squares[k] != 0.0 { products[k] / squares[k] } else { 0.0 });
    let mut best: [f32; L] = std::array::from_fn(|k| scales[k] * products[k]);
    for step in (-9..=9).filter(|&step| step != 0) {
        let tried = max.map(|max| -(n + 0.1 * step as f32) / max);
        let (products, squares) = sums(n, &tried, x, weights);
        for k in 0..L {
            let is_better = squares[k] > 0.0 && products[k] * products[k] > best[k] * squares[k];
            let scale = products[k] / squares[k];
            scales[k] = if is_better { scale } else { scales[k] };
            best[k] = if is_better { scale * products[k] } else { best[k] };
            inverse[k] = if is_better { tried[k] } else { inverse[k] };
        }
    }
    let mut levels = [[0.0; L]; N];
    for (level, x) in levels.iter_mut().zip(x) {
        *level = std::array::from_fn(|k| n + signed_level(inverse[k] * x[k], n));
    }
    let mut found = Symmetric { scales, levels };
    found.clear_zeros(&max);
    found
}

/// Sums `w·x·l` and `w·l²` of each lane.
#[inline(always)]
fn sums<const N: usize, const L: usize>(
    n: f32,
    inverse: &[f32; L],
    x: &[[f32; L]; N],
    weights: &[[f32; L]; N],
) -> ([f32; L], [f32; L]) {
    let (mut products, mut squares) = ([0.0; L], [0.0; L]);
    for (x, w) in x.iter().zip(weights) {
        for k in 0..L {
            let l = signed_level(inverse[k] * x[k], n);
            products[k] += w[k] * x[k] * l;
            squares[k] += w[k] * l * l;
        }
    }
    (products, squares)
}

/// Descends from `-n / extreme` by changing one level after the other, weights being the squares (`make_q3_quants`).
#[inline(always)]
pub(super) fn descend<const N: usize, const L: usize>(n: f32, x: &[[f32; L]; N]) -> Symmetric<N, L> {
    let max = extremes(x);
    let inverse = max.map(|max| -n / max);
    let mut levels: [[f32; L]; N] =
        std::array::from_fn(|i| std::array::from_fn(|k| signed_level(inverse[k] * x[i][k], n)));
    let (mut products, mut squares) = ([0.0f32; L], [0.0f32; L]);
    for (x, l) in x.iter().zip(&levels) {
        for k in 0..L {
            let w = x[k] * x[k];
            products[k] += w * x[k] * l[k];
            squares[k] += w * l[k] * l[k];
        }
    }
    for _ in 0..5 {
        let mut has_changed = false;
        for (x, l) in x.iter().zip(&mut levels) {
            for k in 0..L {
                let w = x[k] * x[k];
                let (product, square) = (products[k] - w * x[k] * l[k], squares[k] - w * l[k] * l[k]);
                let new = nearest(x[k] * square / product).clamp(-n as i32, n as i32 - 1) as f32;
                let (more, wider) = (product + w * x[k] * new, square + w * new * new);
                let is_better = product > 0.0
                    && new != l[k]
                    && wider > 0.0
                    && more * more * squares[k] > products[k] * products[k] * wider;
                l[k] = if is_better { new } else { l[k] };
                products[k] = if is_better { more } else { products[k] };
                squares[k] = if is_better { wider } else { squares[k] };
                has_changed |= is_better;
            }
        }
        if !has_changed {
            break;
        }
    }
    levels.as_flattened_mut().iter_mut().for_each(|level| *level += n);
    let scales = std::array::from_fn(|k| if squares[k] > 0.0 { products[k] / squares[k] } else { 0.0 });
    let mut found = Symmetric { scales, levels };
    found.clear_zeros(&max);
    found
}

impl<const N: usize, const L: usize> Symmetric<N, L> {
    /// Gives blocks without a value the scale 0 and the levels 0.
    #[inline(always)]
    fn clear_zeros(&mut self, max: &[f32; L]) {
        for (k, max) in max.iter().enumerate().filter(|(_, max)| max.abs() < EPSILON) {
            debug_assert!(max.is_finite());
            self.scales[k] = 0.0;
            self.levels.iter_mut().for_each(|level| level[k] = 0.0);
        }
    }
}
