//! What commands have in common: options, models and their sources, output, errors.

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
#[cfg(any(test, feature = "otlp"))]
pub mod genai;
pub mod gpus;
pub mod grammar;
pub mod hub;
pub mod interrupt;
pub mod learning;
pub mod log;
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
pub mod signing_key;
pub mod template;
pub mod text_files;
pub mod values;
pub mod witness_store;
pub mod work;
