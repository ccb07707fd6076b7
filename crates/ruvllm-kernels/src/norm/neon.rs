//! NEON: four accumulators of four lanes.

use super::{Shift, scalar};
use crate::softmax::neon::{hsum, load, load_tail};
use std::arch::aarch64::*;

/// Folds `x` into four accumulators with `f(acc, x)` and adds those; the tail is filled up with `pad`.
#[inline]
#[target_feature(enable = "neon")]
fn fold(x: &[f32], pad: f32, f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> f32 {
    let (mut acc, (c16, rest)) = ([vdupq_n_f32(0.0); 4], x.as_chunks::<16>());
    for chunk in c16 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<4>().0) {
            *acc = f(*acc, load(v));
        }
    }
    let (c4, tail) = rest.as_chunks::<4>();
    for v in c4 {
        acc[0] = f(acc[0], load(v));
    }
    if !tail.is_empty() {
        acc[1] = f(acc[1], load_tail(tail, pad));
    }
    hsum(vaddq_f32(vaddq_f32(acc[0], acc[1]), vaddq_f32(acc[2], acc[3])))
}

#[target_feature(enable = "neon")]
pub(super) fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |acc, v| vaddq_f32(acc, v))
}

#[target_feature(enable = "neon")]
pub(super) fn sum_squares(x: &[f32], mean: f32) -> f32 {
    let means = vdupq_n_f32(mean);
    fold(x, mean, |acc, v| {
        let d = vsubq_f32(v, means);
        vfmaq_f32(acc, d, d)
    })
}

#[target_feature(enable = "neon")]
pub(super) fn scale(x: &[f32], scale: f32, w: &[f32], out: &mut [f32]) {
    scalar::scale(x, scale, w, out);
}

#[target_feature(enable = "neon")]
pub(super) fn scale_in_place(x: &mut [f32], scale: f32, w: &[f32]) {
    scalar::scale_in_place(x, scale, w);
}

#[target_feature(enable = "neon")]
pub(super) fn shift(x: &[f32], args: Shift<'_>, out: &mut [f32]) {
    scalar::shift(x, args, out);
}

#[target_feature(enable = "neon")]
pub(super) fn add(x: &mut [f32], delta: &[f32]) {
    scalar::add(x, delta);
}
