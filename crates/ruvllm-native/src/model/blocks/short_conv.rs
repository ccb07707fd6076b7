//! The gated short convolution of LFM2: a causal depth-wise filter of a few taps with its state per sequence.

use super::buffers::ShortConvBuffers;
use super::{Linear, Operand, Rows};
use crate::kernels::Compute;

/// `out(c · conv(b · x))` with `(b, c, x) = in(row)`.
pub(crate) struct ShortConv {
    pub in_proj: Linear,
    pub out_proj: Linear,
    /// `[n_embd, n_taps]`, oldest tap first.
    pub taps: Vec<f32>,
    pub n_taps: usize,
    /// Which state slot of a sequence this layer uses.
    pub state_idx: usize,
}

impl ShortConv {
    /// Returns the values of state a sequence keeps for this layer: the last `n_taps - 1` filter inputs.
    pub(crate) fn state_len(n_embd: usize, n_taps: usize) -> usize {
        n_embd * (n_taps - 1)
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        [&self.in_proj, &self.out_proj].into_iter()
    }

    /// Runs the block on a batch; `states[rows[i].state_idx]` is the state of the sequence of `rows[i]`.
    pub(crate) fn forward(
        &self,
        compute: &Compute,
        mut operand: Operand<'_>,
        (rows, states): (&[Rows], &mut [Vec<f32>]),
        buffers: &mut ShortConvBuffers,
        out: &mut [f32],
    ) {
        let (n, n_embd) = (operand.n_rows(), self.in_proj.n_out() / 3);
        let bcx = &mut buffers.bcx[..n * 3 * n_embd];
        let mixed = &mut buffers.mixed[..n * n_embd];
        operand.apply(compute, &self.in_proj, bcx);
        for segment in rows {
            let state = &mut states[segment.state_idx][self.state_range()];
            for row in segment.first..segment.first + segment.n {
                let (b, rest) = bcx[row * 3 * n_embd..(row + 1) * 3 * n_embd].split_at(n_embd);
                let (c, x) = rest.split_at(n_embd);
                self.filter_row(b, c, x, state, &mut mixed[row * n_embd..(row + 1) * n_embd]);
            }
        }
        operand.replaced_by(mixed).apply(compute, &self.out_proj, out);
    }

    /// Returns where this layer's state lies in a sequence's state vector.
    fn state_range(&self) -> std::ops::Range<usize> {
        let len = ShortConv::state_len(self.in_proj.n_out() / 3, self.n_taps);
        self.state_idx * len..(self.state_idx + 1) * len
    }

    /// One time step; `state`: `[n_embd, n_taps - 1]`, oldest first.
    fn filter_row(&self, b: &[f32], c: &[f32], x: &[f32], state: &mut [f32], out: &mut [f32]) {
        let past = self.n_taps - 1;
        for d in 0..out.len() {
            let taps = &self.taps[d * self.n_taps..(d + 1) * self.n_taps];
            let state = &mut state[d * past..(d + 1) * past];
            let input = b[d] * x[d];
            let history: f32 = state.iter().zip(taps).map(|(s, w)| s * w).sum();
            out[d] = c[d] * (history + input * taps[past]);
            state.copy_within(1.., 0);
            state[past - 1] = input;
        }
    }
}
