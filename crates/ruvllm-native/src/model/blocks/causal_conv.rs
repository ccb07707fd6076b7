//! A causal convolution of every channel by itself, a few taps long, whose state is its last inputs.

use std::ops::Range;

use ruvllm_cpu::{ByColumn, ColumnsMut};
use ruvllm_kernels::activation::Activation;

use super::Rows;
use crate::kernels::Compute;

/// Values of a chunk: worth handing to another thread.
const CHUNK_LEN: usize = 2048;

/// A filter, what is added behind it and the activation over that.
pub(crate) struct CausalConv {
    /// `[n_taps, n_channels]`, oldest tap first.
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    activation: Option<Activation>,
    n_channels: usize,
}

/// Rows of a batch, and the recurrent states of its sequences: `states[rows[i].state_idx]` is that of `rows[i]`.
pub(crate) struct Recurrent<'a> {
    pub rows: &'a [Rows],
    pub states: &'a mut [Vec<f32>],
}

/// Inputs of consecutive steps, each `stride` values behind the one before.
#[derive(Clone, Copy)]
pub(crate) struct Steps<'a> {
    /// The first step's inputs and what follows.
    pub values: &'a [f32],
    pub stride: usize,
    /// Number of steps.
    pub n: usize,
}

impl<'a> Steps<'a> {
    /// Returns the inputs of some channels of one step.
    fn inputs(self, step: usize, channels: &Range<usize>) -> &'a [f32] {
        &self.values[step * self.stride..][channels.clone()]
    }
}

impl CausalConv {
    /// Makes a filter of `taps`: `[n_channels, n_taps]`, oldest first.
    pub(crate) fn new(
        taps: &[f32],
        n_taps: usize,
        bias: Option<Vec<f32>>,
        activation: Option<Activation>,
    ) -> CausalConv {
        let n_channels = taps.len() / n_taps;
        let by_tap = (0..n_taps).flat_map(|tap| (0..n_channels).map(move |channel| taps[channel * n_taps + tap]));
        CausalConv { taps: by_tap.collect(), bias, activation, n_channels }
    }

    pub(crate) fn n_channels(&self) -> usize {
        self.n_channels
    }

    fn n_past(&self) -> usize {
        self.taps.len() / self.n_channels - 1
    }

    /// Returns the values of state: the last inputs, `[n_taps - 1, n_channels]`, oldest first.
    pub(crate) fn state_len(&self) -> usize {
        self.n_past() * self.n_channels
    }

    /// Filters the steps of one sequence to `out`, `[n, n_channels]`, and leaves their inputs in `state`.
    pub(crate) fn forward(&self, compute: &Compute, steps: Steps<'_>, state: &mut [f32], out: &mut [f32]) {
        let (n, grain) = (steps.n, (CHUNK_LEN / steps.n.max(1)).max(1).next_multiple_of(64));
        let buffers = [state, out].map(|values| ByColumn { values, column_len: 1 });
        compute.threads.for_each_columns_mut(self.n_channels, grain, buffers, |channels, [mut state, mut out]| {
            for step in 0..n {
                let out = out.row_mut(step);
                self.filter(steps, step, &channels, &state, out);
                if let Some(activation) = self.activation {
                    compute.kernels.activation.apply(activation, out);
                }
            }
            self.keep(steps, &channels, &mut state);
        });
    }

    /// Computes some channels of one step.
    fn filter(
        &self,
        steps: Steps<'_>,
        step: usize,
        channels: &Range<usize>,
        state: &ColumnsMut<'_, f32>,
        out: &mut [f32],
    ) {
        for (tap, taps) in self.taps.chunks_exact(self.n_channels).enumerate() {
            let taps = &taps[channels.clone()];
            // The state's inputs come first.
            let inputs = match (step + tap).checked_sub(self.n_past()) {
                Some(step) => steps.inputs(step, channels),
                None => state.row(step + tap),
            };
            match tap {
                0 => out.iter_mut().zip(inputs).zip(taps).for_each(|((y, x), w)| *y = x * w),
                _ => out.iter_mut().zip(inputs).zip(taps).for_each(|((y, x), w)| *y += x * w),
            }
        }
        if let Some(bias) = &self.bias {
            out.iter_mut().zip(&bias[channels.clone()]).for_each(|(y, b)| *y += b);
        }
    }

    /// Keeps the last inputs of some channels.
    fn keep(&self, steps: Steps<'_>, channels: &Range<usize>, state: &mut ColumnsMut<'_, f32>) {
        for past in 0..self.n_past() {
            match (past + steps.n).checked_sub(self.n_past()) {
                Some(step) => state.row_mut(past).copy_from_slice(steps.inputs(step, channels)),
                None => state.copy_row(past + steps.n, past),
            }
        }
    }
}
