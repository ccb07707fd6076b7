//! Options of learning.

use crate::datastore::DatastoreOptions;

/// Options of learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnOptions {
    /// kNN-LM datastore; `None` switches it off.
    pub datastore: Option<DatastoreOptions>,
    /// MicroLoRA; `None` switches it off.
    pub micro: Option<MicroOptions>,
    /// Entries count by `exp(similarity / temperature)`: see [`datastore`](crate::datastore).
    pub temperature: f32,
}

impl Default for LearnOptions {
    fn default() -> LearnOptions {
        LearnOptions {
            datastore: Some(DatastoreOptions::default()),
            micro: Some(MicroOptions::default()),
            temperature: 0.05,
        }
    }
}

/// Options of the MicroLoRA's learning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MicroOptions {
    /// Its rank.
    pub rank: usize,
    /// The learning rate of RMSprop.
    pub rate: f32,
    /// Tokens a step is made of.
    pub n_tokens: usize,
    /// Likeliest tokens whose rows of the head a gradient reads, in addition to some that stand for the others.
    pub n_likeliest: usize,
    /// Whether it sees hidden states less their mean on calibration text.
    pub is_centred: bool,
}

impl Default for MicroOptions {
    fn default() -> MicroOptions {
        MicroOptions { rank: 4, rate: 1e-3, n_tokens: 32, n_likeliest: 128, is_centred: true }
    }
}
