//! The native backend of RuvLLM: GGUF models on this machine's CPU, with packed weights, SIMD kernels and a paged KV cache.
//!
//! [`NativeBackend`] is a [`TokenModel`](ruvllm_backend::TokenModel) with every capability of the contract.
//!
//! Numeric contract: the logits of a row are the same bits whatever else is in the batch, however a prompt is cut into
//! passes, for any number of threads, and whether its prefix was cached. They differ between instruction sets in their
//! last bits, and between versions of [`NUMERICS_VERSION`].
//!
//! ```
//! use ruvllm_backend::{LogitRows, CacheSalt, Segment, TokenModel};
//! use ruvllm_native::{LoadOptions, NativeBackend};
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut model = NativeBackend::load(&path, &LoadOptions::default(), &mut |_| {})?;
//! let (seq, _) = model.open(None, &CacheSalt::default())?;
//! let states = model.forward(&[Segment { seq, tokens: &[1, 2, 3], logits: LogitRows::Last }])?;
//! assert!(states.logits.iter().all(|x| x.is_finite()));
//! # Ok::<(), ruvllm_backend::BackendError>(())
//! ```

#![forbid(unsafe_code)]

mod backend;
mod identity;
mod kernels;
mod kv;
mod load;
mod model;
mod packed;
mod persist;
mod tiers;

pub use backend::NativeBackend;
pub use load::{DraftOptions, FsyncPolicy, LoadOptions};
pub use packed::PackedWeights;
pub use ruvllm_backend::loading::LoadProgress;
pub use ruvllm_kernels::NUMERICS_VERSION;
pub use ruvllm_model::architectures;
