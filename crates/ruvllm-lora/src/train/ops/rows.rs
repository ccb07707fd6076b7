//! What works on rows by themselves: norms, rotation of positions, activations.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use ruvllm_kernels::Isa;
use ruvllm_kernels::activation::{self, Activation};
use ruvllm_kernels::rope::{self, RopeStyle};

use super::{PIECE, tensor, values, with_values};
use crate::train::NormSpec;

/// Calls `f` for every row of `out` with its number, rows shared among the threads.
fn each_row(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let n_rows = (PIECE / width).max(1);
    out.par_chunks_mut(n_rows * width).enumerate().for_each(|(piece, rows)| {
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            f(piece * n_rows + i, row);
        }
    });
}

/// A norm with frozen weights.
pub(in crate::train) struct Norm(pub Arc<NormSpec>);

impl Norm {
    fn set<'a>(&self, all: &'a [f32], row: usize) -> &'a [f32] {
        let width = self.0.width;
        &all[row % (all.len() / width) * width..][..width]
    }

    /// Returns mean (0 for RMSNorm) and inverse deviation of a row.
    fn moments(&self, x: &[f32]) -> (f32, f32) {
        let n = x.len() as f64;
        let sum: f64 = x.iter().map(|&x| f64::from(x)).sum();
        let mean = if self.0.is_layer { sum / n } else { 0.0 };
        let square: f64 = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
        (mean as f32, (1.0 / (square / n + f64::from(self.0.eps)).sqrt()) as f32)
    }
}

impl CustomOp1 for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = values(x, layout)?.to_vec();
        each_row(&mut y, self.0.width, |row, y| {
            let (mean, by) = self.moments(y);
            y.iter_mut().zip(self.set(&self.0.weight, row)).for_each(|(y, w)| *y = (*y - mean) * by * w);
            if let Some(bias) = &self.0.bias {
                y.iter_mut().zip(self.set(bias, row)).for_each(|(y, b)| *y += b);
            }
        });
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (width, is_layer) = (self.0.width, self.0.is_layer);
        // With n the normed row and g the gradient times the weights: (g - [mean of g] - n·mean(g·n)) / deviation.
        let dx = with_values(x, |x| {
            with_values(grad, |grad| {
                let mut dx = grad.to_vec();
                each_row(&mut dx, width, |row, d| {
                    let x = &x[row * width..][..width];
                    let (mean, by) = self.moments(x);
                    d.iter_mut().zip(self.set(&self.0.weight, row)).for_each(|(d, w)| *d *= w);
                    let dot: f64 = d.iter().zip(x).map(|(&d, &x)| f64::from(d) * f64::from((x - mean) * by)).sum();
                    let sum: f64 = if is_layer { d.iter().map(|&d| f64::from(d)).sum() } else { 0.0 };
                    let (dot, sum) = ((dot / width as f64) as f32, (sum / width as f64) as f32);
                    d.iter_mut().zip(x).for_each(|(d, x)| *d = by * (*d - sum - (x - mean) * by * dot));
                });
                dx
            })
        })??;
        tensor(dx, x.shape()).map(Some)
    }
}

/// Turns the heads of every row by its position's angles.
#[derive(Clone)]
pub(in crate::train) struct Rotate {
    pub style: RopeStyle,
    pub head_dim: usize,
    /// `[n, n_rot/2]`
    pub cos: Arc<[f32]>,
    /// `[n, n_rot/2]`
    pub sin: Arc<[f32]>,
}

impl Rotate {
    fn turn(&self, rows: &mut [f32], width: usize) {
        let n_half = self.cos.len() / (rows.len() / width);
        let table = rope::pick(Isa::best());
        each_row(rows, width, |row, heads| {
            let part = row * n_half..(row + 1) * n_half;
            table.rotate(self.style, heads, self.head_dim, &self.cos[part.clone()], &self.sin[part]);
        });
    }
}

impl CustomOp1 for Rotate {
    fn name(&self) -> &'static str {
        "rotate"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = values(x, layout)?.to_vec();
        self.turn(&mut y, layout.shape().dims2()?.1);
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let mut dx = with_values(grad, <[f32]>::to_vec)?;
        // The transpose of a rotation is the rotation back.
        let back = Rotate { sin: self.sin.iter().map(|x| -x).collect(), ..self.clone() };
        back.turn(&mut dx, x.dims2()?.1);
        tensor(dx, x.shape()).map(Some)
    }
}

/// `act(x)`
pub(in crate::train) struct Activate(pub Activation);

impl CustomOp1 for Activate {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = values(x, layout)?.to_vec();
        let table = activation::pick(Isa::best());
        y.par_chunks_mut(PIECE).for_each(|piece| table.apply(self.0, piece));
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let mut dx = with_values(grad, <[f32]>::to_vec)?;
        with_values(x, |x| {
            with_values(y, |y| {
                let pieces = dx.par_chunks_mut(PIECE).zip(x.par_chunks(PIECE)).zip(y.par_chunks(PIECE));
                pieces.for_each(|((d, x), y)| {
                    d.iter_mut().zip(x).zip(y).for_each(|((d, &x), &y)| *d *= slope(self.0, x, y));
                });
            })
        })??;
        tensor(dx, x.shape()).map(Some)
    }
}

/// `act(gate) · up`
pub(in crate::train) struct Gate(pub Activation);

impl CustomOp2 for Gate {
    fn name(&self) -> &'static str {
        "gated-activation"
    }

    fn cpu_fwd(
        &self,
        gate: &CpuStorage,
        layout: &Layout,
        up: &CpuStorage,
        up_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (mut y, up) = (values(gate, layout)?.to_vec(), values(up, up_layout)?);
        let table = activation::pick(Isa::best());
        y.par_chunks_mut(PIECE).zip(up.par_chunks(PIECE)).for_each(|(y, up)| table.gated(self.0, y, up));
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, gate: &Tensor, up: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let table = activation::pick(Isa::best());
        let mut d_gate = with_values(grad, <[f32]>::to_vec)?;
        let mut d_up = with_values(gate, <[f32]>::to_vec)?;
        with_values(gate, |gate| {
            with_values(up, |up| {
                let values = d_gate.par_chunks_mut(PIECE).zip(d_up.par_chunks_mut(PIECE));
                let pieces = values.zip(gate.par_chunks(PIECE).zip(up.par_chunks(PIECE)));
                pieces.for_each(|((d_gate, d_up), (gate, up))| {
                    table.apply(self.0, d_up);
                    let rows = d_gate.iter_mut().zip(d_up).zip(gate.iter().zip(up));
                    for ((d_gate, d_up), (&gate, &up)) in rows {
                        let (grad, y) = (*d_gate, *d_up);
                        *d_gate = grad * up * slope(self.0, gate, y);
                        *d_up = grad * y;
                    }
                });
            })
        })??;
        Ok((Some(tensor(d_gate, gate.shape())?), Some(tensor(d_up, up.shape())?)))
    }
}

/// The derivative of an activation at `x`, whose value there is `y`.
fn slope(activation: Activation, x: f32, y: f32) -> f32 {
    match activation {
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
