//! Parameters of kernels: one small record for each dispatch, written at load.
//!
//! Shapes, strides and offsets of a dispatch never change, so they lie in a uniform buffer of their own ([`RECORD_WORDS`]
//! words for each) and the bind group that names it is made once. What changes with each pass is in the buffers of
//! [`PASS_BINDINGS`](crate::PASS_BINDINGS), which all kernels share: four counts, a [`RowRecord`] for each row, and
//! the block tables.
//!
//! Offsets and strides are in values of four bytes from the start of the binding, if not said otherwise. `count` says
//! which of the four counts of the pass is the number of rows.

/// Number of words of a record of parameters.
pub const RECORD_WORDS: usize = 16;

/// Bits of `flags` in the parameters. The WGSL has them by the same names.
pub mod flags {
    /// The binding `bias` (or `choice_bias`) is added.
    pub const HAS_BIAS: u32 = 1;
    /// The result is added to the output.
    pub const ACCUMULATE: u32 = 2;
    /// The binding `weight` is multiplied.
    pub const HAS_WEIGHT: u32 = 4;
    /// The sigmoid of the binding `gate` is multiplied.
    pub const HAS_GATE: u32 = 8;
    /// The binding `sinks` takes part in the softmax.
    pub const HAS_SINKS: u32 = 16;
    /// Weights of the chosen experts are rescaled to sum to one.
    pub const NORMALIZE: u32 = 32;
    /// The binding `experts` says which layer each slot of a row is of.
    pub const HAS_EXPERTS: u32 = 64;
    /// A slot goes through the expert, or the layer, of its own number; the binding `experts` is not read.
    pub const SLOT_IS_EXPERT: u32 = 128;
}

/// A parameter as the word that the device reads.
trait Word {
    fn word(self) -> u32;
}

impl Word for u32 {
    fn word(self) -> u32 {
        self
    }
}

impl Word for f32 {
    fn word(self) -> u32 {
        self.to_bits()
    }
}

/// Makes a struct of parameters, in Rust and in WGSL, of one list of fields.
macro_rules! params {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $ty,)* }

        impl $name {
            /// WGSL of the struct that the kernel reads.
            pub(crate) const WGSL: &'static str =
                concat!("struct Params {\n", $("    ", stringify!($field), ": ", stringify!($ty), ",\n",)* "}\n");

            /// The record as it lies in the uniform buffer.
            pub fn words(&self) -> [u32; RECORD_WORDS] {
                let mut words = [0; RECORD_WORDS];
                for (to, word) in words.iter_mut().zip([$(self.$field.word(),)*]) {
                    *to = word;
                }
                words
            }
        }

        const _: () = assert!(size_of::<$name>() <= 4 * RECORD_WORDS);
    )*};
}

mod low_rank;
mod recurrent;

pub use low_rank::{
    ADAPTERS_MAX, LOW_RANK_F32, LOW_RANK_GAIN, LOW_RANK_PLACE_WORDS, LowRankParams, NO_ADAPTER, low_rank_words,
};
pub use recurrent::{CausalConvParams, ScanParams};

params! {
    /// Parameters of a product with a matrix of weights.
    LinearParams {
        /// Units of a row of weights.
        n_units: u32,
        /// A quarter of the values of a row, which is a multiple of four, or padded with zeros to one.
        n_quads: u32,
        /// Words of a row of weights.
        row_words: u32,
        /// Rows of weights in the binding.
        n_out: u32,
        /// Word of the binding at which the weights begin.
        w_offset: u32,
        /// Start of the bias.
        bias_offset: u32,
        /// Start of the input, a multiple of four.
        x_offset: u32,
        /// Distance of the rows of the input, a multiple of four.
        x_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_BIAS`, `ACCUMULATE`.
        flags: u32,
    }

    /// Parameters of a product with the matrices of the experts that each row chose. The output has the slots of a row
    /// next to each other.
    ExpertLinearParams {
        /// Units of a row of weights.
        n_units: u32,
        /// A quarter of the values of a row, which is a multiple of four.
        n_quads: u32,
        /// Words of a row of weights.
        row_words: u32,
        /// Rows of weights of an expert.
        n_out: u32,
        /// Word of the binding at which the weights begin.
        w_offset: u32,
        /// Start of the bias.
        bias_offset: u32,
        /// Start of the input, a multiple of four.
        x_offset: u32,
        /// Distance of the rows of the input, a multiple of four.
        x_stride: u32,
        /// Distance of the inputs of a row's slots; 0 if they share one.
        x_slot_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Experts of a row.
        n_slots: u32,
        /// Number of the first expert in the binding.
        first_expert: u32,
        /// Experts in the binding.
        n_experts: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_BIAS`, `ACCUMULATE`, `SLOT_IS_EXPERT`.
        flags: u32,
    }

    /// Parameters of the embedding of tokens.
    EmbedParams {
        /// Units of a row of the table.
        n_units: u32,
        /// A quarter of the values of a row, which is a multiple of four.
        n_quads: u32,
        /// Words of a row of the table.
        row_words: u32,
        /// Tokens in the binding.
        n_out: u32,
        /// Word of the binding at which the table begins.
        w_offset: u32,
        /// First token in the binding.
        first_token: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Factor of the values.
        scale: f32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of a norm.
    NormParams {
        /// Values of a group.
        n: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Added to the mean of the squares.
        eps: f32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_WEIGHT`, `HAS_BIAS`.
        flags: u32,
        /// Rows of weights, which groups take in turn; 0 and 1 are one row for all.
        n_sets: u32,
    }

    /// Parameters of the rotation of positions.
    RopeParams {
        /// Heads of a row.
        n_heads: u32,
        /// Values of a head.
        head_dim: u32,
        /// Pairs of a head that are rotated.
        n_pairs: u32,
        /// Start of the rows.
        x_offset: u32,
        /// Distance of the rows.
        x_stride: u32,
        /// Distance of the angles of rows, in pairs of cosine and sine.
        angle_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of an activation.
    ActivateParams {
        /// Values of a row, or of a slot.
        n: u32,
        /// Start of what is activated.
        a_offset: u32,
        /// Distance of its rows.
        a_stride: u32,
        /// Start of what it is multiplied with.
        b_offset: u32,
        /// Distance of its rows.
        b_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of its rows.
        y_stride: u32,
        /// Distance of the slots of a row in all three.
        slot_stride: u32,
        /// Steepness of the clamped gate.
        alpha: f32,
        /// Bound of the clamped gate.
        limit: f32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of an addition, and of the gathering of rows.
    AddParams {
        /// Values of a row.
        n: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input; 0 if all rows share one.
        x_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Factor of the input; gathering takes it as it is.
        scale: f32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_GATE`.
        flags: u32,
    }

    /// Parameters of copying a part of each head of rows.
    CopyHeadsParams {
        /// Values that are copied of a head.
        n: u32,
        /// Heads of a row.
        n_heads: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Distance of the heads of the input; 0 if they share one.
        x_head_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Distance of the heads of the output.
        y_head_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of writing to the KV cache.
    KvAppendParams {
        /// Heads of keys and values.
        n_kv_heads: u32,
        /// Values of a key: even if the cache is in f16.
        k_dim: u32,
        /// Values of a value: even if the cache is in f16.
        v_dim: u32,
        /// Start of the keys.
        k_offset: u32,
        /// Distance of the rows of keys.
        k_stride: u32,
        /// Start of the values.
        v_offset: u32,
        /// Distance of the rows of values.
        v_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of attention.
    AttentionParams {
        /// Heads of queries, a multiple of `n_kv_heads`.
        n_heads: u32,
        /// Heads of keys and values.
        n_kv_heads: u32,
        /// Values of a key, 256 at most, 640 where heads are wide.
        k_dim: u32,
        /// Values of a value, as many at most.
        v_dim: u32,
        /// Start of the queries.
        q_offset: u32,
        /// Distance of the rows of queries.
        q_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Factor of the queries.
        scale: f32,
        /// Bound of soft-capped scores; 0 if they are not.
        softcap: f32,
        /// Keys that a row sees; 0 if all.
        window: u32,
        /// Workgroups over which the keys of a row are split; 1 if they are not.
        n_splits: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_SINKS`.
        flags: u32,
    }

    /// Parameters of putting the splits of attention together.
    AttentionMergeParams {
        /// Heads of queries.
        n_heads: u32,
        /// Values of a head.
        v_dim: u32,
        /// Splits of a row.
        n_splits: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of a softmax.
    SoftmaxParams {
        /// Values of a row.
        n: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Factor of the input.
        scale: f32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of the search for the largest values.
    TopKParams {
        /// Values of a row.
        n: u32,
        /// Values that are wanted, `n` at most.
        k: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }

    /// Parameters of both stages of the search for the k largest values of long rows. Results of rows, and of their parts, lie
    /// k apart.
    TopKPartsParams {
        /// Values of a row.
        n: u32,
        /// Values of a part of a row; the last one may have fewer.
        part_len: u32,
        /// Parts of a row.
        n_parts: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// Count of the pass that is k, [`TOP_K_MAX`](crate::TOP_K_MAX) at most.
        k_count: u32,
    }

    /// Parameters of the choice of experts.
    RouteParams {
        /// Experts, 1,024 at most.
        n: u32,
        /// Experts of a row, 32 at most.
        n_slots: u32,
        /// Start of the logits.
        x_offset: u32,
        /// Distance of the rows of logits.
        x_stride: u32,
        /// Way to weights: 0 softmax over all, 1 softmax over the chosen, 2 sigmoid.
        gating: u32,
        /// Groups of experts, 64 at most; 1 if there are none.
        n_groups: u32,
        /// Groups that are chosen among.
        n_groups_used: u32,
        /// Factor of the weights.
        scale: f32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `HAS_BIAS`, `NORMALIZE`.
        flags: u32,
    }

    /// Parameters of the weighted sum of what experts give.
    CombineParams {
        /// Values of a slot.
        n: u32,
        /// Experts of a row.
        n_slots: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input.
        x_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
        /// `ACCUMULATE`.
        flags: u32,
    }

    /// Parameters of a short convolution, and of writing what it reads.
    ConvParams {
        /// Channels.
        n: u32,
        /// Taps of a channel.
        n_taps: u32,
        /// Start of the input.
        x_offset: u32,
        /// Distance of the rows of the input, of three times as many values as channels.
        x_stride: u32,
        /// Start of the output.
        y_offset: u32,
        /// Distance of the rows of the output.
        y_stride: u32,
        /// Count of the pass that is the number of rows.
        count: u32,
    }
}

/// A row of the pass, as kernels read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowRecord {
    /// Token to embed.
    pub token: u32,
    /// Place of its key and value in the cache: block times [`KV_BLOCK`](crate::KV_BLOCK) plus token in the block.
    pub slot: u32,
    /// Start of its sequence's blocks in the block tables.
    pub table: u32,
    /// Keys that it sees: its position plus one, or all of an encoder's.
    pub n_keys: u32,
    /// Row of the pass that the logits of this number are made of.
    pub source: u32,
    /// First row of its sequence in the pass.
    pub first: u32,
    /// Place of its sequence among recurrent states.
    pub state: u32,
}

impl RowRecord {
    /// Number of words of a record on the device.
    pub const WORDS: usize = 8;

    /// WGSL of the struct that kernels read.
    pub(crate) const WGSL: &'static str = "struct RowRecord {\n    token: u32,\n    slot: u32,\n    table: u32,\n    \
                                           n_keys: u32,\n    source: u32,\n    first: u32,\n    state: u32,\n    \
                                           free: u32,\n}\n";

    /// The record as it lies in the storage buffer.
    pub fn words(&self) -> [u32; Self::WORDS] {
        [self.token, self.slot, self.table, self.n_keys, self.source, self.first, self.state, 0]
    }
}
