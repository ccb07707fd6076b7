//! Parameters of layers whose sequences have a recurrent state on the device.

use super::{RECORD_WORDS, Word};

params! {
    /// Parameters of a causal convolution of channels, whose last inputs are kept as state.
    CausalConvParams {
        /// Channels.
        n: u32,
        /// Taps of a channel.
        n_taps: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Start of the last inputs in the state of a sequence.
        state_offset: u32,
        /// Distance of the states of sequences.
        state_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_BIAS`.
        flags: u32,
    }

    /// Parameters of the recurrence of a selective state space.
    ScanParams {
        /// Channels.
        n: u32,
        /// Values of a channel's state.
        n_state: u32,
        /// Channels that share the length of a step: those of a head.
        head_dim: u32,
        /// Heads that share what is written and read: those of a group.
        group_heads: u32,
        /// Distance of the rows of inputs.
        x_stride: u32,
        /// Distance of the rows of lengths of steps.
        dt_stride: u32,
        /// Start of what is written.
        b_offset: u32,
        /// Start of what is read.
        c_offset: u32,
        /// Distance of the rows of both.
        bc_stride: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Start of the channels in the state of a sequence.
        state_offset: u32,
        /// Distance of the states of sequences.
        state_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }
}
