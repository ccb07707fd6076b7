//! FastGRNN (Kusupati et al. 2018, arXiv:1901.02358): a small gated recurrent network that chooses models.
//!
//! ```text
//! z_t = σ(W·x_t + U·h_{t-1} + b_z[t])         the gate; W and U are shared with the candidate
//! c_t = tanh(W·x_t + U·h_{t-1} + b_h[t])      the candidate
//! h_t = (σ(ζ)·(1 - z_t) + σ(ν)) ⊙ c_t + z_t ⊙ h_{t-1}
//! W = W₂·W₁, U = U₂·U₁                        low rank; sparse by iterative hard thresholding (ib., section 3.2)
//! ```
//!
//! **The sequence.** A query is one vector: its 128 features, then its embedding, each scaled to mean 0
//! ([`query_vector`](crate::query_vector)). It is cut into chunks of 64 values: two of features, then those of the
//! embedding (six for 384 values). `W` is the same for all chunks though they mean different things, so the biases
//! belong to the step, where the paper has one of each for all.
//!
//! **The heads** read `[h_T; x]`, the last state beside the whole scaled vector (the wide part of Cheng et al. 2016,
//! arXiv:1606.07792): with `h` left out they are logistic regression, and what the recurrence adds is all that is not
//! linear. They are: the quality to expect of each model (a probability each), the context bucket ([`CONTEXT_BUCKETS`]),
//! the temperature, top-p, and the confidence: the probability that no other model would have answered better than the
//! one that the qualities name.
//!
//! **Training** ([`Selector::train`]) is seeded and gives the same bits for the same outcomes. A selector is a
//! committee: each member leaves out its own part of the groups, stops where that part's loss is least, and all
//! left-out predictions together give one temperature a model (Guo et al. 2017, arXiv:1706.04599), by which the distance
//! of a logit from that of the model's mean quality is divided: a query that tells nothing is expected to be average.

mod cell;
mod network;
mod selector;
#[cfg(test)]
mod tests;
mod train;

pub(crate) use train::shuffle;

pub use network::{CONTEXT_BUCKETS, TEMPERATURE_MAX};
pub use selector::{Prediction, Selector};
pub use train::{Outcome, Progress, Settings, TrainOptions};
