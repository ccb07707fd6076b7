//! Parameters of the low-rank products of adapters, and the form in which factors lie on the device.
//!
//! A bank holds the factors of all adapters that are on the device: first [`LOW_RANK_PLACE_WORDS`] words for each layer of each
//! adapter (word at which its factors begin, rank, flags, nothing), then the factors themselves:
//!
//! ```text
//! multipliers  f32 [rank]
//! A            [rank, n_in]     f16 in pairs, or f32
//! B            [rank, n_out]    likewise; a row begins at a word
//! gain         f32 [n_out]      of DoRA: results of the base are multiplied with 1 + gain
//! ```

use super::{RECORD_WORDS, Word};

/// The most adapters of a row.
pub const ADAPTERS_MAX: usize = 8;

/// Number that stands where a row has no more adapters.
pub const NO_ADAPTER: u32 = u32::MAX;

/// Words of the place of a layer's factors in the bank.
pub const LOW_RANK_PLACE_WORDS: usize = 4;

/// Flag of a place: its factors are in f32, not in f16.
pub const LOW_RANK_F32: u32 = 1;

/// Flag of a place: it has gains.
pub const LOW_RANK_GAIN: u32 = 2;

/// Returns the words of a row of `n` values of a factor.
pub fn low_rank_words(n: usize, is_f32: bool) -> usize {
    if is_f32 { n } else { n.div_ceil(2) }
}

params! {
    /// Parameters of the two low-rank products of a layer.
    LowRankParams {
        /// Values of an input, an even number.
        n_in: u32,
        /// Values of an output.
        n_out: u32,
        /// Layers that each adapter has a place for.
        n_layers: u32,
        /// Number of the layer; of the first one where slots have layers of their own.
        layer: u32,
        /// Slots of a row; 1 if there are none.
        n_slots: u32,
        /// Room for the ranks of all adapters of a row.
        t_len: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Distance of the inputs of a row's slots; 0 if they share one.
        x_slot_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_BIAS`, `HAS_EXPERTS`, `SLOT_IS_EXPERT`.
        flags: u32,
    }
}
