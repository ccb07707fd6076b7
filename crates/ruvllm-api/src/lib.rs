//! Shapes of RuvLLM's API: tables of fields and the check of a request against them, what fields mean for the engine, errors, and
//! the JSON of answers that the server and the command `ruvllm` write alike.
//!
//! ```
//! use ruvllm_api::fields::{Field, ValidBody, Kind, optional, required};
//! use serde_json::json;
//!
//! const FIELDS: &[Field] = &[
//!     required("prompt", Kind::Text, "the text to continue"),
//!     optional("max_tokens", Kind::Int(1, 1 << 24), "the most tokens to write"),
//! ];
//! let given = ValidBody::check(json!({ "prompt": "Once", "max_tokens": 8 }), FIELDS, &[])?;
//! assert_eq!(given.count("max_tokens"), Some(8));
//! let error = ValidBody::check(json!({ "promt": "Once" }), FIELDS, &[]).expect_err("a misspelt field");
//! assert_eq!(error.message, "'promt' is no field of this request; is 'prompt' meant?");
//! # Ok::<(), ruvllm_api::error::ApiError>(())
//! ```
//!
//! Nothing here speaks HTTP, and nothing runs: statuses are numbers with names, and a request is JSON that was read elsewhere.

#![forbid(unsafe_code)]

pub mod adapters;
pub mod error;
pub mod fields;
pub mod form;
pub mod generation;
pub mod input;
pub mod learning;
pub mod limits;
pub mod llamacpp;
pub mod logprobs;
pub mod messages;
pub mod openai;
pub mod progress;
pub mod reading;
pub mod record;
pub mod remote;
pub mod response_format;
pub mod routing;
pub mod sampling;
pub mod session;
pub mod strict_json;
pub mod thinking;
pub mod timings;
pub mod tokens;
pub mod tools;

/// The build, in the form of llama.cpp's: tools look for the `b`.
pub const BUILD: &str = concat!("b", env!("CARGO_PKG_VERSION"), "-ruvllm");
