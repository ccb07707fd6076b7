//! The server over real sockets, with tiny models and SmolLM2.

#![expect(unreachable_pub, reason = "a test binary has no outside; `pub` marks what other modules use")]

mod adapters;
mod answers;
mod batches;
mod client;
mod clients;
mod dialects;
mod drafts;
mod embedded;
mod facts;
mod garbage;
mod http;
mod keys;
mod learning;
mod limits;
mod llama_clients;
mod llama_server;
mod llamacpp;
mod mcp;
mod models;
mod ollama;
mod reference;
mod refusals;
mod remote;
mod replay;
mod shares;
mod stored;
mod thinking;
mod tls;
mod tools;
mod witness;
