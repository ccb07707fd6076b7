//! A backend on the GPU: it brings the description of a GGUF model ([`ModelSpec`](ruvllm_model::ModelSpec)) and its weights to a
//! device by `ruvllm-gpu`, and runs it with the kernels of `ruvllm-shaders`.
//!
//! Weights stay quantised. A type without a kernel becomes f16. All dispatches, parameters and bind groups are made at load; a pass
//! is some small writes and one command buffer. The KV cache is paged and lies on the device. Of greedy decoding only the
//! token and its logit are read back.
//!
//! It runs models of all kinds of layers, dense or with experts, and encoders. Adapters are brought to the device when a request first
//! uses them, and each row of a batch has its own.
//!
//! Numeric contract: the same call on the same device and driver gives the same bits. Chunks, batches and cached prefixes change
//! sums, because the kernel of a product is chosen by the number of rows: logits of one text differ by less than 1e-3 of their
//! size with the cache in f32. Against native, weights are the same and activations are not quantised.
//!
//! ```no_run
//! use ruvllm_backend::{CacheSalt, LogitRows, Segment, TokenModel};
//! use ruvllm_wgpu::{GpuChoice, WgpuBackend, WgpuOptions};
//!
//! let options = WgpuOptions { gpu: GpuChoice::parse("radeon"), ..WgpuOptions::default() };
//! let mut model = WgpuBackend::load("model.gguf".as_ref(), &options, &mut |_| {})?;
//! let (seq, _) = model.open(None, &CacheSalt::default())?;
//! let states = model.forward(&[Segment { seq, tokens: &[1, 2, 3], logits: LogitRows::Last }])?;
//! assert!(states.logits.iter().all(|x| x.is_finite()));
//! # Ok::<(), ruvllm_backend::BackendError>(())
//! ```

#![forbid(unsafe_code)]

mod adapters;
mod backend;
mod cache_shape;
mod device_model;
mod error;
mod kv;
mod layers;
mod load;
mod scratch;
mod steps;
mod support;
mod weights;

#[cfg(test)]
mod tests;

pub use backend::{KernelTime, WgpuBackend};
pub use load::{FirstLayers, LoadFirst, WgpuOptions};
pub use ruvllm_gpu::{GpuChoice, GpuInfo, gpus};
