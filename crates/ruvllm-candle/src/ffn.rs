//! The dense feed-forward block.

use candle_core::{Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_kernels::activation::Activation;
use ruvllm_model::MlpSpec;

use crate::weights::{Linear, Weights};

/// `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
pub(crate) struct Mlp {
    gate: Option<Linear>,
    up: Linear,
    down: Linear,
    activation: Activation,
}

impl Mlp {
    pub(crate) fn make(spec: &MlpSpec, weights: &Weights<'_>) -> std::result::Result<Mlp, BackendError> {
        Ok(Mlp {
            gate: spec.gate.as_ref().map(|gate| weights.linear(gate)).transpose()?,
            up: weights.linear(&spec.up)?,
            down: weights.linear(&spec.down)?,
            activation: spec.activation,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let up = self.up.forward(x)?;
        let inner = match &self.gate {
            Some(gate) => (activated(&gate.forward(x)?, self.activation)? * up)?,
            None => activated(&up, self.activation)?,
        };
        self.down.forward(&inner)
    }
}

/// Applies an activation.
pub(crate) fn activated(x: &Tensor, activation: Activation) -> Result<Tensor> {
    match activation {
        Activation::Silu => x.silu(),
        Activation::GeluTanh => x.gelu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::Relu => x.relu(),
        Activation::ReluSqr => x.relu()?.sqr(),
    }
}
