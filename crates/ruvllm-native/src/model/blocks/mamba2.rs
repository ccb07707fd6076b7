//! Mamba 2: a selective state space of heads, whose channels decay together.

use std::ops::Range;

use ruvllm_cpu::ByColumn;
use ruvllm_kernels::activation::Activation;

use super::attention::HeadNorm;
use super::buffers::{SsmBuffers, SsmSizes};
use super::causal_conv::{CausalConv, Steps};
use super::scan::{Step, softplus};
use super::{Linear, Operand, Recurrent};
use crate::kernels::Compute;

/// Steps of single values in a chunk: worth handing to another thread.
const CHUNK_LEN: usize = 4096;

/// `out(norm(silu(z) · (ssm(x') + d·x')))` with `x', b, c = silu(conv(xbc(row)))`.
pub(crate) struct Mamba2 {
    pub z: Linear,
    pub xbc: Linear,
    pub dt: Linear,
    pub conv: CausalConv,
    /// `[n_heads]` each.
    pub dt_bias: Vec<f32>,
    pub a: Vec<f32>,
    pub d: Vec<f32>,
    pub norm: Option<HeadNorm>,
    pub out: Linear,
    pub n_groups: usize,
    pub n_state: usize,
    /// Where this layer's state lies in a sequence's: the filter's, then `[n_inner, n_state]`.
    pub state: Range<usize>,
}

/// What the scan of one sequence reads: rows of its steps, one after another.
struct Inputs<'a> {
    n: usize,
    /// `[n, n_channels]`: the channels, then `b` and `c` of every group.
    xbc: &'a [f32],
    /// `[n, n_heads]`, before bias and softplus.
    dt: &'a [f32],
}

impl Mamba2 {
    fn n_inner(&self) -> usize {
        self.z.n_out()
    }

    fn n_heads(&self) -> usize {
        self.a.len()
    }

    /// Returns the values of state a sequence keeps for such a layer.
    pub(crate) fn state_len(conv: &CausalConv, n_inner: usize, n_state: usize) -> usize {
        conv.state_len() + n_inner * n_state
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.z, &self.xbc, &self.dt, &self.out].into_iter()
    }

    /// Returns the matrices that are multiplied together, in order.
    pub(crate) fn groups(&mut self) -> Vec<Vec<&mut Linear>> {
        vec![vec![&mut self.z, &mut self.xbc, &mut self.dt], vec![&mut self.out]]
    }

    pub(crate) fn sizes(&self) -> SsmSizes {
        let n_channels = self.conv.n_channels();
        SsmSizes { n_channels, n_inner: self.n_inner(), n_steps: self.n_heads(), n_low: 0, n_state: 0 }
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
        let (n, n_inner, n_channels) = (operand.n_rows(), self.n_inner(), self.conv.n_channels());
        let (xbc, mixed) = (&mut buffers.channels[..n * n_channels], &mut buffers.mixed[..n * n_channels]);
        let (z, dt) = (&mut buffers.z[..n * n_inner], &mut buffers.dt[..n * self.n_heads()]);
        operand.apply_many(compute, [(&self.z, &mut *z), (&self.xbc, &mut *xbc), (&self.dt, &mut *dt)]);
        for segment in rows {
            let part = |width: usize| segment.first * width..(segment.first + segment.n) * width;
            let state = &mut states[segment.state_idx][self.state.clone()];
            let (inputs, state) = state.split_at_mut(self.conv.state_len());
            let steps = Steps { values: &xbc[part(n_channels)], stride: n_channels, n: segment.n };
            self.conv.forward(compute, steps, inputs, &mut mixed[part(n_channels)]);
            let inputs = Inputs { n: segment.n, xbc: &mixed[part(n_channels)], dt: &dt[part(self.n_heads())] };
            // What was filtered is read no more, and its place takes the results.
            self.scan(compute, &inputs, state, &mut z[part(n_inner)], &mut xbc[part(n_inner)]);
        }
        if let Some(norm) = &self.norm {
            z.chunks_exact_mut(n_inner).for_each(|row| norm.apply_in_place(compute, row));
        }
        operand.replaced_by(z).apply(compute, &self.out, out);
    }

    /// Runs the state space over the steps of one sequence and leaves its gated results in `z`: `[n, n_inner]`.
    fn scan(&self, compute: &Compute, inputs: &Inputs<'_>, state: &mut [f32], z: &mut [f32], y: &mut [f32]) {
        let (n_inner, n_heads, n_state) = (self.n_inner(), self.n_heads(), self.n_state);
        let head_dim = n_inner / n_heads;
        let grain = (CHUNK_LEN / (inputs.n * head_dim * n_state).max(1)).max(1);
        let by_head = |values, column_len| ByColumn { values, column_len };
        let buffers = [by_head(state, head_dim * n_state), by_head(z, head_dim), by_head(y, head_dim)];
        compute.threads.for_each_columns_mut(n_heads, grain, buffers, |heads, [mut state, mut z, mut y]| {
            let states = state.row_mut(0).chunks_exact_mut(head_dim * n_state);
            for (i, (head, state)) in heads.zip(states).enumerate() {
                let channels = i * head_dim..(i + 1) * head_dim;
                for step in 0..inputs.n {
                    let (z, y) = (&mut z.row_mut(step)[channels.clone()], &mut y.row_mut(step)[channels.clone()]);
                    self.step(inputs, step, head, state, y);
                    compute.kernels.activation.gated(Activation::Silu, z, y);
                }
            }
        });
    }

    /// Runs one step of one head: `state`: `[head_dim, n_state]`, `y`: `[head_dim]`.
    fn step(&self, inputs: &Inputs<'_>, step: usize, head: usize, state: &mut [f32], y: &mut [f32]) {
        let (n_heads, n_state, n_channels) = (self.n_heads(), self.n_state, self.conv.n_channels());
        let group = head / (n_heads / self.n_groups);
        let row = &inputs.xbc[step * n_channels..(step + 1) * n_channels];
        let (x, bc) = (&row[head * y.len()..(head + 1) * y.len()], &row[self.n_inner()..]);
        let (b, c) = (&bc[group * n_state..][..n_state], &bc[(self.n_groups + group) * n_state..][..n_state]);
        let dt = softplus(inputs.dt[step * n_heads + head] + self.dt_bias[head]);
        let decay = (dt * self.a[head]).exp();
        for ((y, x), state) in y.iter_mut().zip(x).zip(state.chunks_exact_mut(n_state)) {
            *y = Step { decay, b, c }.run(state, x * dt) + x * self.d[head];
        }
    }
}
