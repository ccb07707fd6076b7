//! The gated short convolution of LFM2, whose state is the last inputs of its filter.

use candle_core::{Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_model::ShortConvSpec;

use crate::weights::{Linear, Weights};

/// `out(c · conv(b · x))` with `(b, c, x) = in(row)`.
pub(crate) struct ShortConv {
    in_proj: Linear,
    out_proj: Linear,
    /// `[n_taps, n_embd]`, oldest tap first.
    taps: Tensor,
}

impl ShortConv {
    pub(crate) fn make(spec: &ShortConvSpec, weights: &Weights<'_>) -> std::result::Result<ShortConv, BackendError> {
        let taps = weights.table(&spec.taps)?;
        Ok(ShortConv {
            in_proj: weights.linear(&spec.in_proj)?,
            out_proj: weights.linear(&spec.out_proj)?,
            taps: taps.t().and_then(|taps| taps.contiguous()).map_err(crate::weights::failed)?,
        })
    }

    /// Computes rows `[n, n_embd]`; `state` holds the filter's last inputs: `[n_taps - 1, n_embd]`.
    pub(crate) fn forward(&self, x: &Tensor, state: &mut Option<Tensor>) -> Result<Tensor> {
        let (n, n_embd) = x.dims2()?;
        let n_taps = self.taps.dim(0)?;
        let bcx = self.in_proj.forward(x)?;
        let part = |i: usize| bcx.narrow(1, i * n_embd, n_embd);
        let inputs = (part(0)? * part(2)?)?;
        let before = match state.take() {
            Some(state) => state,
            None => Tensor::zeros((n_taps - 1, n_embd), inputs.dtype(), inputs.device())?,
        };
        let inputs = Tensor::cat(&[before, inputs], 0)?;
        let mut sum = inputs.narrow(0, 0, n)?.broadcast_mul(&self.taps.get(0)?)?;
        for tap in 1..n_taps {
            sum = (sum + inputs.narrow(0, tap, n)?.broadcast_mul(&self.taps.get(tap)?)?)?;
        }
        *state = Some(inputs.narrow(0, n, n_taps - 1)?.contiguous()?);
        self.out_proj.forward(&(part(1)? * sum)?)
    }
}
