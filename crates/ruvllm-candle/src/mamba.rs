//! Selective state spaces, a step after the other: Mamba and Mamba 2.

use candle_core::{D, Result, Tensor};
use ruvllm_backend::BackendError;
use ruvllm_model::{Mamba2Spec, MambaSpec};

use crate::conv::Conv;
use crate::weights::{Linear, Norm, Weights};

/// State of a sequence in a layer: the filter's last inputs, and the state of every channel.
#[derive(Clone, Default)]
pub(crate) struct SsmState {
    inputs: Option<Tensor>,
    channels: Option<Tensor>,
}

/// A state space with a state of its own for every channel.
pub(crate) struct Mamba {
    x: Linear,
    z: Linear,
    conv: Conv,
    low: Linear,
    b: Linear,
    c: Linear,
    inner_eps: Option<f64>,
    dt: Linear,
    /// `[n_inner, n_state]`
    a: Tensor,
    /// `[n_inner]`
    d: Tensor,
    out: Linear,
}

impl Mamba {
    pub(crate) fn make(spec: &MambaSpec, weights: &Weights<'_>) -> std::result::Result<Mamba, BackendError> {
        Ok(Mamba {
            x: weights.linear(&spec.x)?,
            z: weights.linear(&spec.z)?,
            conv: Conv::make(&spec.conv, weights)?,
            low: weights.linear(&spec.low)?,
            b: weights.linear(&spec.b)?,
            c: weights.linear(&spec.c)?,
            inner_eps: spec.inner_eps.map(f64::from),
            dt: weights.linear(&spec.dt)?,
            a: weights.matrix(&spec.a)?,
            d: weights.vector(&spec.d)?,
            out: weights.linear(&spec.out)?,
        })
    }

    /// Computes rows `[n, n_embd]`.
    pub(crate) fn forward(&self, rows: &Tensor, state: &mut SsmState) -> Result<Tensor> {
        let x = self.conv.forward(&self.x.forward(rows)?, &mut state.inputs)?.silu()?;
        let inner = |linear: &Linear| {
            let y = linear.forward(&x)?;
            match self.inner_eps {
                Some(eps) => y.broadcast_div(&(y.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?),
                None => Ok(y),
            }
        };
        let dt = softplus(&self.dt.forward(&inner(&self.low)?)?)?;
        let (b, c, written) = (inner(&self.b)?, inner(&self.c)?, (&dt * &x)?);
        let mut channels = match state.channels.take() {
            Some(channels) => channels,
            None => self.a.zeros_like()?,
        };
        let mut read = Vec::new();
        for step in 0..x.dim(0)? {
            let decay = self.a.broadcast_mul(&dt.get(step)?.unsqueeze(1)?)?.exp()?;
            let added = written.get(step)?.unsqueeze(1)?.matmul(&b.narrow(0, step, 1)?)?;
            channels = ((channels * decay)? + added)?;
            read.push(channels.matmul(&c.get(step)?.unsqueeze(1)?)?.squeeze(1)?);
        }
        state.channels = Some(channels);
        let y = (Tensor::stack(&read, 0)? + x.broadcast_mul(&self.d)?)?;
        self.out.forward(&(self.z.forward(rows)?.silu()? * y)?)
    }
}

/// A state space of heads.
pub(crate) struct Mamba2 {
    z: Linear,
    xbc: Linear,
    dt: Linear,
    conv: Conv,
    /// `[n_heads]` each.
    dt_bias: Tensor,
    a: Tensor,
    d: Tensor,
    norm: Option<Norm>,
    out: Linear,
    spec: Mamba2Spec,
}

impl Mamba2 {
    pub(crate) fn make(spec: &Mamba2Spec, weights: &Weights<'_>) -> std::result::Result<Mamba2, BackendError> {
        Ok(Mamba2 {
            z: weights.linear(&spec.z)?,
            xbc: weights.linear(&spec.xbc)?,
            dt: weights.linear(&spec.dt)?,
            conv: Conv::make(&spec.conv, weights)?,
            dt_bias: weights.vector(&spec.dt_bias)?,
            a: weights.vector(&spec.a)?,
            d: weights.vector(&spec.d)?,
            norm: weights.norm(spec.norm.as_ref())?,
            out: weights.linear(&spec.out)?,
            spec: spec.clone(),
        })
    }

    /// Computes rows `[n, n_embd]`.
    pub(crate) fn forward(&self, rows: &Tensor, state: &mut SsmState) -> Result<Tensor> {
        let Mamba2Spec { n_heads, n_groups, n_state, .. } = self.spec;
        let z = self.z.forward(rows)?.silu()?;
        let (n, n_inner) = z.dims2()?;
        let head_dim = n_inner / n_heads;
        let xbc = self.conv.forward(&self.xbc.forward(rows)?, &mut state.inputs)?.silu()?;
        let x = xbc.narrow(1, 0, n_inner)?.reshape((n, n_heads, head_dim))?;
        // Each head has what its group has: `[n, n_heads, n_state]`.
        let of_heads = |at: usize| {
            let part = xbc.narrow(1, n_inner + at * n_groups * n_state, n_groups * n_state)?;
            let shape = (n, n_groups, n_heads / n_groups, n_state);
            part.reshape((n, n_groups, 1, n_state))?.broadcast_as(shape)?.reshape((n, n_heads, n_state))
        };
        let (b, c) = (of_heads(0)?, of_heads(1)?);
        let dt = softplus(&self.dt.forward(rows)?.broadcast_add(&self.dt_bias)?)?;
        let decays = dt.broadcast_mul(&self.a)?.exp()?;
        let written = x.broadcast_mul(&dt.unsqueeze(2)?)?;
        let mut channels = match state.channels.take() {
            Some(channels) => channels,
            None => Tensor::zeros((n_heads, head_dim, n_state), x.dtype(), x.device())?,
        };
        let mut read = Vec::new();
        for step in 0..n {
            let decay = decays.get(step)?.reshape((n_heads, 1, 1))?;
            let added = written.get(step)?.unsqueeze(2)?.matmul(&b.get(step)?.unsqueeze(1)?)?;
            channels = (channels.broadcast_mul(&decay)? + added)?;
            read.push(channels.matmul(&c.get(step)?.unsqueeze(2)?)?.squeeze(2)?);
        }
        state.channels = Some(channels);
        let y = (Tensor::stack(&read, 0)? + x.broadcast_mul(&self.d.unsqueeze(1)?)?)?;
        let mut y = (z * y.reshape((n, n_inner))?)?;
        if let Some(norm) = &self.norm {
            let of_groups = if n_groups == 1 { y } else { y.reshape((n, n_groups, n_inner / n_groups))? };
            y = norm.forward(&of_groups)?.reshape((n, n_inner))?;
        }
        self.out.forward(&y)
    }
}

/// `ln(1 + e^x)` without an overflow.
fn softplus(x: &Tensor) -> Result<Tensor> {
    x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?
}
