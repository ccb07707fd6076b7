//! The dense feed-forward block: gated (SwiGLU, GeGLU) or plain.

use ruvllm_kernels::activation::Activation;

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
        let (table, up) = (compute.kernels.activation, &mut buffers.up[..n * n_ff]);
        let mut hidden = match &self.gate {
            Some(gate_weights) => {
                let gate = &mut buffers.gate[..n * n_ff];
                operand.apply_many(compute, [(gate_weights, &mut *gate), (&self.up, &mut *up)]);
                operand.replaced_by_made(compute, gate, &self.down, &|range, gate| {
                    table.gated(self.activation, gate, &up[range]);
                })
            }
            None => {
                operand.apply(compute, &self.up, up);
                operand.replaced_by_made(compute, up, &self.down, &|_, up| table.apply(self.activation, up))
            }
        };
        hidden.apply(compute, &self.down, out);
    }
}
