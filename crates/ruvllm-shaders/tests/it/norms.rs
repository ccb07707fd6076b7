//! Norms and softmax.

use ruvllm_shaders::{Extent, Kernel, NormParams, Reduction, SoftmaxParams, flags};

use crate::device::{Dispatch, Pass, floats, on_all};
use crate::random::Random;

const EPSILON: f64 = f32::EPSILON as f64;
const REDUCTIONS: [Reduction; 2] = [Reduction::Subgroup, Reduction::Shared];

/// Normalises `x` in f64.
fn normalized(x: &[f32], is_centred: bool, eps: f32) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = if is_centred { x.iter().map(|x| f64::from(*x)).sum::<f64>() / n } else { 0.0 };
    let squares: f64 = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum();
    x.iter().map(|x| (f64::from(*x) - mean) / (squares / n + f64::from(eps)).sqrt()).collect()
}

fn check_norm(is_centred: bool, reduction: Reduction, n: usize, flags: u32, n_sets: usize) {
    let (n_rows, n_groups) = (3, 4);
    let mut random = Random::new(n as u64);
    let x: Vec<f32> = random.floats(1 + n_rows * (n_groups * n + 3)).iter().map(|x| 3.0 * x + 0.5).collect();
    let n_weights = n * n_sets.max(1);
    let (weight, bias) = (random.floats(n_weights), random.floats(n_weights));
    let params = NormParams {
        n: n as u32,
        x_offset: 1,
        x_stride: (n_groups * n + 3) as u32,
        y_offset: 2,
        y_stride: (n_groups * n + 1) as u32,
        eps: 1e-5,
        count: 1,
        flags,
        n_sets: n_sets as u32,
    };
    let y = vec![0.0f32; 2 + n_rows * (n_groups * n + 1)];
    let dispatch = Dispatch {
        kernel: Kernel::Norm { is_centred, reduction },
        params: params.words(),
        extent: Extent { n: n_groups as u32, rows: n_rows as u32, slots: 1 },
        buffers: vec![x.clone().into(), weight.clone().into(), bias.clone().into(), y.into()],
        pass: Pass::default(),
    };
    on_all(&dispatch, |name, written| {
        let y = floats(&written[0]);
        for row in 0..n_rows {
            for group in 0..n_groups {
                let x = &x[1 + row * (n_groups * n + 3) + group * n..][..n];
                let y = &y[2 + row * (n_groups * n + 1) + group * n..][..n];
                let set = group % n_sets.max(1) * n;
                for (i, expected) in normalized(x, is_centred, 1e-5).into_iter().enumerate() {
                    let w = if flags & flags::HAS_WEIGHT != 0 { f64::from(weight[set + i]) } else { 1.0 };
                    let b = if flags & flags::HAS_BIAS != 0 { f64::from(bias[set + i]) } else { 0.0 };
                    // The mean of squares has n roundings, of which the root keeps half; the mean, within 3.5, n more,
                    // divided by a deviation of at least 1 where there is more than one value.
                    let size =
                        (expected * w).abs() + if is_centred { 3.5 * w.abs() * 400.0f64.min(n as f64) } else { 0.0 };
                    let bound = (n as f64 + 12.0) * EPSILON * size + EPSILON * b.abs();
                    let error = (f64::from(y[i]) - (expected * w + b)).abs();
                    assert!(error <= bound, "{name}, n {n}: {} instead of {}", y[i], expected * w + b);
                }
            }
        }
    });
}

#[test]
fn norms() {
    for reduction in REDUCTIONS {
        for n in [2, 31, 64, 257, 1000] {
            for flags in [0, flags::HAS_WEIGHT, flags::HAS_WEIGHT | flags::HAS_BIAS] {
                check_norm(false, reduction, n, flags, 0);
            }
            check_norm(true, reduction, n, flags::HAS_WEIGHT | flags::HAS_BIAS, 1);
            check_norm(true, reduction, n, 0, 0);
        }
        for n_sets in [2, 4] {
            check_norm(true, reduction, 64, flags::HAS_WEIGHT | flags::HAS_BIAS, n_sets);
        }
    }
}

#[test]
fn softmax() {
    for reduction in REDUCTIONS {
        for n in [1, 5, 64, 1000] {
            let mut random = Random::new(n as u64);
            let mut x: Vec<f32> = random.floats(2 * (n + 1)).iter().map(|x| 50.0 * x).collect();
            // A score that is masked.
            x[n / 2] = -1e30;
            let params = SoftmaxParams {
                n: n as u32,
                x_stride: n as u32 + 1,
                y_stride: n as u32,
                scale: 0.5,
                count: 1,
                ..SoftmaxParams::default()
            };
            let dispatch = Dispatch {
                kernel: Kernel::Softmax { reduction },
                params: params.words(),
                extent: Extent { n: 1, rows: 2, slots: 1 },
                buffers: vec![x.clone().into(), vec![0.0f32; 2 * n].into()],
                pass: Pass::default(),
            };
            on_all(&dispatch, |name, written| {
                let y = floats(&written[0]);
                for row in 0..2 {
                    let x: Vec<f64> = x[row * (n + 1)..][..n].iter().map(|x| 0.5 * f64::from(*x)).collect();
                    let most = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let total: f64 = x.iter().map(|x| (x - most).exp()).sum();
                    for (got, x) in y[row * n..][..n].iter().zip(&x) {
                        let expected = (x - most).exp() / total;
                        // WGSL's exp: 3 + 2 |x| units in the last place, and the argument's own rounding.
                        let bound = (n as f64 + 16.0 + 3.0 * (x - most).abs().min(100.0)) * EPSILON * expected;
                        let error = (f64::from(*got) - expected).abs();
                        assert!(error <= bound + 1e-37, "{name}, n {n}: {got} instead of {expected}");
                    }
                }
            });
        }
    }
}
