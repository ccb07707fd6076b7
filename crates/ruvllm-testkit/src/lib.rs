//! What the tests of other crates share: golden models with expected logits, tokenizer, chat and generation cases, the
//! real models, measures of how far two rows of numbers are apart, and recorded bits. A development crate: it panics with a clear line
//! where a library would return an error.
//!
//! ```
//! use ruvllm_testkit::{Golden, compare_logits};
//!
//! let golden = Golden::load("llama-a");
//! assert!(golden.model("f32").is_file());
//! let expected = golden.logits();
//! let comparison = compare_logits(&expected, &expected, golden.n_vocab);
//! assert_eq!((comparison.max_kl, comparison.argmax_agreement), (0.0, 1.0));
//! ```
//!
//! `testdata/README.md` tells where the data come from and what tolerances they bear.

#![forbid(unsafe_code)]

mod cases;
mod compare;
mod faults;
mod golden;
mod json;
pub mod killed;
mod models;
mod pages;
mod recorded;
#[cfg(feature = "json-schema")]
mod schema;

pub use cases::{CASE_MODELS, chat_cases, functions, generate_cases, tokenizer_cases};
pub use compare::{LogitComparison, argmax, compare_logits, cosine, kl_divergence, max_abs_diff};
pub use faults::Faults;
pub use golden::{Golden, GoldenKind, testdata_dir};
pub use json::escaped_json;
pub use models::{REAL_MODELS, real_model};
pub use pages::check_page;
pub use recorded::RecordedBits;
#[cfg(feature = "json-schema")]
pub use schema::schema_validator;
