//! The floor that the commands of `ruvllm` stand on: options, settings, models and their sources, output, errors.
//!
//! [`app::App`] is the context that each command gets, and [`error::Error`] the end of one that fails. [`settings`] come from the
//! environment and from the file of [`config`]; [`args`] has groups of options, and a module such as [`template`] a single one with its
//! meaning. No command is known here: they are in `ruvllm-cli`.

#![forbid(unsafe_code)]

pub mod answer;
pub mod app;
pub mod args;
pub mod backend;
pub mod calibration;
pub mod chart;
pub mod check;
pub mod config;
pub mod describe;
pub mod env;
pub mod error;
mod folders;
pub mod gpus;
mod grammar;
pub mod hub;
pub mod interrupt;
pub mod learning;
pub mod lora;
pub mod machine;
pub mod out_file;
pub mod output;
#[cfg(feature = "packs")]
pub mod packs;
pub mod rates;
pub mod remote;
pub mod renamed;
pub mod resume;
pub mod routing;
pub mod settings;
pub mod signing_key;
pub mod speculation;
pub mod template;
pub mod text_files;
pub mod values;
pub mod witness_store;
pub mod work;
