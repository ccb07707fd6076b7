//! RuvLLM where the system starts no threads and has no files: in a browser's worker, and in Node.
//!
//! [`WebEngine`] has a model whose file is read piece by piece, so that it never lies in the module's memory as a whole, and answers requests whose bodies are those of `ruvllm serve`, checked against the same
//! tables. Nothing is computed but in [`WebEngine::step`], so that whoever drives it hears what its page says in between: a
//! request that is cancelled is over with the next step.
//!
//! [`intelligence`] is what needs no model: routes by examples, and learning over vectors that somebody else makes. Without the
//! feature `engine` the module of a page has that alone.
//!
//! With the feature `gpu` the model can run over WebGPU: calls that compute then suspend their caller, and return promises.
//!
//! On `wasm32-unknown-unknown` the module `bindings` gives it to JavaScript; the classes that people use are in `js/`.
//!
//! ```
//! use std::sync::Arc;
//! use bytes::Bytes;
//! use ruvllm_wasm::WebEngine;
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let bytes = std::fs::read(ruvllm_testkit::Golden::load("llama-a").model("f32"))?;
//! let options = r#"{ "name": "tiny", "ctx": 128 }"#;
//! let mut engine = WebEngine::load(Arc::new(Bytes::from(bytes)), options, None, &mut |_| {}).map_err(|error| error.message)?;
//! let id = engine.complete(r#"{ "prompt": "Name three rivers.", "max_tokens": 4 }"#).map_err(|error| error.message)?;
//! while engine.step() {}
//! let answer = engine.take(id).expect("it was started");
//! assert_eq!(answer["result"]["object"], "text_completion");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "engine")]
mod answer;
#[cfg(feature = "engine")]
mod body;
#[cfg(feature = "engine")]
mod capabilities;
#[cfg(feature = "engine")]
mod embed;
#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "gpu")]
mod gpu;
pub mod intelligence;
#[cfg(feature = "engine")]
mod learn;
#[cfg(feature = "engine")]
mod options;

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod bindings;

#[cfg(all(test, feature = "engine"))]
mod tests;

#[cfg(feature = "engine")]
pub use engine::{FILE_BYTES_MAX, WebEngine, check_size};
#[cfg(feature = "engine")]
pub use options::{WebBackend, WebOptions, WebProgress, threads_max};
