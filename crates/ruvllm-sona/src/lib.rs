//! Learning of RuvLLM: what a model is taught by the tokens it serves, remembered, bounded and undone.
//!
//! [`Calibration`] is made once for a model. [`Learned`] is what one tenant's requests taught it: a kNN-LM [`datastore`], the
//! [`interpolation`] that decides how much it is believed, the [`corrections`] it was corrected by, and a MicroLoRA of `ruvllm-lora`.
//! Each request has [`RequestTrace`] of its own, which change its logits by what is known and gather what is new;
//! [`Learned::ingest`] makes it known to others.
//!
//! This crate knows no generation, and of text only the names in a question: it sees hidden states, logits and token ids, and
//! gives back changed logits. Nothing here runs unless a caller asks for it; what is switched off leaves every row of logits untouched, bit for bit.
//!
//! ```
//! use std::sync::Arc;
//! use ruvllm_kernels::Isa;
//! use ruvllm_lora::micro::{HeadRows, StateRows};
//! use ruvllm_sona::{CalibrationBuilder, LearnOptions, Learned, RequestTrace};
//!
//! // A "model" of 8 tokens: the hidden state says which token it has just read, the logits know nothing.
//! let state = |token: u32| -> Vec<f32> { (0..64).map(|i| ((i + 1) as f32 * (token + 1) as f32).sin()).collect() };
//! let mut builder = CalibrationBuilder::new(64, Isa::best())?;
//! (0..64).for_each(|i| builder.push(&state(i * 5 % 8), &[0.0; 8], i % 8, i == 0));
//! let calibration = Arc::new(builder.finish(64)?);
//!
//! let options = LearnOptions { micro: None, ..LearnOptions::default() };
//! let mut learned = Learned::new(calibration, options, Isa::best())?;
//! /// Rows of the output head, of which only a MicroLoRA's gradient asks.
//! struct Head;
//! impl HeadRows for Head {
//!     fn row(&self, _: u32, _: &mut [f32]) {}
//! }
//! let text = [3, 1, 4, 1, 5, 2, 6, 5, 3];
//! for _ in 0..30 {
//!     let mut trace = RequestTrace::default();
//!     for pair in text.windows(2) {
//!         let mut logits = [0.0; 8];
//!         let hidden = state(pair[0]);
//!         trace.adjust(&learned, StateRows { hidden: &hidden, stream: &[] }, &mut logits);
//!         trace.accept(&learned, pair[1], &Head);
//!     }
//!     learned.ingest(trace, 1.0);
//! }
//! // What follows a 4 was always a 1.
//! let mut logits = [0.0; 8];
//! RequestTrace::default().adjust(&learned, StateRows { hidden: &state(4), stream: &[] }, &mut logits);
//! assert!(logits[1] > logits[2] + 1.0);
//! # Ok::<(), ruvllm_sona::SonaError>(())
//! ```

#![forbid(unsafe_code)]

pub mod background;
pub mod bank;
mod calibration;
mod clock;
mod codec;
pub mod corrections;
pub mod datastore;
pub mod deep;
pub mod documents;
mod eigen;
mod error;
pub mod ewc;
#[cfg(test)]
mod failing;
pub mod history;
pub mod index;
mod instant;
pub mod interpolation;
mod knn;
mod mixing_weight;
mod names;
pub mod policy;
pub mod publish;
pub mod quality;
pub mod session;
mod top;
#[cfg(test)]
mod toy;
mod trajectory;
mod whiten;
pub mod witness;

pub use calibration::{Calibration, CalibrationBuilder};
pub use clock::now_ms;
pub use error::{SonaError, SonaErrorKind};
pub use instant::{LearnOptions, Learned, MicroOptions, RequestTrace};
pub use knn::KnnDistribution;
pub use names::Names;
pub use ruvllm_store as store;
pub use ruvllm_store::signed::{PublicKey, SigningKey};
pub use trajectory::{HiddenSummary, KvUse, Latency, RingStats, Trajectory, TrajectoryRing};
pub use whiten::{Key, Whitener};
