//! The search for the scale of scales, which are not negative, when they have weights.

use super::EPSILON;
use super::lanes::nearest;

/// Searches the scale of `x = scale·l`, `l` from 0 to `n`, with the least weighted squared error, writes the levels and returns
/// the scale (`make_qp_quants`): the best of nine, and then one level after the other is changed while that helps.
pub(super) fn search<const N: usize>(n: i32, x: &[f32; N], weights: &[f32; N], levels: &mut [u8; N]) -> f32 {
    let max = x.iter().fold(0.0f32, |max, &x| if max > x { max } else { x });
    if max < EPSILON {
        *levels = [0; N];
        return 0.0;
    }
    let mut inverse = n as f32 / max;
    // The first levels are not bounded, and are bytes.
    let mut best = error(1.0 / inverse, x, weights, |x| i32::from(nearest(inverse * x) as u8));
    for step in (-4..=4).filter(|&step| step != 0) {
        let tried = (0.1 * step as f32 + n as f32) / max;
        let error = error(1.0 / tried, x, weights, |x| nearest(tried * x).min(n));
        if error < best {
            (best, inverse) = (error, tried);
        }
    }
    let (mut products, mut squares) = (0.0, 0.0);
    for ((level, &x), &w) in levels.iter_mut().zip(x).zip(weights) {
        let l = nearest(inverse * x).min(n);
        *level = l as u8;
        products += w * x * l as f32;
        squares += w * l as f32 * l as f32;
    }
    descend(n, x, weights, levels, (products, squares))
}

fn error<const N: usize>(scale: f32, x: &[f32; N], weights: &[f32; N], level: impl Fn(f32) -> i32) -> f32 {
    x.iter().zip(weights).fold(0.0, |sum, (&x, &w)| {
        let difference = x - scale * level(x) as f32;
        sum + w * difference * difference
    })
}

/// Changes one level after the other, in up to five passes, and returns the scale that fits them.
fn descend<const N: usize>(
    n: i32,
    x: &[f32; N],
    weights: &[f32; N],
    levels: &mut [u8; N],
    (mut products, mut squares): (f32, f32),
) -> f32 {
    for _ in 0..5 {
        let mut has_changed = false;
        for ((level, &x), &w) in levels.iter_mut().zip(x).zip(weights) {
            let l = f32::from(*level);
            let (product, square) = (products - w * x * l, squares - w * l * l);
            if !(product > 0.0 && square > 0.0) {
                continue;
            }
            let new = nearest(x * square / product).min(n);
            if new == i32::from(*level) {
                continue;
            }
            let (more, wider) = (product + w * x * new as f32, square + w * new as f32 * new as f32);
            if more * more * squares > products * products * wider {
                *level = new as u8;
                (products, squares) = (more, wider);
                has_changed = true;
            }
        }
        if !has_changed {
            break;
        }
    }
    if squares > 0.0 { products / squares } else { 0.0 }
}
