//! AVX2: four accumulators of eight lanes.

use super::{Shift, scalar};
use crate::softmax::avx2::{hsum, load, load_tail};
use std::arch::x86_64::*;

/// Folds `x` into four accumulators with `f(acc, x)` and adds those; the tail is filled up with `pad`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn fold(x: &[f32], pad: f32, f: impl Fn(__m256, __m256) -> __m256) -> f32 {
    let (mut acc, (c32, rest)) = ([_mm256_setzero_ps(); 4], x.as_chunks::<32>());
    for chunk in c32 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *acc = f(*acc, load(v));
        }
    }
    let (c8, tail) = rest.as_chunks::<8>();
    for v in c8 {
        acc[0] = f(acc[0], load(v));
    }
    if !tail.is_empty() {
        acc[1] = f(acc[1], load_tail(tail, pad));
    }
    hsum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn sum(x: &[f32]) -> f32 {
    fold(x, 0.0, |acc, v| _mm256_add_ps(acc, v))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn sum_squares(x: &[f32], mean: f32) -> f32 {
    let means = _mm256_set1_ps(mean);
    fold(x, mean, |acc, v| {
        let d = _mm256_sub_ps(v, means);
        _mm256_fmadd_ps(d, d, acc)
    })
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn scale(x: &[f32], scale: f32, w: &[f32], out: &mut [f32]) {
    scalar::scale(x, scale, w, out);
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn scale_in_place(x: &mut [f32], scale: f32, w: &[f32]) {
    scalar::scale_in_place(x, scale, w);
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn shift(x: &[f32], args: Shift<'_>, out: &mut [f32]) {
    scalar::shift(x, args, out);
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn add(x: &mut [f32], delta: &[f32]) {
    scalar::add(x, delta);
}
