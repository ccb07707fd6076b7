//! Buffers and sizes that operations read and write.

use ruvllm_gpu::GpuBuffer;
use ruvllm_kernels::activation::Activation;

/// Two buffers that an activation reads, the second one where it is gated.
#[derive(Clone, Copy)]
pub(crate) struct Gated<'a> {
    pub a: &'a GpuBuffer,
    pub b: Option<&'a GpuBuffer>,
}

/// Function between two products.
#[derive(Clone, Copy)]
pub(crate) enum Function {
    Plain(Activation),
    /// The gate of gpt-oss.
    Clamped {
        alpha: f32,
        limit: f32,
    },
}

/// Inputs and outputs of the experts of a row.
#[derive(Clone, Copy)]
pub(crate) struct ExpertRows<'a> {
    pub x: &'a GpuBuffer,
    /// Distance of the rows of inputs.
    pub x_stride: usize,
    /// Distance of the inputs of a row's slots; 0 if they share one.
    pub x_slot_stride: usize,
    /// Experts that each row chose; without them a slot goes through that of its number.
    pub experts: Option<&'a GpuBuffer>,
    pub y: &'a GpuBuffer,
    pub n_slots: usize,
}

/// Buffers of attention.
#[derive(Clone, Copy)]
pub(crate) struct AttentionBuffers<'a> {
    pub q: &'a GpuBuffer,
    pub keys: &'a GpuBuffer,
    pub values: &'a GpuBuffer,
    pub sinks: Option<&'a GpuBuffer>,
    /// Sums of splits, if there are several.
    pub splits: &'a GpuBuffer,
    pub y: &'a GpuBuffer,
}

/// Buffers of a short convolution.
#[derive(Clone, Copy)]
pub(crate) struct ConvBuffers<'a> {
    /// Rows of three times the channels.
    pub x: &'a GpuBuffer,
    /// Inputs of earlier tokens, in blocks.
    pub inputs: &'a GpuBuffer,
    pub taps: &'a GpuBuffer,
    pub y: &'a GpuBuffer,
}

/// Heads that are rotated.
#[derive(Clone, Copy)]
pub(crate) struct RotatedHeads {
    pub n_heads: usize,
    pub head_dim: usize,
    /// Values of a head before those that are rotated.
    pub first: usize,
    pub n_pairs: usize,
}

/// Some values of each head of rows.
#[derive(Clone, Copy)]
pub(crate) struct HeadPart<'a> {
    pub rows: &'a GpuBuffer,
    /// First value of the first head's part.
    pub offset: usize,
    /// Distance of the rows.
    pub stride: usize,
    /// Distance of the heads; 0 if they share one.
    pub head_stride: usize,
}
