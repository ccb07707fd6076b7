//! A frozen matrix, alone or with a pair of factors beside it.

use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

use super::{PIECE, product, tensor};

/// `y = W·x + b`, or `y = W·x + b + s·B·(A·x)`. `W` and `b` have no gradient.
#[derive(Debug)]
pub(in crate::train) struct Linear {
    /// `[n_in, n_out]`: the matrix on its side, as a view.
    weight_t: Tensor,
    bias: Option<Vec<f32>>,
    /// Multiplies what the factors add.
    scale: f32,
}

impl Linear {
    /// Takes a matrix of `[n_out, n_in]`.
    pub(in crate::train) fn new(
        weight: Vec<f32>,
        n_out: usize,
        n_in: usize,
        bias: Option<Vec<f32>>,
        scale: f32,
    ) -> Result<Linear> {
        Ok(Linear { weight_t: tensor(weight, (n_out, n_in))?.t()?, bias, scale })
    }

    fn base(&self, x: &CpuStorage, layout: &Layout) -> Result<Vec<f32>> {
        let mut y = product(x, layout, &self.weight_t)?;
        if let Some(bias) = &self.bias {
            let n_rows = (PIECE / bias.len()).max(1);
            y.par_chunks_mut(n_rows * bias.len()).for_each(|rows| {
                for row in rows.chunks_exact_mut(bias.len()) {
                    row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
            });
        }
        Ok(y)
    }

    fn shape(&self, x: &Layout) -> Result<Shape> {
        Ok((x.shape().dims2()?.0, self.weight_t.dims2()?.1).into())
    }
}

/// The layer as an operation on rows `x`: `[n, n_in]`, giving `[n, n_out]`; with three arguments also on `A`: `[rank, n_in]`
/// and `B`: `[n_out, rank]`.
pub(in crate::train) struct Apply(pub Arc<Linear>);

impl CustomOp1 for Apply {
    fn name(&self) -> &'static str {
        "frozen-linear"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.0.base(x, layout)?), self.0.shape(layout)?))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        grad.matmul(&self.0.weight_t.t()?).map(Some)
    }
}

impl CustomOp3 for Apply {
    fn name(&self) -> &'static str {
        "adapted-linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        a: &CpuStorage,
        a_layout: &Layout,
        b: &CpuStorage,
        b_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let mut y = self.0.base(x, x_layout)?;
        let (rank, n_in) = a_layout.shape().dims2()?;
        let (n, n_out) = self.0.shape(x_layout)?.dims2()?;
        let a = tensor(super::values(a, a_layout)?.to_vec(), (rank, n_in))?;
        let t = tensor(product(x, x_layout, &a.t()?)?, (n, rank))?;
        let b = tensor(super::values(b, b_layout)?.to_vec(), (n_out, rank))?;
        let (added, scale) = (t.matmul(&b.t()?)?, self.0.scale);
        super::with_values(&added, |added| {
            let pieces = y.par_chunks_mut(PIECE).zip(added.par_chunks(PIECE));
            pieces.for_each(|(y, added)| y.iter_mut().zip(added).for_each(|(y, d)| *y += scale * d));
        })?;
        Ok((CpuStorage::F32(y), (n, n_out).into()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        a: &Tensor,
        b: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let scale = f64::from(self.0.scale);
        let (is_tracked, x, a, b) = (x.track_op(), x.detach(), a.detach(), b.detach());
        // With g the gradient of y: u = s·Bᵀ·g, ∂/∂x = Wᵀ·g + Aᵀ·u, ∂/∂A = u·xᵀ, ∂/∂B = s·g·(A·x)ᵀ.
        let u = grad.matmul(&b)?.affine(scale, 0.0)?;
        let dx = is_tracked.then(|| grad.matmul(&self.0.weight_t.t()?)? + u.matmul(&a)?).transpose()?;
        let da = u.t()?.matmul(&x)?;
        let db = grad.t()?.matmul(&x.matmul(&a.t()?)?.affine(scale, 0.0)?)?;
        Ok((dx, Some(da), Some(db)))
    }
}
