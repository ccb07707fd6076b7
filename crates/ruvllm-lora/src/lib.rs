//! Low-rank adapters of RuvLLM: read and written, applied row by row, kept in memory, merged, and learned at rank 1 to 4.
//!
//! An [`Adapter`] is what the files say (PEFT folders and GGUF adapters, see [`mod@format`]); [`Targets`] knows a model's
//! linear layers and makes a [`BoundAdapter`] of it; an [`AdapterSet`] is what one sequence has of those, and
//! [`AdaptedRows`] applies the sets of a batch behind each product of the base, any row its own, where a [`gate`] may weigh
//! them token by token. [`manager`] keeps many adapters within a budget, [`merge`] makes one of several, [`micro`] learns
//! small ones; with the feature `train`, `train` learns any by back-propagation.
//!
//! This crate knows no requests, no scheduling and no HTTP. Files are untrusted: sizes are bounded before they are
//! believed, and an adapter that does not fit is one line.
//!
//! ```
//! use std::sync::Arc;
//! use ruvllm_lora::{Adapter, AdaptedRows, AdapterSet, Delta, FactorFormat, FactorPair, InputRows, LowRank, RowOrder};
//! use ruvllm_lora::{Target, Targets, Values};
//! use ruvllm_lora::format::ModelFacts;
//! use ruvllm_kernels::{Isa, lowrank};
//! use ruvllm_cpu::ThreadPool;
//!
//! // A model with one layer of 2 results from 4 inputs, and an adapter of rank 1 for it.
//! let facts = ModelFacts { arch: "llama".into(), n_heads: vec![1], n_kv_heads: vec![1], n_experts: 0 };
//! let layer = Target { tensor: "blk.0.attn_v".into(), rows: 0..2, alias: None, n_in: 4 };
//! let targets = Arc::new(Targets::new(facts, vec![layer]));
//! let pair = FactorPair { a: Values::from_f32(1, 4, &[1.0; 4]), b: Values::from_f32(2, 1, &[0.5, -0.5]) };
//! let adapter = Adapter::new("tiny", vec![Delta::new("blk.0.attn_v", 2.0, pair, None, RowOrder::Same)?])?;
//! let bound = targets.bind(&adapter, FactorFormat::F16, &ruvllm_lora::NoBase)?;
//! let set = AdapterSet::new(vec![(Arc::new(bound), 1.0)])?;
//!
//! // Two rows, of which the second has the adapter.
//! let mut rows = AdaptedRows::new(2, 2);
//! rows.push(1, &AdapterSet::default());
//! rows.push(1, &set);
//! let (x, mut y) = ([1.0; 8], [0.0; 4]);
//! let kernels = LowRank { table: lowrank::pick(Isa::best()), threads: &ThreadPool::new(1) };
//! rows.apply(kernels, InputRows { x: &x, n: 2 }, None, [(0, &mut y[..])]);
//! assert_eq!(y, [0.0, 0.0, 4.0, -4.0]);
//! # Ok::<(), ruvllm_lora::LoraError>(())
//! ```

mod adapter;
mod apply;
mod bound;
mod dot;
mod error;
pub mod format;
pub mod gate;
pub mod loader;
pub mod manager;
pub mod merge;
pub mod micro;
#[cfg(feature = "peft")]
pub mod mixture;
mod packed;
#[cfg(feature = "train")]
pub mod train;

pub use adapter::{Adapter, Delta, FactorPair, N_TARGETS_MAX, RANK_MAX, RowOrder, SCALE_MAX, Values};
pub use apply::{AdaptedRows, AdapterSet, InputRows, LowRank, Product, SET_MAX};
pub use bound::{BaseWeights, BoundAdapter, FactorFormat, NoBase, Target, Targets};
pub use error::{LoraError, LoraErrorKind};
pub use packed::{LayerFactors, LayerSizes};
