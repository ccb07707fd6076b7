//! Kernels whose lanes compute one value each: activations, rotation, addition, gathering.

use ruvllm_shaders::{
    ActivateParams, AddParams, CopyHeadsParams, Extent, Kernel, RopeParams, RowRecord, ShaderActivation, flags,
};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;

const EPSILON: f64 = f32::EPSILON as f64;

/// Φ(x), by the integral of the density: Simpson's rule in steps of 1/4096 from 0.
fn normal_cdf(x: f64) -> f64 {
    let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let z = x.abs().min(12.0);
    let n = 2 * ((z * 4096.0) as usize / 2 + 1);
    let step = z / n as f64;
    let sum: f64 = (0..=n)
        .map(|i| density(i as f64 * step) * if i == 0 || i == n { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 })
        .sum();
    let half = sum * step / 3.0;
    if x < 0.0 { 0.5 - half } else { 0.5 + half }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn activated(function: ShaderActivation, x: f64) -> f64 {
    match function {
        ShaderActivation::Silu => x * sigmoid(x),
        ShaderActivation::GeluTanh => x * sigmoid((8.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)),
        ShaderActivation::GeluErf => x * normal_cdf(x),
        ShaderActivation::Relu => x.max(0.0),
        ShaderActivation::ReluSqr => x.max(0.0).powi(2),
        ShaderActivation::ClampedSwiglu => x.min(7.0) * sigmoid(1.702 * x.min(7.0)),
    }
}

#[test]
fn activations() {
    let (n, n_rows, n_slots) = (300, 2, 2);
    let mut random = Random::new(1);
    let extremes = [0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 1e4, -1e4, 1e15, -1e15];
    let a: Vec<f32> =
        extremes.into_iter().chain(random.floats(2 + n_rows * n_slots * n).iter().map(|x| 12.0 * x)).collect();
    let b: Vec<f32> = random.floats(1 + n_rows * n_slots * n).iter().map(|x| 9.0 * x).collect();
    for function in ShaderActivation::ALL {
        for is_gated in [false, true] {
            let kernel = Kernel::Activate { function, is_gated };
            if !Kernel::all().contains(&kernel) {
                continue;
            }
            let params = ActivateParams {
                n: n as u32,
                a_offset: 0,
                a_stride: (n_slots * n) as u32,
                b_offset: 1,
                b_stride: (n_slots * n) as u32,
                y_offset: 2,
                y_stride: (n_slots * n) as u32,
                slot_stride: n as u32,
                alpha: 1.702,
                limit: 7.0,
                count: 1,
            };
            let dispatch = Dispatch {
                kernel,
                params: params.words(),
                extent: Extent { n: n as u32, rows: n_rows as u32, slots: n_slots as u32 },
                buffers: vec![a.clone().into(), b.clone().into(), vec![0.0f32; 2 + n_rows * n_slots * n].into()],
                pass: Pass::default(),
            };
            on_all(&dispatch, |name, written| {
                for (i, got) in floats(&written[0])[2..].iter().enumerate() {
                    let (x, up) = (f64::from(a[i]), f64::from(b[1 + i]));
                    let factor = match (function, is_gated) {
                        (ShaderActivation::ClampedSwiglu, _) => up.clamp(-7.0, 7.0) + 1.0,
                        (_, true) => up,
                        (_, false) => 1.0,
                    };
                    let expected = activated(function, x) * factor;
                    // The factor of x is within 0..1 and errs by some units in the last place of 1.
                    let size = if function == ShaderActivation::ReluSqr { x * x } else { x.abs() };
                    let bound = 32.0 * EPSILON * size * (factor.abs() + 1.0) + f64::from(f32::MIN_POSITIVE);
                    let error = (f64::from(*got) - expected).abs();
                    assert!(error <= bound, "{name} of {x}, {up}: {got} instead of {expected}");
                }
            });
        }
    }
}

#[test]
fn rotation() {
    let (n_rows, n_heads, head_dim, n_pairs, stride) = (3, 3, 10, 4, 33);
    for is_neox in [false, true] {
        let mut random = Random::new(2);
        let x = random.floats(1 + n_rows * stride);
        let angles: Vec<f64> = (0..n_rows * (n_pairs + 1)).map(|_| 1e5 * f64::from(random.float())).collect();
        let table: Vec<f32> = angles.iter().flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect();
        let params = RopeParams {
            n_heads: n_heads as u32,
            head_dim: head_dim as u32,
            n_pairs: n_pairs as u32,
            x_offset: 1,
            x_stride: stride as u32,
            angle_stride: n_pairs as u32 + 1,
            count: 1,
        };
        let dispatch = Dispatch {
            kernel: Kernel::Rope { is_neox },
            params: params.words(),
            extent: Extent { n: (n_heads * n_pairs) as u32, rows: n_rows as u32, slots: 1 },
            buffers: vec![table.into(), x.clone().into()],
            pass: Pass::default(),
        };
        let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        for row in 0..n_rows {
            for head in 0..n_heads {
                for pair in 0..n_pairs {
                    let at = 1 + row * stride + head * head_dim;
                    let (a, b) =
                        if is_neox { (at + pair, at + pair + n_pairs) } else { (at + 2 * pair, at + 2 * pair + 1) };
                    let (sin, cos) = angles[row * (n_pairs + 1) + pair].sin_cos();
                    let (x, y) = (expected[a], expected[b]);
                    (expected[a], expected[b]) = (x * cos - y * sin, x * sin + y * cos);
                }
            }
        }
        on_all(&dispatch, |name, written| {
            for (i, (got, expected)) in floats(&written[0]).iter().zip(&expected).enumerate() {
                assert!(
                    (f64::from(*got) - expected).abs() <= 4.0 * EPSILON,
                    "{name}: value {i}: {got} instead of {expected}"
                );
            }
        });
    }
}

#[test]
fn addition() {
    let (n, n_rows) = (300, 3);
    let mut random = Random::new(3);
    let (x, gate, y) = (random.floats(2 + n_rows * n), random.floats(n_rows), random.floats(1 + n_rows * (n + 1)));
    for (stride, flags) in [(n, 0), (0, 0), (n, flags::HAS_GATE)] {
        let params = AddParams {
            n: n as u32,
            x_offset: 2,
            x_stride: stride as u32,
            y_offset: 1,
            y_stride: n as u32 + 1,
            scale: 0.5,
            count: 1,
            flags,
        };
        let dispatch = Dispatch {
            kernel: Kernel::Add,
            params: params.words(),
            extent: Extent { n: n as u32, rows: n_rows as u32, slots: 1 },
            buffers: vec![x.clone().into(), gate.clone().into(), y.clone().into()],
            pass: Pass::default(),
        };
        on_all(&dispatch, |name, written| {
            let got = floats(&written[0]);
            for row in 0..n_rows {
                let factor = if flags == 0 { 0.5 } else { 0.5 * sigmoid(f64::from(gate[row])) };
                for i in 0..n {
                    let at = 1 + row * (n + 1) + i;
                    let expected = f64::from(y[at]) + factor * f64::from(x[2 + row * stride + i]);
                    assert!(
                        (f64::from(got[at]) - expected).abs() <= 8.0 * EPSILON,
                        "{name}: {} instead of {expected}",
                        got[at]
                    );
                }
                let past = 1 + row * (n + 1) + n;
                assert_eq!(got[past], y[past], "{name} wrote past row {row}");
            }
        });
    }
}

#[test]
fn gathering() {
    let n = 300;
    let x = Random::new(4).floats(1 + 4 * n);
    let params = AddParams {
        n: n as u32,
        x_offset: 1,
        x_stride: n as u32,
        y_stride: n as u32,
        count: 1,
        ..AddParams::default()
    };
    let sources = [3u32, 0];
    let dispatch = Dispatch {
        kernel: Kernel::Gather,
        params: params.words(),
        extent: Extent { n: n as u32, rows: 2, slots: 1 },
        buffers: vec![x.clone().into(), vec![0.0f32; 2 * n].into()],
        pass: Pass {
            rows: sources.map(|source| RowRecord { source, ..RowRecord::default() }).to_vec(),
            tables: vec![],
            ..Pass::default()
        },
    };
    on_all(&dispatch, |name, written| {
        for (y, source) in floats(&written[0]).chunks_exact(n).zip(sources) {
            assert_eq!(y, &x[1 + source as usize * n..][..n], "{name}");
        }
    });
}

#[test]
fn parts_of_heads_are_copied() {
    let (n, n_heads, n_rows) = (90, 4, 3);
    let mut random = Random::new(5);
    for x_head_stride in [100, 0] {
        let (x, before) = (random.floats(3 + n_rows * 401), random.floats(2 + n_rows * 500));
        let params = CopyHeadsParams {
            n: n as u32,
            n_heads: n_heads as u32,
            x_offset: 3,
            x_stride: 401,
            x_head_stride,
            y_offset: 2,
            y_stride: 500,
            y_head_stride: 110,
            count: 1,
        };
        let dispatch = Dispatch {
            kernel: Kernel::CopyHeads,
            params: params.words(),
            extent: Extent { n: (n * n_heads) as u32, rows: n_rows as u32, slots: 1 },
            buffers: vec![x.clone().into(), before.clone().into()],
            pass: Pass::default(),
        };
        let mut expected = before;
        for row in 0..n_rows {
            for head in 0..n_heads {
                let from = &x[3 + row * 401 + head * x_head_stride as usize..][..n];
                expected[2 + row * 500 + head * 110..][..n].copy_from_slice(from);
            }
        }
        on_all(&dispatch, |name, written| assert!(floats(&written[0]) == expected, "{name}"));
    }
}
