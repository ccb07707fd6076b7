//! AVX-512: sixteen lanes. The other elementwise kernels use [`exp`], [`map`] and [`zip_map`] too.

use super::constants::{LN_2_HI, LN_2_LO, P, X_MAX, X_MIN};
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load(x: &[f32; 16]) -> __m512 {
    // SAFETY: sixteen floats lie behind the reference; loadu needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store(x: &mut [f32; 16], v: __m512) {
    // SAFETY: sixteen floats lie behind the reference; storeu needs no alignment.
    unsafe { _mm512_storeu_ps(x.as_mut_ptr(), v) }
}

/// Loads up to fifteen floats and fills the rest with `pad`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_tail(tail: &[f32], pad: f32) -> __m512 {
    let mut padded = [pad; 16];
    padded[..tail.len()].copy_from_slice(tail);
    load(&padded)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn store_tail(tail: &mut [f32], v: __m512) {
    let mut padded = [0.0; 16];
    store(&mut padded, v);
    tail.copy_from_slice(&padded[..tail.len()]);
}

/// Replaces every element by `f` of it.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn map(x: &mut [f32], f: impl Fn(__m512) -> __m512) {
    let (chunks, tail) = x.as_chunks_mut::<16>();
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
#[target_feature(enable = "avx512f")]
pub(crate) fn zip_map(x: &mut [f32], y: &[f32], f: impl Fn(__m512, __m512) -> __m512) {
    let ((x16, x_tail), (y16, y_tail)) = (x.as_chunks_mut::<16>(), y.as_chunks::<16>());
    for (x, y) in x16.iter_mut().zip(y16) {
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
#[target_feature(enable = "avx512f")]
pub(crate) fn hsum(v: __m512) -> f32 {
    _mm512_reduce_add_ps(v)
}

/// `e^x` in every lane; the algorithm is in the module's docs.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exp(x: __m512) -> __m512 {
    exps([x])[0]
}

/// [`exp`] of several vectors, side by side: each of its steps waits for the one before.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn exps<const N: usize>(x: [__m512; N]) -> [__m512; N] {
    // `min` and `max` return their second operand when one is NaN, so a NaN stays.
    let x = x.map(|x| _mm512_max_ps(_mm512_set1_ps(X_MIN), _mm512_min_ps(_mm512_set1_ps(X_MAX), x)));
    let n = x.map(|x| _mm512_mul_ps(x, _mm512_set1_ps(std::f32::consts::LOG2_E)));
    let n = n.map(|n| _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n));
    let mut r = x;
    for part in [LN_2_HI, LN_2_LO] {
        r.iter_mut().zip(&n).for_each(|(r, &n)| *r = _mm512_fnmadd_ps(n, _mm512_set1_ps(part), *r));
    }
    let mut p = [_mm512_set1_ps(P[0]); N];
    for &c in &P[1..] {
        p.iter_mut().zip(&r).for_each(|(p, &r)| *p = _mm512_fmadd_ps(*p, r, _mm512_set1_ps(c)));
    }
    p.iter_mut().zip(&r).for_each(|(p, &r)| *p = _mm512_fmadd_ps(*p, _mm512_mul_ps(r, r), r));
    p.iter_mut().for_each(|p| *p = _mm512_add_ps(*p, _mm512_set1_ps(1.0)));
    p.iter_mut().zip(&n).for_each(|(p, &n)| *p = _mm512_scalef_ps(*p, n));
    p
}

#[target_feature(enable = "avx512f")]
pub(super) fn exp_all(x: &mut [f32]) {
    map(x, |v| exp(v));
}

#[target_feature(enable = "avx512f")]
pub(super) fn max(x: &[f32]) -> f32 {
    let lowest = _mm512_set1_ps(f32::NEG_INFINITY);
    let (mut acc, (c64, rest)) = ([lowest; 4], x.as_chunks::<64>());
    for chunk in c64 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<16>().0) {
            *acc = _mm512_max_ps(load(v), *acc); // a NaN yields the second operand
        }
    }
    let (c16, tail) = rest.as_chunks::<16>();
    for v in c16 {
        acc[0] = _mm512_max_ps(load(v), acc[0]);
    }
    acc[1] = _mm512_max_ps(load_tail(tail, f32::NEG_INFINITY), acc[1]);
    _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(acc[0], acc[1]), _mm512_max_ps(acc[2], acc[3])))
}

#[target_feature(enable = "avx512f")]
pub(super) fn sum(x: &[f32]) -> f32 {
    let (mut acc, (c64, rest)) = ([_mm512_setzero_ps(); 4], x.as_chunks::<64>());
    for chunk in c64 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<16>().0) {
            *acc = _mm512_add_ps(*acc, load(v));
        }
    }
    let (c16, tail) = rest.as_chunks::<16>();
    for v in c16 {
        acc[0] = _mm512_add_ps(acc[0], load(v));
    }
    acc[1] = _mm512_add_ps(acc[1], load_tail(tail, 0.0));
    hsum(_mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3])))
}

#[target_feature(enable = "avx512f")]
pub(super) fn exp_sum(x: &mut [f32], max: f32) -> f32 {
    let (max, mut acc) = (_mm512_set1_ps(max), _mm512_setzero_ps());
    let (chunks, tail) = x.as_chunks_mut::<16>();
    for chunk in chunks {
        let e = exp(_mm512_sub_ps(load(chunk), max));
        store(chunk, e);
        acc = _mm512_add_ps(acc, e);
    }
    if !tail.is_empty() {
        let e = exp(_mm512_sub_ps(load_tail(tail, f32::NEG_INFINITY), max));
        store_tail(tail, e);
        acc = _mm512_add_ps(acc, e);
    }
    hsum(acc)
}

#[target_feature(enable = "avx512f")]
pub(super) fn sum_exp(x: &[f32], max: f32) -> f32 {
    let (max, mut acc) = (_mm512_set1_ps(max), _mm512_setzero_ps());
    let (chunks, tail) = x.as_chunks::<16>();
    for chunk in chunks {
        acc = _mm512_add_ps(acc, exp(_mm512_sub_ps(load(chunk), max)));
    }
    if !tail.is_empty() {
        acc = _mm512_add_ps(acc, exp(_mm512_sub_ps(load_tail(tail, f32::NEG_INFINITY), max)));
    }
    hsum(acc)
}

#[target_feature(enable = "avx512f")]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    super::scalar::scale(x, factor);
}
