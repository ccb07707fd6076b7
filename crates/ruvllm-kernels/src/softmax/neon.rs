//! NEON: four lanes. The other elementwise kernels use [`exp`], [`map`] and [`zip_map`] too.

use super::constants::{LN_2_HI, LN_2_LO, P, X_MAX, X_MIN};
use std::arch::aarch64::*;

#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load(x: &[f32; 4]) -> float32x4_t {
    // SAFETY: four floats lie behind the reference; the load needs no alignment.
    unsafe { vld1q_f32(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn store(x: &mut [f32; 4], v: float32x4_t) {
    // SAFETY: four floats lie behind the reference; the store needs no alignment.
    unsafe { vst1q_f32(x.as_mut_ptr(), v) }
}

/// Loads up to three floats and fills the rest with `pad`.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn load_tail(tail: &[f32], pad: f32) -> float32x4_t {
    let mut padded = [pad; 4];
    padded[..tail.len()].copy_from_slice(tail);
    load(&padded)
}

#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn store_tail(tail: &mut [f32], v: float32x4_t) {
    let mut padded = [0.0; 4];
    store(&mut padded, v);
    tail.copy_from_slice(&padded[..tail.len()]);
}

/// Replaces every element by `f` of it.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn map(x: &mut [f32], f: impl Fn(float32x4_t) -> float32x4_t) {
    let (chunks, tail) = x.as_chunks_mut::<4>();
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
#[target_feature(enable = "neon")]
pub(crate) fn zip_map(x: &mut [f32], y: &[f32], f: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) {
    let ((x4, x_tail), (y4, y_tail)) = (x.as_chunks_mut::<4>(), y.as_chunks::<4>());
    for (x, y) in x4.iter_mut().zip(y4) {
        let v = f(load(x), load(y));
        store(x, v);
    }
    if !x_tail.is_empty() {
        let v = f(load_tail(x_tail, 0.0), load_tail(y_tail, 0.0));
        store_tail(x_tail, v);
    }
}

/// `Σ` over the lanes.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn hsum(v: float32x4_t) -> f32 {
    vaddvq_f32(v)
}

/// `e^x` in every lane; the algorithm is in the module's docs.
#[inline]
#[target_feature(enable = "neon")]
pub(crate) fn exp(x: float32x4_t) -> float32x4_t {
    // `fmin` and `fmax` hand NaNs on.
    let x = vmaxq_f32(vdupq_n_f32(X_MIN), vminq_f32(vdupq_n_f32(X_MAX), x));
    let n = vrndnq_f32(vmulq_f32(x, vdupq_n_f32(std::f32::consts::LOG2_E)));
    let r = vfmsq_f32(x, n, vdupq_n_f32(LN_2_HI));
    let r = vfmsq_f32(r, n, vdupq_n_f32(LN_2_LO));
    let mut p = vdupq_n_f32(P[0]);
    for c in &P[1..] {
        p = vfmaq_f32(vdupq_n_f32(*c), p, r);
    }
    let p = vfmaq_f32(r, p, vmulq_f32(r, r));
    let p = vaddq_f32(p, vdupq_n_f32(1.0));
    let n = vcvtq_s32_f32(n);
    let half = vshrq_n_s32::<1>(n);
    let pow2 = |n| vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127))));
    vmulq_f32(vmulq_f32(p, pow2(half)), pow2(vsubq_s32(n, half)))
}

#[target_feature(enable = "neon")]
pub(super) fn exp_all(x: &mut [f32]) {
    map(x, |v| exp(v));
}

#[target_feature(enable = "neon")]
pub(super) fn max(x: &[f32]) -> f32 {
    let lowest = vdupq_n_f32(f32::NEG_INFINITY);
    let (mut acc, (c16, rest)) = ([lowest; 4], x.as_chunks::<16>());
    for chunk in c16 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<4>().0) {
            *acc = vmaxnmq_f32(load(v), *acc); // NaNs lose
        }
    }
    let (c4, tail) = rest.as_chunks::<4>();
    for v in c4 {
        acc[0] = vmaxnmq_f32(load(v), acc[0]);
    }
    acc[1] = vmaxnmq_f32(load_tail(tail, f32::NEG_INFINITY), acc[1]);
    vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(acc[0], acc[1]), vmaxnmq_f32(acc[2], acc[3])))
}

#[target_feature(enable = "neon")]
pub(super) fn sum(x: &[f32]) -> f32 {
    let (mut acc, (c16, rest)) = ([vdupq_n_f32(0.0); 4], x.as_chunks::<16>());
    for chunk in c16 {
        for (acc, v) in acc.iter_mut().zip(chunk.as_chunks::<4>().0) {
            *acc = vaddq_f32(*acc, load(v));
        }
    }
    let (c4, tail) = rest.as_chunks::<4>();
    for v in c4 {
        acc[0] = vaddq_f32(acc[0], load(v));
    }
    acc[1] = vaddq_f32(acc[1], load_tail(tail, 0.0));
    hsum(vaddq_f32(vaddq_f32(acc[0], acc[1]), vaddq_f32(acc[2], acc[3])))
}

#[target_feature(enable = "neon")]
pub(super) fn exp_sum(x: &mut [f32], max: f32) -> f32 {
    let (max, mut acc) = (vdupq_n_f32(max), vdupq_n_f32(0.0));
    let (chunks, tail) = x.as_chunks_mut::<4>();
    for chunk in chunks {
        let e = exp(vsubq_f32(load(chunk), max));
        store(chunk, e);
        acc = vaddq_f32(acc, e);
    }
    if !tail.is_empty() {
        let e = exp(vsubq_f32(load_tail(tail, f32::NEG_INFINITY), max));
        store_tail(tail, e);
        acc = vaddq_f32(acc, e);
    }
    hsum(acc)
}

#[target_feature(enable = "neon")]
pub(super) fn sum_exp(x: &[f32], max: f32) -> f32 {
    let (max, mut acc) = (vdupq_n_f32(max), vdupq_n_f32(0.0));
    let (chunks, tail) = x.as_chunks::<4>();
    for chunk in chunks {
        acc = vaddq_f32(acc, exp(vsubq_f32(load(chunk), max)));
    }
    if !tail.is_empty() {
        acc = vaddq_f32(acc, exp(vsubq_f32(load_tail(tail, f32::NEG_INFINITY), max)));
    }
    hsum(acc)
}

#[target_feature(enable = "neon")]
pub(super) fn scale(x: &mut [f32], factor: f32) {
    super::scalar::scale(x, factor);
}
