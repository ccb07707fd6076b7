//! The engine of RuvLLM: tokenizers, chat templates, model architectures, samplers and generation.

pub mod error;
pub mod template;
pub mod tokenizer;

pub use error::{EngineError, ErrorKind};
