//! A causal convolution of every channel by itself, a few taps long, whose state is its last inputs.

use std::ops::Range;

use ruvllm_kernels::activation::Activation;
use ruvllm_kernels::threads::Shared;

use crate::kernels::Compute;

/// Values that are worth handing to another thread.
const PIECE_LEN: usize = 2048;

/// A filter, what is added behind it and the activation over that.
pub(crate) struct CausalConv {
    /// `[n_taps, n_channels]`, oldest tap first.
    taps: Vec<f32>,
    bias: Option<Vec<f32>>,
    activation: Option<Activation>,
    n_channels: usize,
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
        let (n, grain) = (steps.n, (PIECE_LEN / steps.n.max(1)).max(1).next_multiple_of(64));
        let (state, out) = (Shared::new(state), Shared::new(out));
        compute.threads.for_each(self.n_channels, grain, &|channels, _| {
            for step in 0..n {
                let at = step * self.n_channels;
                // SAFETY: every channel is claimed by one worker.
                let out = unsafe { out.slice(at + channels.start..at + channels.end) };
                self.filter(steps, step, &channels, &state, out);
                if let Some(activation) = self.activation {
                    compute.kernels.activation.apply(activation, out);
                }
            }
            self.keep(steps, &channels, &state);
        });
    }

    /// Computes some channels of one step.
    fn filter(&self, steps: Steps<'_>, step: usize, channels: &Range<usize>, state: &Shared<'_, f32>, out: &mut [f32]) {
        for (tap, taps) in self.taps.chunks_exact(self.n_channels).enumerate() {
            let taps = &taps[channels.clone()];
            // SAFETY: every channel is claimed by one worker, which holds one piece of the state at a time.
            let inputs = unsafe { self.inputs(steps, step + tap, channels, state) };
            match tap {
                0 => out.iter_mut().zip(inputs).zip(taps).for_each(|((y, x), w)| *y = x * w),
                _ => out.iter_mut().zip(inputs).zip(taps).for_each(|((y, x), w)| *y += x * w),
            }
        }
        if let Some(bias) = &self.bias {
            out.iter_mut().zip(&bias[channels.clone()]).for_each(|(y, b)| *y += b);
        }
    }

    /// Returns inputs of some channels by their place, where the state's come first.
    ///
    /// # Safety
    /// Nobody else may have these channels of the state while the result lives.
    unsafe fn inputs<'a>(
        &self,
        steps: Steps<'a>,
        at: usize,
        channels: &Range<usize>,
        state: &'a Shared<'_, f32>,
    ) -> &'a [f32] {
        match at.checked_sub(self.n_past()) {
            Some(step) => &steps.values[step * steps.stride..][channels.clone()],
            None => {
                let first = at * self.n_channels;
                // SAFETY: the caller's promise.
                unsafe { state.slice(first + channels.start..first + channels.end) }
            }
        }
    }

    /// Keeps the last inputs of some channels.
    fn keep(&self, steps: Steps<'_>, channels: &Range<usize>, state: &Shared<'_, f32>) {
        for past in 0..self.n_past() {
            let first = past * self.n_channels;
            // SAFETY: every channel is claimed by one worker, and `steps.n > 0`, so that the two pieces are of different steps.
            let (kept, inputs) = unsafe {
                let kept = state.slice(first + channels.start..first + channels.end);
                (kept, self.inputs(steps, past + steps.n, channels, state))
            };
            kept.copy_from_slice(inputs);
        }
    }
}
