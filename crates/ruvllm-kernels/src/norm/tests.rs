//! Norms against f64, in every row of the table.

use super::*;
use crate::Isa;
use proptest::prelude::*;

const EPS: f64 = f32::EPSILON as f64;

fn rms_reference(x: &[f32], w: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(w).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)).collect()
}

/// Bound: the sum of squares has no cancellation, so its relative error is below `(n + 2)·ε/2`, which the root halves;
/// the root's rounding and two products add 1.5ε. Subnormal products may lose one more unit of 1.4e-45.
fn check_rms(x: &[f32], w: &[f32], eps: f32) {
    let exact = rms_reference(x, w, eps);
    for table in available() {
        let mut out = vec![f32::NAN; x.len()];
        table.rms_norm(x, w, eps, &mut out);
        for (&got, &exact) in out.iter().zip(&exact) {
            let bound = exact.abs() * EPS * ((x.len() as f64 + 2.0) / 4.0 + 1.5) + 1e-44 * (1.0 + exact.abs());
            assert!((f64::from(got) - exact).abs() <= bound, "{}: {got} for {exact}", table.isa());
        }
        let mut in_place = x.to_vec();
        table.rms_norm_in_place(&mut in_place, w, eps);
        assert_eq!(in_place, out, "{}", table.isa());
        // residual + delta = x exactly: halves.
        let mut residual: Vec<f32> = x.iter().map(|v| v * 0.5).collect();
        let delta = residual.clone();
        table.add_rms_norm(&mut residual, &delta, w, eps, &mut in_place);
        let sum: Vec<f32> = delta.iter().map(|v| v + v).collect();
        table.rms_norm(&sum, w, eps, &mut out);
        assert_eq!((residual, in_place), (sum, out), "{}", table.isa());
    }
}

/// Bound: with `A = mean |x|`, the mean is off by at most `δ = n·ε·A`, so each deviation by `δ + ε·|x - m|`, and so is
/// their root mean square: `scale` is off by the factor `(δ + n·ε·rms)·scale` at most. The rest is rounding.
fn check_layer(x: &[f32], w: &[f32], bias: Option<&[f32]>, eps: f32) {
    let n = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
    let delta = n * EPS * x.iter().map(|&v| f64::from(v.abs())).sum::<f64>() / n;
    let factor = (delta + n * EPS * variance.sqrt()) * scale + 4.0 * EPS;
    for table in available() {
        let mut out = vec![f32::NAN; x.len()];
        table.layer_norm(x, w, bias, eps, &mut out);
        let mut in_place = x.to_vec();
        table.layer_norm_in_place(&mut in_place, w, bias, eps);
        assert_eq!(in_place, out, "{}", table.isa());
        for (i, &got) in out.iter().enumerate() {
            let (product, b) =
                ((f64::from(x[i]) - mean) * scale * f64::from(w[i]), bias.map_or(0.0, |b| f64::from(b[i])));
            let exact = product + b;
            let bound = product.abs() * 2.0 * factor
                + 2.0 * delta * scale * f64::from(w[i].abs())
                + EPS * (exact.abs() + b.abs())
                + 1e-40;
            assert!((f64::from(got) - exact).abs() <= bound, "{}: {got} for {exact} (± {bound})", table.isa());
        }
    }
}

#[test]
fn model_rows() {
    for n in [1, 2, 64, 576, 896, 2048, 4096] {
        let x: Vec<f32> = (0..n).map(|i| (i as f32 * 0.731).sin() * (1.0 + (i % 37) as f32)).collect();
        let w: Vec<f32> = (0..n).map(|i| 1.0 + (i as f32 * 0.11).cos()).collect();
        check_rms(&x, &w, 1e-5);
        check_layer(&x, &w, Some(&x), 1e-12);
        check_layer(&x, &w, None, 1e-5);
    }
}

#[test]
fn known_rows() {
    for table in available() {
        let mut out = [0.0; 4];
        table.rms_norm(&[3.0, -3.0, 3.0, 3.0], &[1.0, 2.0, 0.5, 0.0], 0.0, &mut out);
        assert_eq!(out, [1.0, -2.0, 0.5, 0.0]);
        table.layer_norm(&[1.0, 3.0, 1.0, 3.0], &[2.0; 4], Some(&[10.0, 0.0, 0.0, 0.0]), 0.0, &mut out);
        assert_eq!(out, [8.0, 2.0, -2.0, 2.0]);
        table.rms_norm(&[0.0; 4], &[1.0; 4], 1e-6, &mut out);
        assert_eq!(out, [0.0; 4]);
        let mut x = [3.0, 0.0, -4.0];
        table.l2_norm_in_place(&mut x);
        assert_eq!(x, [0.6, 0.0, -0.8]);
        let mut zeros = [0.0; 3];
        table.l2_norm_in_place(&mut zeros);
        assert_eq!(zeros, [0.0; 3]);
        let mut nans = [1.0, f32::NAN, 1.0];
        table.rms_norm_in_place(&mut nans, &[1.0; 3], 1e-6);
        assert!(nans.iter().all(|v| v.is_nan()));
    }
}

#[test]
#[should_panic(expected = "rms_norm: 3 inputs, 4 weights, 3 outputs")]
fn lengths_are_checked() {
    pick(Isa::best()).rms_norm(&[0.0; 3], &[0.0; 4], 1e-6, &mut [0.0; 3]);
}

proptest! {
    #[test]
    fn random_rows(
        rows in prop::collection::vec((-1e4f32..1e4, -4f32..4.0, -10f32..10.0), 1..400),
        start in 0usize..17,
        scale in prop::sample::select(vec![1e-20f32, 1e-6, 1.0, 1e12]),
        eps in prop::sample::select(vec![1e-12f32, 1e-6, 1e-5]),
    ) {
        let rows = &rows[start.min(rows.len() - 1)..];
        let x: Vec<f32> = rows.iter().map(|row| row.0 * scale).collect();
        let w: Vec<f32> = rows.iter().map(|row| row.1).collect();
        let bias: Vec<f32> = rows.iter().map(|row| row.2).collect();
        check_rms(&x, &w, eps);
        check_layer(&x, &w, Some(&bias), eps);
    }
}

#[test]
fn the_way_back_is_a_finite_difference() {
    let x: Vec<f32> = (0..24).map(|i| ((i * 7 + 3) as f32 * 0.61).sin()).collect();
    let g: Vec<f32> = (0..24).map(|i| ((i * 5 + 1) as f32 * 0.43).cos()).collect();
    let weight: Vec<f32> = (0..24).map(|i| 0.5 + (i % 5) as f32 * 0.3).collect();
    let table = pick(Isa::Scalar);
    for is_layer in [false, true] {
        let mut found = g.clone();
        back(&x, &weight, 1e-5, is_layer, &mut found);
        for i in 0..24 {
            let at = |step: f32| {
                let (mut moved, mut out) = (x.clone(), vec![0.0; 24]);
                moved[i] += step;
                match is_layer {
                    true => table.layer_norm(&moved, &weight, None, 1e-5, &mut out),
                    false => table.rms_norm(&moved, &weight, 1e-5, &mut out),
                }
                out.iter().zip(&g).map(|(x, g)| f64::from(x * g)).sum::<f64>()
            };
            let expected = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((f64::from(found[i]) - expected).abs() < 1e-3, "value {i}: {} for {expected}", found[i]);
        }
    }
}
