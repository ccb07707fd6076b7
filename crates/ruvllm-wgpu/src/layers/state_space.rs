//! Selective state spaces: Mamba, whose channels decay by themselves, and Mamba 2, whose channels decay by heads.

use ruvllm_backend::BackendError;
use ruvllm_gpu::GpuBuffer;
use ruvllm_kernels::activation::Activation;
use ruvllm_model::{ConvSpec, Mamba2Spec, MambaSpec};

use super::{LayerCache, LayerSteps};
use crate::cache_shape::conv_state;
use crate::steps::{Function, Gated, RecurrentConv, Scan, Target};
use crate::weights::{Linear, Norm, Weights};

/// A convolution over channels, with its last inputs as state.
struct Conv {
    taps: GpuBuffer,
    bias: Option<GpuBuffer>,
    n_channels: usize,
    n_taps: usize,
    /// Values of its state.
    n_state: usize,
}

/// `out(silu(z) · (ssm(x') + d·x'))` with `x' = silu(conv(x(row)))`.
pub(super) struct Mamba {
    x: Linear,
    z: Linear,
    conv: Conv,
    low: Linear,
    b: Linear,
    c: Linear,
    /// Over `low`, and over `b` and `c`.
    inner_norms: Option<[Norm; 2]>,
    dt: Linear,
    /// Rates of decay, `[n_state, n_inner]`, and shares that pass by the state, `[n_inner]`.
    weights: GpuBuffer,
    out: Linear,
}

/// `out(norm(silu(z) · (ssm(x') + d·x')))` with `x', b, c = silu(conv(xbc(row)))`.
pub(super) struct Mamba2 {
    z: Linear,
    xbc: Linear,
    dt: Linear,
    conv: Conv,
    /// By head: rates of decay, shares that pass by the state, addends of `dt`.
    weights: GpuBuffer,
    norm: Option<Norm>,
    out: Linear,
    n_heads: usize,
    n_groups: usize,
    n_state: usize,
}

impl Conv {
    fn upload(spec: &ConvSpec, weights: &Weights<'_>) -> Result<Conv, BackendError> {
        Ok(Conv {
            taps: weights.vector(&spec.taps)?,
            bias: spec.bias.as_ref().map(|bias| weights.vector(bias)).transpose()?,
            n_channels: spec.taps.n_rows(),
            n_taps: spec.taps.n_cols,
            n_state: conv_state(spec),
        })
    }
}

impl Mamba {
    pub(super) fn upload(spec: &MambaSpec, weights: &Weights<'_>) -> Result<Mamba, BackendError> {
        let (rates, shares, n_state) = (weights.values(&spec.a)?, weights.values(&spec.d)?, spec.a.n_cols);
        let of_state = |s: usize| rates.iter().skip(s).step_by(n_state).copied();
        let all: Vec<f32> = (0..n_state).flat_map(of_state).chain(shares).collect();
        let norms = |eps: f32| {
            let norm = |width: usize| weights.plain_norm(width, eps);
            Ok::<_, BackendError>([norm(spec.low.n_out())?, norm(n_state)?])
        };
        Ok(Mamba {
            x: weights.linear(&spec.x)?,
            z: weights.linear(&spec.z)?,
            conv: Conv::upload(&spec.conv, weights)?,
            low: weights.linear(&spec.low)?,
            b: weights.linear(&spec.b)?,
            c: weights.linear(&spec.c)?,
            inner_norms: spec.inner_eps.map(norms).transpose()?,
            dt: weights.linear(&spec.dt)?,
            weights: weights.floats("weights of a state space", &all)?,
            out: weights.linear(&spec.out)?,
        })
    }
}

impl Mamba2 {
    pub(super) fn upload(spec: &Mamba2Spec, weights: &Weights<'_>) -> Result<Mamba2, BackendError> {
        let values = [&spec.a, &spec.d, &spec.dt_bias].map(|rows| weights.values(rows));
        let all = values.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
        Ok(Mamba2 {
            z: weights.linear(&spec.z)?,
            xbc: weights.linear(&spec.xbc)?,
            dt: weights.linear(&spec.dt)?,
            conv: Conv::upload(&spec.conv, weights)?,
            weights: weights.floats("weights of a state space", &all)?,
            norm: weights.norm_if_any(spec.norm.as_ref())?,
            out: weights.linear(&spec.out)?,
            n_heads: spec.n_heads,
            n_groups: spec.n_groups,
            n_state: spec.n_state,
        })
    }
}

impl<'a> LayerSteps<'a> {
    pub(super) fn mamba(&mut self, own: &'a Mamba, cache: &'a LayerCache, source: &'a GpuBuffer, to: Target<'a>) {
        let (ssm, n_inner, n_state) = (&self.on.ssm, own.x.matrix.n_rows, own.b.matrix.n_rows);
        let (mut low, mut bc) = (&ssm.low[0], &ssm.bc[0]);
        let (n_low, low_stride) = (own.low.matrix.n_rows, own.low.matrix.n_rows.next_multiple_of(4));
        self.list.linear(&own.x, source, Target::write(&ssm.channels));
        self.list.linear(&own.z, source, Target::write(&ssm.z));
        self.convolve(&own.conv, cache);
        self.list.linear(&own.low, &ssm.mixed, Target::part(low, 0, low_stride));
        self.list.linear(&own.b, &ssm.mixed, Target::part(bc, 0, 2 * n_state));
        self.list.linear(&own.c, &ssm.mixed, Target::part(bc, n_state, 2 * n_state));
        if let Some([of_low, of_bc]) = &own.inner_norms {
            self.list.norm_padded(of_low, [low, &ssm.low[1]], n_low, low_stride);
            self.list.norm(of_bc, bc, &ssm.bc[1], 2 * n_state);
            (low, bc) = (&ssm.low[1], &ssm.bc[1]);
        }
        self.list.linear(&own.dt, low, Target::write(&ssm.dt));
        self.list.scan(Scan {
            has_heads: false,
            x: &ssm.mixed,
            x_stride: n_inner,
            dt: &ssm.dt,
            bc,
            b_offset: 0,
            c_offset: n_state,
            bc_stride: 2 * n_state,
            weights: &own.weights,
            state: &cache.state,
            state_offset: own.conv.n_state,
            state_len: cache.shape.n_state,
            y: &ssm.y,
            n: n_inner,
            n_state,
            n_heads: n_inner,
            n_groups: 1,
        });
        self.gate(n_inner);
        self.list.linear(&own.out, &ssm.channels, to);
    }

    pub(super) fn mamba2(&mut self, own: &'a Mamba2, cache: &'a LayerCache, source: &'a GpuBuffer, to: Target<'a>) {
        let (ssm, n_inner, n_channels) = (&self.on.ssm, own.z.matrix.n_rows, own.xbc.matrix.n_rows);
        self.list.linear(&own.z, source, Target::write(&ssm.z));
        self.list.linear(&own.xbc, source, Target::write(&ssm.channels));
        self.list.linear(&own.dt, source, Target::write(&ssm.dt));
        self.convolve(&own.conv, cache);
        self.list.scan(Scan {
            has_heads: true,
            x: &ssm.mixed,
            x_stride: n_channels,
            dt: &ssm.dt,
            bc: &ssm.mixed,
            b_offset: n_inner,
            c_offset: n_inner + own.n_groups * own.n_state,
            bc_stride: n_channels,
            weights: &own.weights,
            state: &cache.state,
            state_offset: own.conv.n_state,
            state_len: cache.shape.n_state,
            y: &ssm.y,
            n: n_inner,
            n_state: own.n_state,
            n_heads: own.n_heads,
            n_groups: own.n_groups,
        });
        self.gate(n_inner);
        let mut mixed = &ssm.channels;
        if let Some(norm) = &own.norm {
            self.list.norm(norm, mixed, &ssm.y, n_inner);
            mixed = &ssm.y;
        }
        self.list.linear(&own.out, mixed, to);
    }

    /// Adds the convolution of the channels.
    fn convolve(&mut self, conv: &'a Conv, cache: &'a LayerCache) {
        let ssm = &self.on.ssm;
        self.list.recurrent_conv(RecurrentConv {
            x: &ssm.channels,
            taps: &conv.taps,
            bias: conv.bias.as_ref(),
            state: &cache.state,
            state_len: cache.shape.n_state,
            y: &ssm.mixed,
            n: conv.n_channels,
            n_taps: conv.n_taps,
        });
    }

    /// Adds the gating of what the state space gave; it goes where the channels were.
    fn gate(&mut self, n_inner: usize) {
        let ssm = &self.on.ssm;
        let gated = Gated { a: &ssm.z, b: Some(&ssm.y) };
        self.list.activate(Function::Plain(Activation::Silu), gated, &ssm.channels, n_inner, 1);
    }
}
