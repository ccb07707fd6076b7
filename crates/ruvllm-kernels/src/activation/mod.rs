//! Activation functions, plain and gated (`act(gate) · up`), and the soft cap of logits.
//!
//! ```text
//! silu(x)      = x / (1 + e^-x)
//! gelu_tanh(x) = x / (1 + e^-2u)             u = √(2/π)·(x + 0.044715·x³);  ½(1 + tanh u) = 1/(1 + e^-2u)
//! gelu_erf(x)  = max(x, 0) - |x|·Φ(-|x|)     Φ(-z) = e^(-z²/2)·t·Q(t),  t = 1/(1 + 0.3·z)
//! softcap(x)   = cap·tanh(x/cap)
//! ```
//! - Written so, no form cancels: results keep their relative precision far into the negative tail.
//! - `Q` is a minimax fit of relative error 3.5e-9 over `z <= 15` (beyond, the result underflows); Abramowitz & Stegun
//!   7.1.26 has the shape.
//! - Tails go through the vector code in a padded register, so a result never depends on where an element lies.
//!
//! For finite `x` only: `-inf` gives NaN in silu and gelu_tanh. A NaN stays NaN everywhere.

mod scalar;
mod vector;

#[cfg(test)]
mod tests;

use crate::isa::{self, Dispatch};
use crate::lanes;

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x·sigmoid(x)`, also called swish.
    Silu,
    /// GELU by its tanh approximation (gemma, phi2, gpt2).
    GeluTanh,
    /// `x·Φ(x)`, the exact GELU (bert).
    GeluErf,
    /// `max(x, 0)`
    Relu,
    /// `max(x, 0)²`
    ReluSqr,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 5] =
        [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::Relu, Activation::ReluSqr];

    /// Returns the derivative at `x`, where the value is `y`.
    pub fn slope(self, x: f32, y: f32) -> f32 {
        match self {
            Activation::Silu => {
                let sigmoid = 1.0 / (1.0 + (-x).exp());
                sigmoid + y * (1.0 - sigmoid)
            }
            Activation::GeluTanh => {
                const ROOT: f32 = 0.797_884_6;
                let tanh = (ROOT * (x + 0.044_715 * x * x * x)).tanh();
                0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * ROOT * (1.0 + 3.0 * 0.044_715 * x * x)
            }
            Activation::GeluErf => {
                // y = x·Φ(x), so Φ is there already; near 0 it is 1/2 + x·φ(0).
                let density = 0.398_942_3 * (-0.5 * x * x).exp();
                let below = if x.abs() < 1e-3 { 0.5 + x * density } else { y / x };
                below + x * density
            }
            Activation::Relu => f32::from(u8::from(x > 0.0)),
            Activation::ReluSqr => 2.0 * x.max(0.0),
        }
    }
}

/// Constants of the vectorised forms.
#[allow(clippy::excessive_precision, reason = "the fitted digits, rounded by the compiler")]
mod constants {
    /// `-2·√(2/π)`
    pub(super) const TANH_1: f32 = -1.595_769_1;
    /// `-2·√(2/π)·0.044715`
    pub(super) const TANH_3: f32 = -0.071_354_814;
    /// In `t = 1/(1 + PHI_T·z)`.
    pub(super) const PHI_T: f64 = 0.3;
    /// Beyond this `Φ(-z)` is 0 in f32.
    pub(super) const PHI_MAX: f64 = 15.0;
    /// `Q`, highest power first.
    pub(super) const PHI_Q: [f64; 10] = [
        -0.020628712085430108,
        0.11246506250428631,
        -0.22828540202470032,
        0.19188407930127593,
        -0.07950978989215274,
        0.09620524180141514,
        0.07837211916687611,
        0.11023936745815847,
        0.11957131526195035,
        0.11968671677548395,
    ];
}

/// Activation functions of one instruction set.
pub type ActivationKernels = Dispatch<ActivationOps>;

/// Function pointers of [`ActivationKernels`].
#[derive(Clone, Copy, Debug)]
pub struct ActivationOps {
    apply: unsafe fn(Activation, &mut [f32]),
    gated: unsafe fn(Activation, &mut [f32], &[f32]),
    softcap: unsafe fn(&mut [f32], f32),
}

lanes::compile! {
    vector {
        apply(activation: Activation, x: &mut [f32]);
        gated(activation: Activation, gate: &mut [f32], up: &[f32]);
        softcap(x: &mut [f32], cap: f32);
    }
}

isa::table! { ActivationOps by isa { apply, gated, softcap } }

impl ActivationKernels {
    /// Replaces every element by `act` of it.
    pub fn apply(&self, act: Activation, x: &mut [f32]) {
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { (self.ops.apply)(act, x) }
    }

    /// Replaces `gate` by `act(gate)·up`. Shapes: both `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gated(&self, act: Activation, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gated activation: rows differ in length");
        // SAFETY: as in `apply`.
        unsafe { (self.ops.gated)(act, gate, up) }
    }

    /// The way back through [`ActivationKernels::gated`]: replaces the gradient of `act(gate)·up` in `d_gate` by that of the gate, and writes that of `up`
    /// to `d_up`. Shapes: all `[n]`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gated_back(&self, act: Activation, gate: &[f32], up: &[f32], d_gate: &mut [f32], d_up: &mut [f32]) {
        let n = gate.len();
        assert!([up.len(), d_gate.len(), d_up.len()] == [n; 3], "gated activation: rows differ in length");
        d_up.copy_from_slice(gate);
        self.apply(act, d_up);
        for ((d_gate, d_up), (&gate, &up)) in d_gate.iter_mut().zip(d_up).zip(gate.iter().zip(up)) {
            let (grad, y) = (*d_gate, *d_up);
            (*d_gate, *d_up) = (grad * up * act.slope(gate, y), grad * y);
        }
    }

    /// Replaces every element by `cap·tanh(x/cap)` (gemma2).
    ///
    /// # Panics
    /// If `cap` is not a positive finite number.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        assert!(cap.is_finite() && cap > 0.0, "softcap: {cap} is no positive number");
        // SAFETY: as in `apply`.
        unsafe { (self.ops.softcap)(x, cap) }
    }
}
