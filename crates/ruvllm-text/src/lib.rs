//! Text in and out of a language model: tokenizers, chat templates, calls of functions, thoughts, stop strings.
//!
//! Everything here is made from the metadata of a GGUF file and needs no weights. [`ModelText`] has a model's tokenizer and
//! chat template together. A [`GrammarSource`] says what form an answer is to have; `ruvllm-grammar` holds answers to it.
//!
//! ```
//! use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let file = ruvllm_gguf::GgufFile::open(&path)?;
//! let tokenizer = Tokenizer::from_metadata(file.metadata())?;
//! let ids = tokenizer.encode("Name three rivers.", EncodeOptions::default())?;
//! assert_eq!(tokenizer.decode(&ids, Default::default()).trim(), "Name three rivers.");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod error;
mod grammar_source;
mod guard;
mod stop;
pub mod template;
mod text;
pub mod thoughts;
pub mod tokenizer;
pub mod tools;

pub use error::{TextError, TextErrorKind};
pub use grammar_source::GrammarSource;
pub use stop::StopFilter;
pub use text::{ChatOptions, ModelText, PromptOptions, chat};
