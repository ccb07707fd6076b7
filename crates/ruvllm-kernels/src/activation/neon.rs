//! NEON: four lanes.

use super::Activation;
use super::constants::{PHI_MAX, PHI_Q, PHI_T, TANH_1, TANH_3, TANH_R, TANH_SMALL};
use crate::softmax::neon::{exp, map, zip_map};
use std::arch::aarch64::*;

/// `x / (1 + e^a)`
#[inline]
#[target_feature(enable = "neon")]
fn sigmoid_times(x: float32x4_t, a: float32x4_t) -> float32x4_t {
    vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0), exp(a)))
}

#[inline]
#[target_feature(enable = "neon")]
fn silu(x: float32x4_t) -> float32x4_t {
    sigmoid_times(x, vsubq_f32(vdupq_n_f32(0.0), x))
}

#[inline]
#[target_feature(enable = "neon")]
fn gelu_tanh(x: float32x4_t) -> float32x4_t {
    let inner = vfmaq_f32(vdupq_n_f32(TANH_1), vmulq_f32(x, x), vdupq_n_f32(TANH_3));
    sigmoid_times(x, vmulq_f32(x, inner))
}

#[inline]
#[target_feature(enable = "neon")]
fn gelu_erf(x: float32x4_t) -> float32x4_t {
    let z = vminq_f32(vdupq_n_f32(PHI_MAX as f32), vabsq_f32(x));
    let t = vdivq_f32(vdupq_n_f32(1.0), vfmaq_f32(vdupq_n_f32(1.0), z, vdupq_n_f32(PHI_T as f32)));
    let mut q = vdupq_n_f32(PHI_Q[0] as f32);
    for c in &PHI_Q[1..] {
        q = vfmaq_f32(vdupq_n_f32(*c as f32), q, t);
    }
    let e = exp(vmulq_f32(vmulq_f32(z, z), vdupq_n_f32(-0.5)));
    vfmsq_f32(relu(x), vmulq_f32(z, e), vmulq_f32(t, q))
}

#[inline]
#[target_feature(enable = "neon")]
fn relu(x: float32x4_t) -> float32x4_t {
    vmaxq_f32(vdupq_n_f32(0.0), x) // a NaN stays
}

#[inline]
#[target_feature(enable = "neon")]
fn tanh(x: float32x4_t) -> float32x4_t {
    let z = vabsq_f32(x);
    let e = exp(vmulq_f32(z, vdupq_n_f32(-2.0)));
    let large = vdivq_f32(vsubq_f32(vdupq_n_f32(1.0), e), vaddq_f32(vdupq_n_f32(1.0), e));
    let square = vmulq_f32(z, z);
    let mut r = vdupq_n_f32(TANH_R[0]);
    for c in &TANH_R[1..] {
        r = vfmaq_f32(vdupq_n_f32(*c), r, square);
    }
    let small = vfmaq_f32(z, vmulq_f32(r, square), z);
    let magnitude = vbslq_f32(vcltq_f32(z, vdupq_n_f32(TANH_SMALL)), small, large);
    vbslq_f32(vdupq_n_u32(1 << 31), x, magnitude) // the sign of x
}

/// Runs `$body` with `$f` as the activation `$act`: one loop each, none with a branch inside.
macro_rules! with_activation {
    ($act:expr, $f:ident => $body:expr) => {
        match $act {
            Activation::Silu => {
                let $f = |v| silu(v);
                $body
            }
            Activation::GeluTanh => {
                let $f = |v| gelu_tanh(v);
                $body
            }
            Activation::GeluErf => {
                let $f = |v| gelu_erf(v);
                $body
            }
            Activation::Relu => {
                let $f = |v| relu(v);
                $body
            }
            Activation::ReluSqr => {
                let $f = |v| vmulq_f32(relu(v), relu(v));
                $body
            }
        }
    };
}

#[target_feature(enable = "neon")]
pub(super) fn apply(act: Activation, x: &mut [f32]) {
    with_activation!(act, f => map(x, f))
}

#[target_feature(enable = "neon")]
pub(super) fn gated(act: Activation, gate: &mut [f32], up: &[f32]) {
    with_activation!(act, f => zip_map(gate, up, |gate, up| vmulq_f32(f(gate), up)))
}

#[target_feature(enable = "neon")]
pub(super) fn softcap(x: &mut [f32], cap: f32) {
    let (cap, inverse) = (vdupq_n_f32(cap), vdupq_n_f32(1.0 / cap));
    map(x, |v| vmulq_f32(cap, tanh(vmulq_f32(v, inverse))))
}
