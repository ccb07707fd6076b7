//! Steps of layers whose sequences have a recurrent state.

use ruvllm_gpu::GpuBuffer;
use ruvllm_shaders::{CausalConvParams, Kernel, ScanParams, flags};

use super::StepList;

/// A convolution of channels, whose last inputs are kept as state.
pub(crate) struct RecurrentConv<'a> {
    pub x: &'a GpuBuffer,
    /// `[n, n_taps]`
    pub taps: &'a GpuBuffer,
    pub bias: Option<&'a GpuBuffer>,
    /// State of all sequences, which begins with the inputs.
    pub state: &'a GpuBuffer,
    /// Values of the state of a sequence.
    pub state_len: usize,
    pub y: &'a GpuBuffer,
    pub n: usize,
    pub n_taps: usize,
}

/// The recurrence of a state space.
pub(crate) struct Scan<'a> {
    pub has_heads: bool,
    pub x: &'a GpuBuffer,
    pub x_stride: usize,
    pub dt: &'a GpuBuffer,
    pub bc: &'a GpuBuffer,
    pub b_offset: usize,
    pub c_offset: usize,
    pub bc_stride: usize,
    pub weights: &'a GpuBuffer,
    /// State of all sequences.
    pub state: &'a GpuBuffer,
    /// Start of the channels in the state of a sequence, and its values.
    pub state_offset: usize,
    pub state_len: usize,
    pub y: &'a GpuBuffer,
    pub n: usize,
    pub n_state: usize,
    pub n_heads: usize,
    pub n_groups: usize,
}

impl<'a> StepList<'a> {
    /// Adds a convolution with its activation.
    pub(crate) fn recurrent_conv(&mut self, conv: RecurrentConv<'a>) {
        let RecurrentConv { x, taps, bias, state, state_len, y, n, n_taps } = conv;
        let params = CausalConvParams {
            n: n as u32,
            n_taps: n_taps as u32,
            x_stride: n as u32,
            y_stride: n as u32,
            state_stride: state_len as u32,
            count: self.count as u32,
            flags: if bias.is_some() { flags::HAS_BIAS } else { 0 },
            ..CausalConvParams::default()
        };
        self.push(Kernel::CausalConv, params.words(), vec![x, taps, bias.unwrap_or(self.none), state, y], n);
    }

    /// Adds the recurrence of a state space.
    pub(crate) fn scan(&mut self, scan: Scan<'a>) {
        let params = ScanParams {
            n: scan.n as u32,
            n_state: scan.n_state as u32,
            head_dim: (scan.n / scan.n_heads) as u32,
            group_heads: (scan.n_heads / scan.n_groups) as u32,
            x_stride: scan.x_stride as u32,
            dt_stride: scan.n_heads as u32,
            b_offset: scan.b_offset as u32,
            c_offset: scan.c_offset as u32,
            bc_stride: scan.bc_stride as u32,
            y_stride: scan.n as u32,
            state_offset: scan.state_offset as u32,
            state_stride: scan.state_len as u32,
            count: self.count as u32,
        };
        let kernel = Kernel::Scan { has_heads: scan.has_heads };
        let buffers = vec![scan.x, scan.dt, scan.bc, scan.weights, scan.state, scan.y];
        self.push(kernel, params.words(), buffers, scan.n);
    }
}
