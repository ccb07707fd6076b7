//! AVX2: eight lanes. The other elementwise kernels use [`exp`], [`map`] and [`zip_map`] too.

use super::constants::{LN_2_HI, LN_2_LO, P, X_MAX, X_MIN};
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn load(x: &[f32; 8]) -> __m256 {
    // SAFETY: eight floats lie behind the reference; loadu needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn store(x: &mut [f32; 8], v: __m256) {
    // SAFETY: eight floats lie behind the reference; storeu needs no alignment.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
}

/// Loads up to seven floats and fills the rest with `pad`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn load_tail(tail: &[f32], pad: f32) -> __m256 {
    let mut padded = [pad; 8];
    padded[..tail.len()].copy_from_slice(tail);
    load(&padded)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn store_tail(tail: &mut [f32], v: __m256) {
    let mut padded = [0.0; 8];
    store(&mut padded, v);
    tail.copy_from_slice(&padded[..tail.len()]);
}

/// Replaces every element by `f` of it.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn map(x: &mut [f32], f: impl Fn(__m256) -> __m256) {
    let (chunks, tail) = x.as_chunks_mut::<8>();
    for chunk in chunks {
        let v = f(load(chunk));
        store(chunk, v);
    }
    if !tail.is_empty() {
        let v = f(load_tail(tail, 0.0));
        store_tail(tail, v);
    }
}

/// Replaces every `x[i]` by `f(x[i], y[i])`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn zip_map(x: &mut [f32], y: &[f32], f: impl Fn(__m256, __m256) -> __m256) {
    let ((x8, x_tail), (y8, y_tail)) = (x.as_chunks_mut::<8>(), y.as_chunks::<8>());
    for (x, y) in x8.iter_mut().zip(y8) {
        let v = f(load(x), load(y));
        store(x, v);
    }
    if !x_tail.is_empty() {
        let v = f(load_tail(x_tail, 0.0), load_tail(y_tail, 0.0));
        store_tail(x_tail, v);
    }
}

/// `Σ` over the lanes: halves are added until one lane is left.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn hsum(v: __m256) -> f32 {
    let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
}

/// `e^x` in every lane; the algorithm is in the module's docs.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(crate) fn exp(x: __m256) -> __m256 {
    // `min` and `max` return their second operand when one is NaN, so a NaN stays.
    let x = _mm256_max_ps(_mm256_set1_ps(X_MIN), _mm256_min_ps(_mm256_set1_ps(X_MAX), x));
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        x,
        _mm256_set1_ps(std::f32::consts::LOG2_E),
    ));
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_HI), x);
    let r = _mm256_fnmadd_ps(n, _mm256_set1_ps(LN_2_LO), r);
    let mut p = _mm256_set1_ps(P[0]);
    for c in &P[1..] {
        p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(*c));
    }
    let p = _mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r);
    let p = _mm256_add_ps(p, _mm256_set1_ps(1.0));
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let pow2 = |n| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))));
    _mm256_mul_ps(_mm256_mul_ps(p, pow2(half)), pow2(_mm256_sub_epi32(n, half)))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn exp_all(x: &mut [f32]) {
    map(x, |v| exp(v));
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn max(x: &[f32]) -> f32 {
    let lowest = _mm256_set1_ps(f32::NEG_INFINITY);
    let (mut acc, (c32, rest)) = ([lowest; 4], x.as_chunks::<32>());
    for chunk in c32 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *acc = _mm256_max_ps(load(v), *acc); // a NaN yields the second operand
        }
    }
    let (c8, tail) = rest.as_chunks::<8>();
    for v in c8 {
        acc[0] = _mm256_max_ps(load(v), acc[0]);
    }
    acc[1] = _mm256_max_ps(load_tail(tail, f32::NEG_INFINITY), acc[1]);
    let mut lanes = [0.0; 8];
    store(&mut lanes, _mm256_max_ps(_mm256_max_ps(acc[0], acc[1]), _mm256_max_ps(acc[2], acc[3])));
    lanes.iter().fold(f32::NEG_INFINITY, |max, &v| max.max(v))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn sum(x: &[f32]) -> f32 {
    let (mut acc, (c32, rest)) = ([_mm256_setzero_ps(); 4], x.as_chunks::<32>());
    for chunk in c32 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<8>().0) {
            *acc = _mm256_add_ps(*acc, load(v));
        }
    }
    let (c8, tail) = rest.as_chunks::<8>();
    for v in c8 {
        acc[0] = _mm256_add_ps(acc[0], load(v));
    }
    acc[1] = _mm256_add_ps(acc[1], load_tail(tail, 0.0));
    hsum(_mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3])))
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn exp_sum(x: &mut [f32], max: f32) -> f32 {
    let (max, mut acc) = (_mm256_set1_ps(max), _mm256_setzero_ps());
    let (chunks, tail) = x.as_chunks_mut::<8>();
    for chunk in chunks {
        let e = exp(_mm256_sub_ps(load(chunk), max));
        store(chunk, e);
        acc = _mm256_add_ps(acc, e);
    }
    if !tail.is_empty() {
        let e = exp(_mm256_sub_ps(load_tail(tail, f32::NEG_INFINITY), max));
        store_tail(tail, e);
        acc = _mm256_add_ps(acc, e);
    }
    hsum(acc)
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn sum_exp(x: &[f32], max: f32) -> f32 {
    let (max, mut acc) = (_mm256_set1_ps(max), _mm256_setzero_ps());
    let (chunks, tail) = x.as_chunks::<8>();
    for chunk in chunks {
        acc = _mm256_add_ps(acc, exp(_mm256_sub_ps(load(chunk), max)));
    }
    if !tail.is_empty() {
        acc = _mm256_add_ps(acc, exp(_mm256_sub_ps(load_tail(tail, f32::NEG_INFINITY), max)));
    }
    hsum(acc)
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    super::scalar::scale(x, factor);
}
