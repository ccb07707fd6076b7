//! The gated short convolution of LFM2.

use candle_core::{Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_model::ShortConvSpec;

use crate::conv::Conv;
use crate::weights::{Linear, Weights};

/// `out(c · conv(b · x))` with `(b, c, x) = in(row)`.
pub(crate) struct ShortConv {
    in_proj: Linear,
    out_proj: Linear,
    conv: Conv,
}

impl ShortConv {
    pub(crate) fn make(spec: &ShortConvSpec, weights: &Weights<'_>) -> std::result::Result<ShortConv, BackendError> {
        Ok(ShortConv {
            in_proj: weights.linear(&spec.in_proj)?,
            out_proj: weights.linear(&spec.out_proj)?,
            conv: Conv::of_taps(&spec.taps, weights)?,
        })
    }

    /// Computes rows `[n, n_embd]`; `state` is that of the filter.
    pub(crate) fn forward(&self, x: &Tensor, state: &mut Option<Tensor>) -> Result<Tensor> {
        let n_embd = x.dim(1)?;
        let bcx = self.in_proj.forward(x)?;
        let part = |i: usize| bcx.narrow(1, i * n_embd, n_embd);
        let filtered = self.conv.forward(&(part(0)? * part(2)?)?, state)?;
        self.out_proj.forward(&(part(1)? * filtered)?)
    }
}
