//! Mamba: a selective state space with a state of its own for every channel.

use std::ops::Range;

use ruvllm_cpu::ByColumn;
use ruvllm_kernels::activation::Activation;
use ruvllm_model::STATE_MAX;

use super::buffers::{SsmBuffers, SsmSizes};
use super::causal_conv::{CausalConv, Steps};
use super::scan::{Step, softplus};
use super::{Linear, Norm, Operand, Recurrent};
use crate::kernels::Compute;

/// Steps of single values in a chunk: worth handing to another thread.
const CHUNK_LEN: usize = 4096;

/// Decays that are computed together, if a channel has no more.
const N_DECAYS: usize = 256;

/// `out(silu(z) · (ssm(x') + d·x'))` with `x' = silu(conv(x(row)))`.
pub(crate) struct Mamba {
    pub x: Linear,
    pub z: Linear,
    pub conv: CausalConv,
    pub low: Linear,
    pub b: Linear,
    pub c: Linear,
    /// Over `low`, `b` and `c`, where the model has them.
    pub inner_norms: Option<[Norm; 3]>,
    pub dt: Linear,
    /// `[n_inner, n_state]`
    pub a: Vec<f32>,
    /// `[n_inner]`
    pub d: Vec<f32>,
    pub out: Linear,
    /// Where this layer's state lies in a sequence's: the filter's, then `[n_inner, n_state]`.
    pub state: Range<usize>,
}

/// What the scan of one sequence reads: rows of its steps, one after another.
struct Inputs<'a> {
    n: usize,
    /// `[n, n_inner]`
    x: &'a [f32],
    /// `[n, n_inner]`, before the softplus.
    dt: &'a [f32],
    /// `[n, n_state]`
    b: &'a [f32],
    c: &'a [f32],
}

/// Consecutive channels of one step.
struct Channels<'a> {
    /// Index of the first.
    first: usize,
    /// `[n, n_state]`
    state: &'a mut [f32],
    /// Room for `[n, n_state]`.
    decays: &'a mut [f32],
    /// Becomes the results: `[n]`.
    y: &'a mut [f32],
}

impl Mamba {
    fn n_inner(&self) -> usize {
        self.d.len()
    }

    fn n_state(&self) -> usize {
        self.b.n_out()
    }

    /// Returns the values of state a sequence keeps for such a layer.
    pub(crate) fn state_len(conv: &CausalConv, a: &[f32]) -> usize {
        conv.state_len() + a.len()
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.x, &self.z, &self.low, &self.b, &self.c, &self.dt, &self.out].into_iter()
    }

    /// Returns the matrices that are multiplied together, in order.
    pub(crate) fn groups(&mut self) -> Vec<Vec<&mut Linear>> {
        vec![
            vec![&mut self.x, &mut self.z],
            vec![&mut self.low, &mut self.b, &mut self.c],
            vec![&mut self.dt],
            vec![&mut self.out],
        ]
    }

    pub(crate) fn sizes(&self) -> SsmSizes {
        let (n_inner, n_state) = (self.n_inner(), self.n_state());
        SsmSizes { n_channels: n_inner, n_inner, n_steps: n_inner, n_low: self.low.n_out(), n_state }
    }

    /// Runs the block on a batch.
    pub(crate) fn forward(
        &self,
        compute: &Compute,
        mut operand: Operand<'_>,
        Recurrent { rows, states }: Recurrent<'_>,
        buffers: &mut SsmBuffers,
        out: &mut [f32],
    ) {
        let (n, n_inner, n_state) = (operand.n_rows(), self.n_inner(), self.n_state());
        let (x, mixed) = (&mut buffers.channels[..n * n_inner], &mut buffers.mixed[..n * n_inner]);
        let (z, dt) = (&mut buffers.z[..n * n_inner], &mut buffers.dt[..n * n_inner]);
        let low = &mut buffers.low[..n * self.low.n_out()];
        let (b, c) = (&mut buffers.b[..n * n_state], &mut buffers.c[..n * n_state]);
        operand.apply_many(compute, [(&self.x, &mut *x), (&self.z, &mut *z)]);
        for segment in rows {
            let part = segment.first * n_inner..(segment.first + segment.n) * n_inner;
            let state = &mut states[segment.state_idx][self.state.clone()][..self.conv.state_len()];
            let steps = Steps { values: &x[part.clone()], stride: n_inner, n: segment.n };
            self.conv.forward(compute, steps, state, &mut mixed[part]);
        }
        let mut operand = operand.replaced_by(mixed);
        operand.apply_many(compute, [(&self.low, &mut *low), (&self.b, &mut *b), (&self.c, &mut *c)]);
        if let Some(norms) = &self.inner_norms {
            norms.iter().zip([&mut *low, &mut *b, &mut *c]).for_each(|(norm, rows)| norm.apply_in_place(compute, rows));
        }
        let mut operand = operand.replaced_by(low);
        operand.apply(compute, &self.dt, dt);
        for segment in rows {
            let rows = |width: usize| segment.first * width..(segment.first + segment.n) * width;
            let (wide, narrow) = (rows(n_inner), rows(n_state));
            let (b, c) = (&b[narrow.clone()], &c[narrow]);
            let inputs = Inputs { n: segment.n, x: &mixed[wide.clone()], dt: &dt[wide.clone()], b, c };
            let state = &mut states[segment.state_idx][self.state.clone()][self.conv.state_len()..];
            self.scan(compute, &inputs, state, &mut z[wide.clone()], &mut x[wide]);
        }
        operand.replaced_by(z).apply(compute, &self.out, out);
    }

    /// Runs the state space over the steps of one sequence and leaves its gated results in `z`: `[n, n_inner]`.
    fn scan(&self, compute: &Compute, inputs: &Inputs<'_>, state: &mut [f32], z: &mut [f32], y: &mut [f32]) {
        let (n_inner, n_state) = (self.n_inner(), self.n_state());
        let grain = (CHUNK_LEN / (inputs.n * n_state).max(1)).max(1).next_multiple_of(16);
        let group = (N_DECAYS / n_state).max(1);
        let by_channel = |values, column_len| ByColumn { values, column_len };
        let buffers = [by_channel(state, n_state), by_channel(z, 1), by_channel(y, 1)];
        compute.threads.for_each_columns_mut(n_inner, grain, buffers, |channels, [mut state, mut z, mut y]| {
            let state = state.row_mut(0);
            let mut decays = [0.0; STATE_MAX];
            for step in 0..inputs.n {
                let (z, y) = (z.row_mut(step), y.row_mut(step));
                let groups = state.chunks_mut(group * n_state).zip(y.chunks_mut(group));
                for ((state, y), first) in groups.zip(channels.clone().step_by(group)) {
                    let decays = &mut decays[..state.len()];
                    self.step(compute, inputs, step, Channels { first, state, decays, y });
                }
                compute.kernels.activation.gated(Activation::Silu, z, y);
            }
        });
    }

    /// Runs one step of some channels.
    fn step(&self, compute: &Compute, inputs: &Inputs<'_>, step: usize, channels: Channels<'_>) {
        let Channels { first, state, decays, y } = channels;
        let (n_state, at) = (self.n_state(), step * self.n_inner() + first);
        let (x, dt) = (&inputs.x[at..at + y.len()], &inputs.dt[at..at + y.len()]);
        let (b, c) = (&inputs.b[step * n_state..][..n_state], &inputs.c[step * n_state..][..n_state]);
        let rates = self.a[first * n_state..].chunks_exact(n_state);
        for (((y, dt), decays), rates) in y.iter_mut().zip(dt).zip(decays.chunks_exact_mut(n_state)).zip(rates) {
            let dt = softplus(*dt);
            decays.iter_mut().zip(rates).for_each(|(decay, rate)| *decay = dt * rate);
            // It is the step's length until the step is made.
            *y = dt;
        }
        compute.kernels.softmax.exp(decays);
        let channels = y.iter_mut().zip(x).zip(&self.d[first..]);
        for (((y, x), d), (state, decay)) in
            channels.zip(state.chunks_exact_mut(n_state).zip(decays.chunks_exact(n_state)))
        {
            *y = Step { decay, b, c }.run(state, x * *y) + x * d;
        }
    }
}
