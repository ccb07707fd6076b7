//! Plain loops in f64, rounded at the end.

use super::Activation;
use super::constants::{PHI_MAX, PHI_Q, PHI_T};
use std::f64::consts::FRAC_2_SQRT_PI;

fn activate(act: Activation, x: f32) -> f64 {
    let x = f64::from(x);
    match act {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x);
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::GeluErf => relu(x) - x.abs().min(PHI_MAX) * phi(x.abs().min(PHI_MAX)),
        Activation::Relu => relu(x),
        Activation::ReluSqr => relu(x) * relu(x),
    }
}

/// `max(x, 0)` that keeps a NaN.
fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

/// `Φ(-z)` for `z` in `0..=PHI_MAX`.
fn phi(z: f64) -> f64 {
    let t = 1.0 / (1.0 + PHI_T * z);
    (-0.5 * z * z).exp() * t * PHI_Q.iter().fold(0.0, |q, c| q * t + c)
}

pub(super) fn apply(act: Activation, x: &mut [f32]) {
    for x in x {
        *x = activate(act, *x) as f32;
    }
}

pub(super) fn gated(act: Activation, gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = (activate(act, *gate) * f64::from(up)) as f32;
    }
}

pub(super) fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = (f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh()) as f32;
    }
}
