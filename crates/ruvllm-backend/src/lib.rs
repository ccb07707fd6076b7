//! The contract between an engine and what runs a model.
//!
//! [`TokenModel`] is what every backend that computes tokens has to have: eight methods over sequences of tokens. What a
//! backend may have besides is a trait of its own, which it may lack: [`PagedKv`] (a KV cache in blocks, with prefixes),
//! [`HiddenStates`] (what learns while answers are written), [`Embeddings`],
//! [`ForwardHooks`] (calibration of quantised files). A backend with all of them is `ruvllm-native`.
//!
//! [`Completions`] is for what runs whole requests and gives no logits: `ruvllm-remote`.
//!
//! This crate knows no text, no requests and no scheduling, and no backend.

#![forbid(unsafe_code)]

mod batch;
mod cache_salt;
mod completions;
#[cfg(feature = "conformance")]
pub mod conformance;
mod content;
mod embeddings;
mod error;
mod hidden;
mod hooks;
pub mod identity;
mod interrupt;
pub mod loading;
mod logit_rows;
mod model;
mod paged;
pub mod pooling;

pub use batch::{Segment, StateRows, States};
pub use cache_salt::CacheSalt;
pub use completions::{CallPiece, CompletionEnd, CompletionEvent, CompletionRequest, Completions, Usage};
pub use embeddings::Embeddings;
pub use error::{BackendError, BackendErrorKind, Cause};
pub use hidden::HiddenStates;
pub use hooks::{ForwardHooks, InputObserver};
pub use interrupt::Interrupt;
pub use logit_rows::LogitRows;
pub use model::{DeviceInfo, ModelInfo, SeqId, TokenModel};
pub use paged::{CachedPrefix, KvFolder, KvRoom, PagedKv};
pub use ruvllm_model::{ModelSpec, Pooling};
