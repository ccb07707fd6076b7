//! The `ruvllm` command as scripts and people see it: help, wrong inputs, sources, and answers of real models.

#![expect(unreachable_pub, reason = "a test binary has no outside; `pub` marks what other modules use")]

mod answers;
mod arguments;
mod backend;
mod bad_usage;
mod cache;
mod calibrate;
mod common;
mod config;
mod convert;
mod doctor;
#[cfg(feature = "gpu")]
mod gpu;
mod help;
mod hub;
mod learn;
mod lora;
mod mcp;
#[cfg(feature = "packs")]
mod packs;
mod quantize;
mod remote;
mod route;
mod serve;
mod sources;
mod template;
mod witness;
