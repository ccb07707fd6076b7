//! The gated short convolution of LFM2: a causal filter of a few taps between two gates.

use std::ops::Range;

use super::buffers::ShortConvBuffers;
use super::causal_conv::{CausalConv, Steps};
use super::{Linear, Operand, Recurrent};
use crate::kernels::Compute;

/// `out(c · conv(b · x))` with `(b, c, x) = in(row)`.
pub(crate) struct ShortConv {
    pub in_proj: Linear,
    pub out_proj: Linear,
    pub conv: CausalConv,
    /// Where this layer's state lies in a sequence's.
    pub state: Range<usize>,
}

impl ShortConv {
    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.in_proj, &self.out_proj].into_iter()
    }

    /// Runs the block on a batch.
    pub(crate) fn forward(
        &self,
        compute: &Compute,
        mut operand: Operand<'_>,
        Recurrent { rows, states }: Recurrent<'_>,
        buffers: &mut ShortConvBuffers,
        out: &mut [f32],
    ) {
        let (n, n_embd) = (operand.n_rows(), self.conv.n_channels());
        let bcx = &mut buffers.bcx[..n * 3 * n_embd];
        let mixed = &mut buffers.mixed[..n * n_embd];
        operand.apply(compute, &self.in_proj, bcx);
        for row in bcx.chunks_exact_mut(3 * n_embd) {
            let (b, rest) = row.split_at_mut(n_embd);
            rest[n_embd..].iter_mut().zip(b).for_each(|(x, b)| *x *= *b);
        }
        for segment in rows {
            let values = &bcx[(3 * segment.first + 2) * n_embd..];
            let state = &mut states[segment.state_idx][self.state.clone()];
            let mixed = &mut mixed[segment.first * n_embd..(segment.first + segment.n) * n_embd];
            self.conv.forward(compute, Steps { values, stride: 3 * n_embd, n: segment.n }, state, mixed);
        }
        for (row, mixed) in bcx.chunks_exact(3 * n_embd).zip(mixed.chunks_exact_mut(n_embd)) {
            mixed.iter_mut().zip(&row[n_embd..2 * n_embd]).for_each(|(y, c)| *y *= *c);
        }
        operand.replaced_by(mixed).apply(compute, &self.out_proj, out);
    }
}
