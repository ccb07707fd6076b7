//! Causal convolutions of every channel by itself, whose state is the filter's last inputs.

use candle_core::{Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_model::{ConvSpec, TensorRows};

use crate::weights::Weights;

/// A filter and what is added behind it.
pub(crate) struct Conv {
    /// `[n_taps, n_channels]`, oldest tap first.
    taps: Tensor,
    /// `[n_channels]`
    bias: Option<Tensor>,
}

impl Conv {
    pub(crate) fn make(spec: &ConvSpec, weights: &Weights<'_>) -> std::result::Result<Conv, BackendError> {
        let bias = spec.bias.as_ref().map(|bias| weights.vector(bias)).transpose()?;
        Ok(Conv { bias, ..Conv::of_taps(&spec.taps, weights)? })
    }

    /// Makes a filter of `[n_channels, n_taps]`.
    pub(crate) fn of_taps(taps: &TensorRows, weights: &Weights<'_>) -> std::result::Result<Conv, BackendError> {
        let taps = weights.matrix(taps)?.t().and_then(|taps| taps.contiguous()).map_err(crate::weights::failed)?;
        Ok(Conv { taps, bias: None })
    }

    /// Filters rows `[n, n_channels]`; `state` holds the last inputs: `[n_taps - 1, n_channels]`.
    pub(crate) fn forward(&self, inputs: &Tensor, state: &mut Option<Tensor>) -> Result<Tensor> {
        let ((n, n_channels), n_taps) = (inputs.dims2()?, self.taps.dim(0)?);
        let before = match state.take() {
            Some(state) => state,
            None => Tensor::zeros((n_taps - 1, n_channels), inputs.dtype(), inputs.device())?,
        };
        let inputs = Tensor::cat(&[&before, inputs], 0)?;
        let mut sum = inputs.narrow(0, 0, n)?.broadcast_mul(&self.taps.get(0)?)?;
        for tap in 1..n_taps {
            sum = (sum + inputs.narrow(0, tap, n)?.broadcast_mul(&self.taps.get(tap)?)?)?;
        }
        *state = Some(inputs.narrow(0, n, n_taps - 1)?.contiguous()?);
        match &self.bias {
            Some(bias) => sum.broadcast_add(bias),
            None => Ok(sum),
        }
    }
}
