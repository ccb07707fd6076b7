//! The HTTP server of RuvLLM: the APIs of OpenAI, Anthropic and Ollama, what tools of llama.cpp ask, and a few of its own, over one
//! or more engines, or over other servers ([`ModelSource::remote`]).
//!
//! ```no_run
//! use ruvllm_engine::{Engine, LoadOptions};
//! use ruvllm_server::{ModelSource, ServerOptions, run};
//!
//! let engine = Engine::load("model.gguf".as_ref(), &LoadOptions { n_seq_max: 8, ..Default::default() }, &mut |_| {})?;
//! let stop = std::future::pending();
//! run(vec![ModelSource::loaded("my-model", engine)], ServerOptions::default(), &|address| println!("http://{address}"), stop)?;
//! # Ok::<(), ruvllm_server::ServerError>(())
//! ```
//!
//! A request is checked against a table of fields (`ruvllm_api::fields`); what is not in the table is answered with 400. The model
//! runs on a thread of its own (`ruvllm_engine::Service`); here is what speaks HTTP, and nothing that computes.
//!
//! Imports go down: `serve` and `router`, the `handlers` of each API, what they have in common (`call`). What runs (models,
//! tenants, batches, metrics) is `ruvllm-server-state`.

#![forbid(unsafe_code)]

mod call;
mod handlers;
mod page;
mod router;
mod serve;

pub use router::app;
pub use ruvllm_server_state::adapters::AdapterOptions;
pub use ruvllm_server_state::batches::BatchOptions;
pub use ruvllm_server_state::keys::KeyOptions;
pub use ruvllm_server_state::mcp::McpOptions;
pub use ruvllm_server_state::models::{DraftTextsOptions, Loader, ModelSource, ModelUpdate};
pub use ruvllm_server_state::options::{ServerError, ServerOptions, TlsOptions};
pub use ruvllm_server_state::reload::{Reload, Update};
pub use ruvllm_server_state::server::Server;
pub use ruvllm_witness::WitnessOptions;
pub use serve::{AnswerBody, Embedded, EmbeddedCall, check, run, run_reloading};
