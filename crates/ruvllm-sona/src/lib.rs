//! Learning of RuvLLM: what a model is taught by the tokens it serves, remembered, bounded and undone.
//!
//! This crate knows no text and no generation: it sees hidden states, logits and token ids, and gives back changed logits.
//! Nothing here runs unless a caller asks for it; what is switched off leaves every row of logits untouched, bit for bit.

pub mod bank;
mod bytes;
mod error;
pub mod index;
pub mod store;
mod trajectory;

pub use error::{SonaError, SonaErrorKind};
pub use trajectory::{HiddenSummary, KvUse, Latency, RingStats, Trajectory, TrajectoryRing};
