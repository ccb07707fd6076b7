//! A backend on candle's tensors: it interprets the description of a GGUF model ([`ModelSpec`](ruvllm_model::ModelSpec)) with
//! `candle-core`, on a CPU, and with the features `cuda` and `metal` on a GPU.
//!
//! It is short and shares no arithmetic with `ruvllm-native` but the angles of RoPE and the dequantisation of formats that
//! candle does not have, so that each checks the other. It runs decoders; encoders, adapters, a paged KV cache and hidden states
//! are native's.
//!
//! Numeric contract: the same call gives the same bits. Chunks, batches and forks change sums: logits of one text differ by
//! less than 1e-4 of their size in f32. With quantised weights candle quantises activations too.
//!
//! ```
//! use ruvllm_backend::{LogitRows, CacheSalt, Segment, TokenModel};
//! use ruvllm_candle::{CandleBackend, CandleOptions};
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut model = CandleBackend::load(&path, &CandleOptions::default(), &mut |_| {})?;
//! let (seq, _) = model.open(None, &CacheSalt::default())?;
//! let states = model.forward(&[Segment { seq, tokens: &[1, 2, 3], logits: LogitRows::Last }])?;
//! assert!(states.logits.iter().all(|x| x.is_finite()));
//! # Ok::<(), ruvllm_backend::BackendError>(())
//! ```

#![forbid(unsafe_code)]

mod attention;
mod backend;
mod conv;
mod ffn;
mod latent;
mod layer;
mod load;
mod mamba;
mod moe;
mod short_conv;
mod weights;

#[cfg(test)]
mod tests;

pub use backend::CandleBackend;
pub use load::{CandleDevice, CandleOptions, CandleWeights};
