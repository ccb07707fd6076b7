//! RMSNorm and LayerNorm over rows.

use ruvllm_kernels::norm;
use ruvllm_model::NormKind;

use crate::kernels::Compute;

/// A norm with its weights: `[n]`.
#[derive(Clone)]
pub(crate) struct Norm {
    pub kind: NormKind,
    pub weight: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub eps: f32,
}

impl Norm {
    /// Normalises each row of `x` into `out`; both `[n_rows, n]`.
    pub(crate) fn apply(&self, compute: &Compute, x: &[f32], out: &mut [f32]) {
        let n = self.weight.len();
        assert!(x.len() == out.len() && x.len().is_multiple_of(n), "norm: rows of {n} values");
        compute.threads.for_each_row_mut(x.len() / n, 8, [out], |row, [out]| {
            self.apply_row(compute, &x[row * n..(row + 1) * n], out);
        });
    }

    /// Normalises one row `x` into `out`: `[n]`.
    pub(crate) fn apply_row(&self, compute: &Compute, x: &[f32], out: &mut [f32]) {
        let table = compute.kernels.norm;
        match self.kind {
            NormKind::Rms => table.rms_norm(x, &self.weight, self.eps, out),
            NormKind::Layer => table.layer_norm(x, &self.weight, self.bias.as_deref(), self.eps, out),
        }
    }

    /// Normalises one row with a norm, or passes it on where there is none.
    pub(crate) fn apply_any(norm: Option<&Norm>, compute: &Compute, x: &[f32], out: &mut [f32]) {
        match norm {
            Some(norm) => norm.apply_row(compute, x, out),
            None => out.copy_from_slice(x),
        }
    }

    /// Normalises each run of `n` values of `x` in place (one head, or a whole row).
    pub(crate) fn apply_in_place(&self, compute: &Compute, x: &mut [f32]) {
        for part in x.chunks_exact_mut(self.weight.len()) {
            match self.kind {
                NormKind::Rms => compute.kernels.norm.rms_norm_in_place(part, &self.weight, self.eps),
                NormKind::Layer => {
                    compute.kernels.norm.layer_norm_in_place(part, &self.weight, self.bias.as_deref(), self.eps)
                }
            }
        }
    }

    /// Replaces the gradients of what the norm makes of rows `x` by those of the rows: `[n_rows, n]` both.
    pub(crate) fn back(&self, x: &[f32], gradients: &mut [f32]) {
        let n = self.weight.len();
        for (x, gradient) in x.chunks_exact(n).zip(gradients.chunks_exact_mut(n)) {
            norm::back(x, &self.weight, self.eps, self.kind == NormKind::Layer, gradient);
        }
    }
}
