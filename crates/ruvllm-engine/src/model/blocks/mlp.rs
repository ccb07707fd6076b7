//! The dense feed-forward block: gated (SwiGLU, GeGLU) or plain.

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::team::Shared;

use super::buffers::MlpBuffers;
use super::{Linear, Operand};
use crate::kernels::Compute;

/// `down(act(gate(x)) · up(x))`, or `down(act(up(x)))` without a gate.
pub(crate) struct Mlp {
    pub gate: Option<Linear>,
    pub up: Linear,
    pub down: Linear,
    pub activation: Activation,
}

impl Mlp {
    pub(crate) fn n_ff(&self) -> usize {
        self.up.n_out()
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    /// Returns the matrices that are multiplied together, in order.
    pub(crate) fn groups(&mut self) -> Vec<Vec<&mut Linear>> {
        vec![self.gate.iter_mut().chain([&mut self.up]).collect(), vec![&mut self.down]]
    }

    /// Writes the block's output for the operand's rows to `out`: `[n, n_embd]`.
    pub(crate) fn forward(
        &self,
        compute: &Compute,
        mut operand: Operand<'_>,
        buffers: &mut MlpBuffers,
        out: &mut [f32],
    ) {
        let (n, n_ff) = (operand.n_rows(), self.n_ff());
        let up = &mut buffers.up[..n * n_ff];
        let hidden = match &self.gate {
            Some(gate_weights) => {
                let gate = &mut buffers.gate[..n * n_ff];
                operand.apply_many(compute, [(gate_weights, &mut *gate), (&self.up, &mut *up)]);
                gated(compute, self.activation, gate, up, n_ff);
                &*gate
            }
            None => {
                operand.apply(compute, &self.up, up);
                activate(compute, self.activation, up, n_ff);
                &*up
            }
        };
        operand.replaced_by(hidden).apply(compute, &self.down, out);
    }
}

/// `gate = act(gate)·up`, rows of `n_ff` shared among the team.
pub(super) fn gated(compute: &Compute, activation: Activation, gate: &mut [f32], up: &[f32], n_ff: usize) {
    let table = compute.kernels.activation;
    let (n, shared) = (gate.len() / n_ff, Shared::new(gate));
    compute.team.for_each(n, rows_a_piece(n_ff), &|rows, _| {
        let range = rows.start * n_ff..rows.end * n_ff;
        // SAFETY: pieces are disjoint ranges of rows.
        table.gated(activation, unsafe { shared.slice(range.clone()) }, &up[range]);
    });
}

fn activate(compute: &Compute, activation: Activation, x: &mut [f32], n_ff: usize) {
    let table = compute.kernels.activation;
    let (n, shared) = (x.len() / n_ff, Shared::new(x));
    compute.team.for_each(n, rows_a_piece(n_ff), &|rows, _| {
        // SAFETY: pieces are disjoint ranges of rows.
        table.apply(activation, unsafe { shared.slice(rows.start * n_ff..rows.end * n_ff) });
    });
}

/// Rows that make a piece of work worth handing to another thread (about 16k values).
fn rows_a_piece(n_ff: usize) -> usize {
    (16384 / n_ff.max(1)).max(1)
}
