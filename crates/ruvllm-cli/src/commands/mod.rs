//! The commands, one file or folder each. They do not use each other.

pub mod alias;
pub mod bench;
pub mod cache;
pub mod chat;
pub mod detect;
pub mod embed;
pub mod eval;
pub mod learn;
pub mod list;
pub mod logits;
pub mod lora;
pub mod perplexity;
pub mod policy;
pub mod pull;
pub mod push;
pub mod quantize;
pub mod rm;
pub mod route;
pub mod run;
pub mod serve;
pub mod session;
pub mod show;
pub mod sona;
pub mod tokenize;
pub mod witness;
