//! A batch: new tokens of sequences, and the rows that come of them.

pub use ruvllm_lora::micro::StateRows;

use crate::{LogitRows, SeqId};

/// New tokens of one sequence in a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The sequence they continue.
    pub seq: SeqId,
    /// Token ids; not empty.
    pub tokens: &'a [u32],
    /// Rows that want logits.
    pub logits: LogitRows,
}

/// Results of a forward pass.
#[derive(Debug)]
pub struct States<'a> {
    /// The wanted logits: `[n_wanted_rows, n_vocab]`, in order of the segments.
    pub logits: &'a mut [f32],
    /// Approximate logits of the same rows, as [`LogitRows::Approx`] wants them; empty if no segment does, or the backend
    /// has no head shortlist.
    pub approx: &'a [f32],
    /// Final hidden states of the same rows, after the norm and before any [`MicroLora`](ruvllm_lora::micro::MicroLora),
    /// and the input of the last block for them: `[n_wanted_rows, n_embd]`. A segment of [`LogitRows::TailOfStates`] has
    /// those of all its rows here. Empty in a backend without [`HiddenStates`](crate::HiddenStates).
    pub rows: StateRows<'a>,
}

impl<'a> States<'a> {
    /// Makes the results of a backend that gives logits alone.
    pub fn of_logits(logits: &'a mut [f32]) -> States<'a> {
        States { logits, approx: &[], rows: StateRows { hidden: &[], stream: &[] } }
    }
}
