//! AVX-512: sixteen lanes.

use super::Activation;
use super::constants::{PHI_MAX, PHI_Q, PHI_T, TANH_1, TANH_3, TANH_R, TANH_SMALL};
use crate::softmax::avx512::{exp, map, zip_map};
use std::arch::x86_64::*;

/// `x / (1 + e^a)`
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn sigmoid_times(x: __m512, a: __m512) -> __m512 {
    _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0), exp(a)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn silu(x: __m512) -> __m512 {
    sigmoid_times(x, _mm512_sub_ps(_mm512_set1_ps(0.0), x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn gelu_tanh(x: __m512) -> __m512 {
    let inner = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(TANH_3), _mm512_set1_ps(TANH_1));
    sigmoid_times(x, _mm512_mul_ps(x, inner))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn gelu_erf(x: __m512) -> __m512 {
    let z = _mm512_min_ps(_mm512_set1_ps(PHI_MAX as f32), _mm512_abs_ps(x));
    let t = _mm512_div_ps(_mm512_set1_ps(1.0), _mm512_fmadd_ps(z, _mm512_set1_ps(PHI_T as f32), _mm512_set1_ps(1.0)));
    let mut q = _mm512_set1_ps(PHI_Q[0] as f32);
    for c in &PHI_Q[1..] {
        q = _mm512_fmadd_ps(q, t, _mm512_set1_ps(*c as f32));
    }
    let e = exp(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-0.5)));
    _mm512_fnmadd_ps(_mm512_mul_ps(z, e), _mm512_mul_ps(t, q), relu(x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn relu(x: __m512) -> __m512 {
    _mm512_max_ps(_mm512_set1_ps(0.0), x) // a NaN in the second operand stays
}

#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
fn tanh(x: __m512) -> __m512 {
    let z = _mm512_abs_ps(x);
    let e = exp(_mm512_mul_ps(z, _mm512_set1_ps(-2.0)));
    let large = _mm512_div_ps(_mm512_sub_ps(_mm512_set1_ps(1.0), e), _mm512_add_ps(_mm512_set1_ps(1.0), e));
    let square = _mm512_mul_ps(z, z);
    let mut r = _mm512_set1_ps(TANH_R[0]);
    for c in &TANH_R[1..] {
        r = _mm512_fmadd_ps(r, square, _mm512_set1_ps(*c));
    }
    let small = _mm512_fmadd_ps(_mm512_mul_ps(r, square), z, z);
    let is_small = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(z, _mm512_set1_ps(TANH_SMALL));
    let magnitude = _mm512_mask_blend_ps(is_small, large, small);
    _mm512_or_ps(magnitude, _mm512_and_ps(_mm512_set1_ps(-0.0), x)) // the sign of x
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
                let $f = |v| _mm512_mul_ps(relu(v), relu(v));
                $body
            }
        }
    };
}

#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn apply(act: Activation, x: &mut [f32]) {
    with_activation!(act, f => map(x, f))
}

#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn gated(act: Activation, gate: &mut [f32], up: &[f32]) {
    with_activation!(act, f => zip_map(gate, up, |gate, up| _mm512_mul_ps(f(gate), up)))
}

#[target_feature(enable = "avx512f,avx512dq")]
pub(super) fn softcap(x: &mut [f32], cap: f32) {
    let (cap, inverse) = (_mm512_set1_ps(cap), _mm512_set1_ps(1.0 / cap));
    map(x, |v| _mm512_mul_ps(cap, tanh(_mm512_mul_ps(v, inverse))))
}
