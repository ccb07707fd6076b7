//! State of a running server of RuvLLM: models, tenants and their keys, limits, what was learned, batches, metrics, the record.
//!
//! Nothing here reads a request or writes an answer of an API; that is `ruvllm-server`, which stands on this crate. A caller
//! that embeds the server needs [`ModelSource`] and [`ServerOptions`], which `ruvllm-server` exports as its own.

#![forbid(unsafe_code)]

pub mod adapters;
pub mod batches;
mod descriptors;
pub mod gate;
pub mod grammars;
pub mod keys;
pub mod learning;
pub mod mcp;
pub mod metrics;
pub mod models;
pub mod options;
mod private;
pub mod reload;
pub mod saves;
pub mod server;
pub mod shared;
pub mod slots;
pub mod stored;
pub mod witness;

pub use models::ModelSource;
pub use options::ServerOptions;
