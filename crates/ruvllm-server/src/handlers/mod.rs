//! The handlers of endpoints, by API.

pub(crate) mod adapters;
pub(crate) mod anthropic;
pub(crate) mod grpc;
pub(crate) mod keys;
pub(crate) mod learning;
pub(crate) mod llamacpp;
pub(crate) mod mcp;
pub(crate) mod native;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod replay;
pub(crate) mod routing;
pub(crate) mod sessions;
pub(crate) mod witness;
