//! The HTTP server of RuvLLM: the APIs of OpenAI, Anthropic and Ollama, what tools of llama.cpp ask, and a few of its own, over one
//! or more engines.
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
//! A request is checked against a table of fields (`fields`); what is not in the table is answered with 400. The model
//! runs on a thread of its own (`ruvllm_engine::Service`); here is what speaks HTTP, and nothing that computes.

#![forbid(unsafe_code)]

mod adapters;
mod anthropic;
mod app;
mod auth;
mod body;
mod connections;
mod cuts;
mod error;
mod fields;
mod gate;
mod generate;
mod grpc;
mod learning;
mod llamacpp;
mod metrics;
mod models;
mod native;
mod ollama;
mod openai;
mod options;
mod page;
mod progress;
mod reading;
mod routing;
mod sampling;
mod serve;
mod sessions;
mod share;
mod stream;
mod structure;
mod thinking;
mod timings;
mod tls;
mod tools;
mod witness;

pub use adapters::AdapterOptions;
pub use app::Server;
pub use auth::KeyOptions;
pub use learning::{generation_json, item_json, pattern_json};
pub use models::{Loader, ModelSource};
pub use options::{ServerError, ServerOptions};
pub use routing::decision_json;
pub use serve::{check, run};
pub use sessions::{SESSION_DIM, session_json};
pub use tls::TlsOptions;
pub use witness::{
    ANCHOR_FILE, NOBODY, STORE_FILE, WitnessOptions, fault_name, number_of, open_store, policy_json, record_json,
};
