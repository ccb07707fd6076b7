//! Structured output: answers that a JSON schema or a grammar allows, and nothing else.
//!
//! A [`GrammarCompiler`] turns a [`GrammarSource`] into a [`Grammar`], on any thread; a request carries it. While the answer
//! is written, a [`Constraint`] rules out the tokens after which no valid answer is possible, and the answer can end only
//! where it is valid. Tokens that are the only possible ones are taken without asking the model.
//!
//! The work behind it is `llguidance`'s: an Earley parser over a lexer of derivatives, walked along the trie of all tokens.
//! What a hostile grammar may cost is limited; going over a limit is an error, never a way out.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ruvllm_grammar::{GrammarCompiler, GrammarSource};
//! use ruvllm_text::tokenizer::Tokenizer;
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let file = ruvllm_gguf::GgufFile::open(&path)?;
//! let tokenizer = Arc::new(Tokenizer::from_metadata(file.metadata())?);
//! let compiler = GrammarCompiler::new(&tokenizer, tokenizer.vocab_len())?;
//! let grammar = compiler.compile(&GrammarSource::Choice(vec!["yes".to_owned(), "no".to_owned()]))?;
//! // A model's logits are masked before a token is chosen; here every token is as likely as any.
//! let (mut constraint, mut answer) = (grammar.start(), Vec::new());
//! while !constraint.is_complete() {
//!     constraint.compute_mask()?;
//!     let mut logits = vec![0.0; tokenizer.vocab_len()];
//!     constraint.apply_mask(&mut logits);
//!     let id = logits.iter().position(|&logit| logit == 0.0).expect("a token goes on") as u32;
//!     constraint.accept(id)?;
//!     answer.push(id);
//! }
//! assert!(["yes", "no"].contains(&&*tokenizer.decode(&answer, Default::default())));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod ahead;
mod calls;
mod compiler;
mod constraint;
mod draft;
mod env;
mod error;
#[cfg(test)]
mod forms;
mod gbnf;
mod grammar;
mod judge;
mod nested;
mod pool;
mod schema;
mod size;
mod source;
#[cfg(test)]
mod tests;
mod watch;

pub use compiler::GrammarCompiler;
pub use constraint::Constraint;
pub use error::{GrammarError, GrammarErrorKind};
pub use grammar::Grammar;
pub use ruvllm_text::GrammarSource;
