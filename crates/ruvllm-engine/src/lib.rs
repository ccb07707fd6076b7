//! The engine of RuvLLM: model architectures, samplers, scheduling and generation. Text is passed on from `ruvllm-text`.
//!
//! [`Engine`] answers with a model that a backend runs; the contract between the two is `ruvllm-backend`. With the feature
//! `native`, which is on by default, [`Engine::load`] loads a GGUF file with the native CPU backend. The engine knows no HTTP
//! and reads no environment: options come in as values.
//!
//! ```
//! use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams};
//!
//! // Any GGUF file; here a tiny one of the test data, whose answers make no sense.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {})?;
//! let prompt = engine.encode_prompt("Name three rivers.", false)?;
//! let sampling = SamplingParams::greedy();
//! let mut n_tokens = 0;
//! for event in engine.generate(&GenerateRequest { prompt, max_tokens: Some(4), sampling, ..Default::default() })? {
//!     print!("{}", event?.text);
//!     n_tokens += 1;
//! }
//! assert!((1..=4).contains(&n_tokens));
//! # Ok::<(), ruvllm_engine::EngineError>(())
//! ```

#![forbid(unsafe_code)]

mod bandwidth;
mod divergence;
mod engine;
mod error;
mod generate;
mod logits_hook;
mod perplexity;
mod request;
mod request_state;
mod runner;
mod sampler;
mod scheduler;
mod service;
mod session;
mod speculate;
#[cfg(feature = "train")]
mod train;
pub mod tuner;
#[cfg(not(feature = "grammar"))]
mod without_grammars;

pub use bandwidth::read_bandwidth;
pub use divergence::{Divergence, PackedPrediction, log_probability};
pub use engine::Engine;
pub use error::{EngineError, ErrorKind};
pub use generate::Generation;
pub use logits_hook::{LogitsHook, LogitsProcessor};
pub use perplexity::{KvPrice, Perplexity, PerplexityOptions, PerplexityProgress};
pub use request::{
    CancelToken, FinishReason, GenerateRequest, GenerationSummary, ProgressSink, PromptProgress, Timings, TokenEvent,
    Unread,
};
pub use runner::{ModelRunner, Readout, Vocabulary};
pub use ruvllm_backend::{
    BackendError, BackendErrorKind, CacheSalt, CachedPrefix, DeviceInfo, KvRoom, LogitRows, ModelInfo, PagedKv,
    Pooling, Segment, SeqId, States, TokenModel,
};
#[cfg(feature = "grammar")]
pub use ruvllm_grammar::{Constraint, Grammar, GrammarCompiler, GrammarError, GrammarErrorKind};
pub use ruvllm_kernels::Compute;
pub use ruvllm_kvcache::disk::{DiskStats, SessionInfo};
pub use ruvllm_kvcache::{CacheStats, KvPolicy, Level, Pressure, Relief, Usage};
pub use ruvllm_lora::loader::{AdapterLoader, HeadWeights};
pub use ruvllm_lora::micro::{FinalBlock, LogitRow, MicroLora, StateRows};
pub use ruvllm_lora::{AdapterSet, BoundAdapter, FactorFormat};
#[cfg(feature = "native")]
pub use ruvllm_native::{
    DraftOptions, FsyncPolicy, LoadOptions, LoadProgress, NUMERICS_VERSION, NativeBackend, PackedWeights, architectures,
};
pub use ruvllm_text::{
    ChatOptions, GrammarSource, ModelText, PromptOptions, TextError, TextErrorKind, template, thoughts, tokenizer,
    tools,
};
pub use sampler::{Mirostat, SamplerKind, SamplingParams, TokenLogprobs, seed_of_clock};
pub use scheduler::{Event, IDLE_PRIORITY, RequestId, Scheduler, SchedulerOptions, SchedulerStats};
pub use service::{
    EmbedSink, Observer, SavedPrompt, Service, ServiceEvent, ServiceOptions, ServiceStats, ServiceSteps, ServiceThread,
    Sink, Step, Ticket, Work,
};
pub use session::Session;
pub use speculate::{DraftCount, DraftInfo, DraftSources, HistoryKeeper, Speculation};
#[cfg(feature = "train")]
pub use train::TextEncoder;
#[cfg(not(feature = "grammar"))]
pub use without_grammars::{Constraint, Grammar, GrammarCompiler};
