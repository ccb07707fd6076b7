//! The activations, written once over 16 floats.

use super::Activation;
use super::constants::{PHI_MAX, PHI_Q, PHI_T, TANH_1, TANH_3};
use crate::lanes::{self, Lanes, Map, load_tail, polynomial, store_tail};

/// [`PHI_Q`] in f32.
const Q: [f32; PHI_Q.len()] = {
    let (mut q, mut i) = ([0.0; PHI_Q.len()], 0);
    while i < q.len() {
        q[i] = PHI_Q[i] as f32;
        i += 1;
    }
    q
};

#[derive(Clone, Copy)]
struct Silu;
#[derive(Clone, Copy)]
struct GeluTanh;
#[derive(Clone, Copy)]
struct GeluErf;
#[derive(Clone, Copy)]
struct Relu;
#[derive(Clone, Copy)]
struct ReluSqr;

impl Map for Silu {
    #[inline(always)]
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe { sigmoid_times::<L>(x, L::sub(L::splat(0.0), x)) }
    }
}

impl Map for GeluTanh {
    #[inline(always)]
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe {
            let inner = L::fma(L::mul(x, x), L::splat(TANH_3), L::splat(TANH_1));
            sigmoid_times::<L>(x, L::mul(x, inner))
        }
    }
}

impl Map for GeluErf {
    #[inline(always)]
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe {
            let one = L::splat(1.0);
            let minus_z = L::max(L::splat(-PHI_MAX as f32), L::sub(L::splat(0.0), L::abs(x)));
            let t = L::div(one, L::fma(minus_z, L::splat(-PHI_T as f32), one));
            let e = lanes::exp::<L>(L::mul(L::mul(minus_z, minus_z), L::splat(-0.5)));
            L::fma(L::mul(minus_z, e), L::mul(t, polynomial::<L>(&Q, t)), Relu.of::<L>(x))
        }
    }
}

impl Map for Relu {
    #[inline(always)]
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe { L::max(L::splat(0.0), x) } // a NaN stays
    }
}

impl Map for ReluSqr {
    #[inline(always)]
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe {
            let x = Relu.of::<L>(x);
            L::mul(x, x)
        }
    }
}

/// `cap·tanh(x/cap)`
#[derive(Clone, Copy)]
struct Softcap(f32);

impl Map for Softcap {
    #[inline(always)]
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe { lanes::softcap::<L>(x, self.0) }
    }
}

/// `x / (1 + e^a)`
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn sigmoid_times<L: Lanes>(x: L::V, a: L::V) -> L::V {
    // SAFETY: the caller's.
    unsafe { L::div(x, L::add(L::splat(1.0), lanes::exp::<L>(a))) }
}

/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn apply<L: Lanes>(activation: Activation, x: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe {
        match activation {
            Activation::Silu => lanes::map::<L>(Silu, x),
            Activation::GeluTanh => lanes::map::<L>(GeluTanh, x),
            Activation::GeluErf => lanes::map::<L>(GeluErf, x),
            Activation::Relu => lanes::map::<L>(Relu, x),
            Activation::ReluSqr => lanes::map::<L>(ReluSqr, x),
        }
    }
}

/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn gated<L: Lanes>(activation: Activation, gate: &mut [f32], up: &[f32]) {
    // SAFETY: the caller's.
    unsafe {
        match activation {
            Activation::Silu => gate_by::<L>(Silu, gate, up),
            Activation::GeluTanh => gate_by::<L>(GeluTanh, gate, up),
            Activation::GeluErf => gate_by::<L>(GeluErf, gate, up),
            Activation::Relu => gate_by::<L>(Relu, gate, up),
            Activation::ReluSqr => gate_by::<L>(ReluSqr, gate, up),
        }
    }
}

/// `gate = f(gate)·up`
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
unsafe fn gate_by<L: Lanes>(f: impl Map, gate: &mut [f32], up: &[f32]) {
    let ((gates, gate_tail), (ups, up_tail)) = (gate.as_chunks_mut::<16>(), up.as_chunks::<16>());
    // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
    unsafe {
        for (gate, up) in gates.iter_mut().zip(ups) {
            let value = L::mul(f.of::<L>(L::load_f32(gate.as_ptr())), L::load_f32(up.as_ptr()));
            L::store(gate.as_mut_ptr(), value);
        }
        if !gate_tail.is_empty() {
            let value = f.of::<L>(load_tail::<L>(gate_tail, 0.0));
            store_tail::<L>(gate_tail, L::mul(value, load_tail::<L>(up_tail, 0.0)));
        }
    }
}

/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn softcap<L: Lanes>(x: &mut [f32], cap: f32) {
    // SAFETY: the caller's.
    unsafe { lanes::map::<L>(Softcap(cap), x) }
}
