//! Activations against f64, in every row of the table.

use super::*;
use crate::Isa;
use proptest::prelude::*;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, PI};

const EPS: f64 = f32::EPSILON as f64;
/// Where `e^a` overflows the result is 0 for a true value of at most 89·e^-88.
const TINY: f64 = 1e-36;

/// `Φ(-z)` for `z >= 0`: the series of all positive terms (Abramowitz & Stegun 26.2.11) near 0, the continued fraction
/// 26.2.14 farther out.
fn phi(z: f64) -> f64 {
    let density = (-0.5 * z * z).exp() / (2.0 * PI).sqrt();
    if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for k in 1..100 {
            term *= z * z / f64::from(2 * k + 1);
            sum += term;
        }
        0.5 - density * sum
    } else {
        density / (1..300).rev().fold(z, |fraction, k| z + f64::from(k) / fraction)
    }
}

/// The exact value at `x`, and how far an f32 evaluation may be off.
fn reference(act: Activation, x: f32) -> (f64, f64) {
    let x = f64::from(x);
    match act {
        // 2 ulp of the exponential, the sum, the quotient.
        Activation::Silu => {
            let y = x / (1.0 + (-x).exp());
            (y, 4.0 * EPS * y.abs() + TINY)
        }
        // The argument's rounding (constants, square, two more: 2.5ε) enters the exponential multiplied by its size.
        Activation::GeluTanh => {
            let u = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 * (x + 0.044715 * x * x * x);
            let y = x / (1.0 + (-2.0 * u).exp());
            (y, EPS * y.abs() * (4.0 + 2.5 * 2.0 * u.abs().min(50.0)) + TINY)
        }
        // The tail |x|·Φ(-|x|): the exponential 2ε and its argument z²/2·ε, t and Q(t) (condition 2.3) 8ε, products 2ε.
        Activation::GeluErf => {
            let tail = x.abs() * phi(x.abs());
            let y = x.max(0.0) - tail;
            (y, EPS * (y.abs() + tail * (12.0 + x * x / 2.0)) + 1e-44)
        }
        Activation::Relu => (x.max(0.0), 0.0),
        Activation::ReluSqr => (x.max(0.0).powi(2), EPS * x.max(0.0).powi(2) + 1e-44),
    }
}

fn check(x: &[f32], up: &[f32]) {
    for table in available() {
        for act in Activation::ALL {
            let (mut plain, mut gated) = (x.to_vec(), x.to_vec());
            table.apply(act, &mut plain);
            table.gated(act, &mut gated, up);
            for i in 0..x.len() {
                let (exact, bound) = reference(act, x[i]);
                let error = (f64::from(plain[i]) - exact).abs();
                assert!(error <= bound, "{} {act:?}({}) = {}, not {exact}", table.isa(), x[i], plain[i]);
                let up = f64::from(up[i]);
                let (error, bound) =
                    ((f64::from(gated[i]) - exact * up).abs(), bound * up.abs() + EPS * (exact * up).abs());
                assert!(error <= bound + 1e-44, "{} gated {act:?}({})·{up} = {}", table.isa(), x[i], gated[i]);
            }
        }
    }
}

/// Bound: the quotient x/cap (1.5ε, and tanh shrinks relative errors), tanh itself 4ε, the product.
fn check_softcap(x: &[f32], cap: f32) {
    for table in available() {
        let mut y = x.to_vec();
        table.softcap(&mut y, cap);
        for (&x, &y) in x.iter().zip(&y) {
            let exact = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
            let bound = 6.5 * EPS * exact.abs() + 1e-40;
            assert!((f64::from(y) - exact).abs() <= bound, "{}: softcap({x}, {cap}) = {y}, not {exact}", table.isa());
        }
    }
}

#[test]
fn a_dense_sweep() {
    let x: Vec<f32> = (-60_000..60_000).map(|i| i as f32 * 1.7e-3).collect();
    check(&x, &vec![-1.5; x.len()]);
    check_softcap(&x, 30.0);
    check_softcap(&x, 1.0);
    let small: Vec<f32> = (0..20_000).map(|i| f32::from_bits(0x3a00_0000 - i * 40_001)).collect();
    check(&small, &small);
    check_softcap(&small, 50.0);
}

#[test]
fn extremes() {
    for table in available() {
        for act in Activation::ALL {
            let mut x = [1e20, -1e20, f32::NAN, 0.0, -0.0, 88.0, -88.0, 1e9];
            table.apply(act, &mut x);
            assert_eq!(x[0], if act == Activation::ReluSqr { f32::INFINITY } else { 1e20 }, "{} {act:?}", table.isa());
            assert!(x[1] == 0.0 && x[2].is_nan() && x[3] == 0.0 && x[4] == 0.0, "{} {act:?}: {x:?}", table.isa());
            table.apply(act, &mut []);
        }
        let mut x = [1e30, -1e30, f32::NAN, -0.0, f32::INFINITY];
        table.softcap(&mut x, 30.0);
        assert!(x[0] == 30.0 && x[1] == -30.0 && x[2].is_nan() && x[3] == 0.0 && x[4] == 30.0, "{x:?}");
    }
}

#[test]
#[should_panic(expected = "gated activation: rows differ in length")]
fn lengths_are_checked() {
    pick(Isa::best()).gated(Activation::Silu, &mut [0.0; 3], &[0.0; 4]);
}

proptest! {
    #[test]
    fn random_rows(rows in prop::collection::vec((-30f32..30.0, -1e3f32..1e3), 1..200), start in 0usize..17) {
        let (x, up): (Vec<f32>, Vec<f32>) = rows.into_iter().unzip();
        let start = start.min(x.len() - 1);
        check(&x[start..], &up[start..]);
        check_softcap(&up[start..], 50.0);
    }

    #[test]
    fn results_do_not_depend_on_the_place(x in prop::collection::vec(-20f32..20.0, 1..70)) {
        for table in available() {
            for act in Activation::ALL {
                let mut together = x.clone();
                table.apply(act, &mut together);
                for (&x, together) in x.iter().zip(together) {
                    let mut alone = [x];
                    table.apply(act, &mut alone);
                    prop_assert_eq!(alone[0].to_bits(), together.to_bits());
                }
            }
        }
    }
}

#[test]
fn slopes_are_finite_differences() {
    let table = pick(Isa::Scalar);
    for activation in Activation::ALL {
        for x in [-6.0f32, -1.3, -0.2, 0.4, 2.5, 7.0] {
            let at = |x: f32| {
                let mut y = [x];
                table.apply(activation, &mut y);
                y[0]
            };
            let expected = (f64::from(at(x + 1e-2)) - f64::from(at(x - 1e-2))) / 2e-2;
            let found = f64::from(activation.slope(x, at(x)));
            // What two large values of 32 bits differ by is known no better.
            let bound = 1e-4 * (f64::from(at(x)) / 8.0).max(1.0);
            assert!((found - expected).abs() < bound, "{activation:?} at {x}: {found} for {expected}");
        }
    }
    for activation in [Activation::Silu, Activation::GeluTanh, Activation::GeluErf] {
        assert!((activation.slope(0.0, 0.0) - 0.5).abs() < 1e-6);
    }
    let (gate, up, mut of_gate, mut of_up) = ([0.7f32, -1.2], [2.0f32, 0.5], [3.0f32, -1.0], [0.0f32; 2]);
    table.gated_back(Activation::Silu, &gate, &up, &mut of_gate, &mut of_up);
    for i in 0..2 {
        let (mut y, grad) = ([gate[i]], [3.0, -1.0][i]);
        table.apply(Activation::Silu, &mut y);
        assert_eq!((of_gate[i], of_up[i]), (grad * up[i] * Activation::Silu.slope(gate[i], y[0]), grad * y[0]));
    }
}
