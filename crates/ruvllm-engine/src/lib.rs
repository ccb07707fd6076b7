//! The engine of RuvLLM: tokenizers, chat templates, model architectures, samplers and generation.
//!
//! [`Engine`] loads a GGUF file and answers; [`LlmBackend`] is what runs a model underneath. The engine knows no HTTP
//! and reads no environment: options come in as values.
//!
//! ```no_run
//! use ruvllm_engine::{Engine, GenerateRequest, LoadOptions};
//!
//! let mut engine = Engine::load("model.gguf".as_ref(), &LoadOptions::default(), &mut |_| {})?;
//! let prompt = engine.encode_prompt("Name three rivers.", false)?;
//! for event in engine.generate(&GenerateRequest { prompt, ..Default::default() })? {
//!     print!("{}", event?.text);
//! }
//! # Ok::<(), ruvllm_engine::EngineError>(())
//! ```

mod backend;
mod bandwidth;
mod engine;
mod error;
mod generate;
mod kernels;
mod model;
mod perplexity;
mod request;
mod sampler;
mod stop;
pub mod template;
pub mod tokenizer;

pub use backend::{KvType, LlmBackend, LoadOptions, ModelInfo, NativeBackend, Segment, SeqId};
pub use engine::Engine;
pub use error::{EngineError, ErrorKind};
pub use generate::Generation;
pub use model::{LoadProgress, LogitRows, architectures};
pub use perplexity::{Perplexity, PerplexityProgress};
pub use request::{CancelToken, FinishReason, GenerateRequest, GenerationSummary, Timings, TokenEvent};
pub use sampler::SamplingParams;
