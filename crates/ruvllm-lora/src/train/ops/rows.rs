//! What works on rows by themselves: norms, rotation of positions, activations.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor};
use rayon::prelude::*;
use ruvllm_kernels::activation::{self, Activation};
use ruvllm_kernels::rope::{self, RopeStyle};
use ruvllm_kernels::{Isa, norm};

use super::{PIECE, tensor, values, with_values};

/// Calls `f` for every row of `out` with its number, rows shared among the threads.
fn each_row(out: &mut [f32], width: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    let n_rows = (PIECE / width).max(1);
    out.par_chunks_mut(n_rows * width).enumerate().for_each(|(piece, rows)| {
        for (i, row) in rows.chunks_exact_mut(width).enumerate() {
            f(piece * n_rows + i, row);
        }
    });
}

/// A norm's frozen weights.
#[derive(Clone, Debug)]
pub(in crate::train) struct NormWeights {
    /// Whether the mean is taken away first.
    pub is_layer: bool,
    /// Length of a row.
    pub width: usize,
    /// `[n_sets, width]`: row `i` is scaled by set `i % n_sets`.
    pub weight: Vec<f32>,
    /// `[n_sets, width]`
    pub bias: Option<Vec<f32>>,
    pub eps: f32,
}

/// A norm with frozen weights.
pub(in crate::train) struct Norm(pub Arc<NormWeights>);

impl Norm {
    fn set<'a>(&self, all: &'a [f32], row: usize) -> &'a [f32] {
        let width = self.0.width;
        &all[row % (all.len() / width) * width..][..width]
    }
}

impl CustomOp1 for Norm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let mut y = values(x, layout)?.to_vec();
        each_row(&mut y, self.0.width, |row, y| {
            let (mean, by) = norm::moments(y, self.0.eps, self.0.is_layer);
            y.iter_mut().zip(self.set(&self.0.weight, row)).for_each(|(y, w)| *y = (*y - mean) * by * w);
            if let Some(bias) = &self.0.bias {
                y.iter_mut().zip(self.set(bias, row)).for_each(|(y, b)| *y += b);
            }
        });
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let (width, is_layer) = (self.0.width, self.0.is_layer);
        let dx = with_values(x, |x| {
            with_values(grad, |grad| {
                let mut dx = grad.to_vec();
                each_row(&mut dx, width, |row, d| {
                    let x = &x[row * width..][..width];
                    norm::back(x, self.set(&self.0.weight, row), self.0.eps, is_layer, d);
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
                    d.iter_mut().zip(x).zip(y).for_each(|((d, &x), &y)| *d *= self.0.slope(x, y));
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
        let mut d_up = vec![0.0; d_gate.len()];
        with_values(gate, |gate| {
            with_values(up, |up| {
                let values = d_gate.par_chunks_mut(PIECE).zip(d_up.par_chunks_mut(PIECE));
                let pieces = values.zip(gate.par_chunks(PIECE).zip(up.par_chunks(PIECE)));
                pieces.for_each(|((d_gate, d_up), (gate, up))| {
                    table.gated_back(self.0, gate, up, d_gate, d_up);
                });
            })
        })??;
        Ok((Some(tensor(d_gate, gate.shape())?), Some(tensor(d_up, up.shape())?)))
    }
}
