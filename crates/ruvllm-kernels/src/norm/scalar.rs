//! Plain loops. Sums run in f64; the elementwise loops are compiled by the other rows with their own features.

use super::Shift;

pub(super) fn sum(x: &[f32]) -> f32 {
    x.iter().map(|&v| f64::from(v)).sum::<f64>() as f32
}

pub(super) fn sum_squares(x: &[f32], mean: f32) -> f32 {
    x.iter().map(|&v| f64::from(v - mean).powi(2)).sum::<f64>() as f32
}

#[inline(always)]
pub(super) fn scale(x: &[f32], scale: f32, w: &[f32], out: &mut [f32]) {
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out = x * scale * w;
    }
}

#[inline(always)]
pub(super) fn scale_in_place(x: &mut [f32], scale: f32, w: &[f32]) {
    for (x, w) in x.iter_mut().zip(w) {
        *x = *x * scale * w;
    }
}

#[inline(always)]
pub(super) fn shift(x: &[f32], args: Shift<'_>, out: &mut [f32]) {
    let Shift { mean, scale, w, bias } = args;
    match bias {
        Some(bias) => {
            for (((out, x), w), b) in out.iter_mut().zip(x).zip(w).zip(bias) {
                *out = (x - mean) * scale * w + b;
            }
        }
        None => {
            for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
                *out = (x - mean) * scale * w;
            }
        }
    }
}

#[inline(always)]
pub(super) fn add(x: &mut [f32], delta: &[f32]) {
    for (x, d) in x.iter_mut().zip(delta) {
        *x += d;
    }
}
