//! Training of adapters by back-propagation through a frozen model, on the CPU.
//!
//! [`TrainModel`] is a transformer in f32, made of a [`ModelSpec`](ruvllm_model::ModelSpec) of a dense architecture; [`Factors`] are beside
//! its linear layers, and candle's autograd differentiates through both, with operations of our own where its own would compute
//! gradients of frozen matrices or keep logits. [`Dataset`] reads what is learned from, [`Trainer`] goes the steps and [`Loss`] says what is
//! made small.
//!
//! Everything is deterministic: the order of examples is a function of seed and step, no sum is shared among threads, and a training
//! that was interrupted goes on from its checkpoint to the same bits.

mod checkpoint;
mod data;
mod factors;
mod loss;
mod model;
mod ops;
mod optimizer;
mod spec;
mod trainer;

#[cfg(test)]
mod tests;

pub use data::{Dataset, Dropped, Encoder, Example, Filter, Prompt, ScoredSequence, Split, SplitShares, TrainRecord};
pub use factors::{FactorOptions, Factors};
pub use loss::Loss;
pub use model::{ReadProgress, TrainModel};
pub use optimizer::{AdamOptions, Schedule};
pub use spec::{Role, TargetSet};
pub use trainer::{Extra, StepReport, TrainOptions, Trainer};

use crate::error::{LoraError, LoraErrorKind};

/// Sets the threads of all trainings of this process; the first who asks decides. Without it there is one a core. How many there are
/// changes no result.
///
/// # Errors
/// They were started with another number.
pub fn use_threads(n: usize) -> Result<(), LoraError> {
    match rayon::ThreadPoolBuilder::new().num_threads(n).build_global() {
        Err(_) if rayon::current_num_threads() != n => {
            let line = format!("{n} threads; this process trains on {} already", rayon::current_num_threads());
            Err(LoraError::new(LoraErrorKind::Limit, line))
        }
        _ => Ok(()),
    }
}
