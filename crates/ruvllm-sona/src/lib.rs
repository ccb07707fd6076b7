//! Learning of RuvLLM: what a model is taught by the tokens it serves, remembered, bounded and undone.
//!
//! This crate knows no text and no generation: it sees hidden states, logits and token ids, and gives back changed logits.
//! Nothing here runs unless a caller asks for it; what is switched off leaves every row of logits untouched, bit for bit.

mod error;

pub use error::{SonaError, SonaErrorKind};
