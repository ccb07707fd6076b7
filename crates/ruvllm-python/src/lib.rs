//! RuvLLM in Python: the server of `ruvllm serve` in the process of a Python program, without a socket.
//!
//! The module is small: [`load()`] brings the models as the command does, [`NativeEngine`] takes a request as it stands in the
//! HTTP API, and [`NativeCall`] gives its answer in pieces. Logits and embeddings come as [`Floats`], which NumPy reads in place.
//! Everything that is typed stands above it in Python (`python/ruvllm/`).
//!
//! A [`Pending`] is something that takes time: a program waits for it on its thread, which lets go of the interpreter's lock, or has a
//! function called when it is there. Requests run on tokio's threads, and engines on their own.

#![forbid(unsafe_code)]

mod call;
mod engine;
mod error;
mod floats;
mod option_info;
mod pending;
mod progress;
mod runtime;

use pyo3::prelude::*;

pub use call::NativeCall;
pub use engine::{NativeEngine, load};
pub use floats::Floats;
pub use option_info::{options, version};
pub use pending::Pending;
pub use runtime::end;

/// The module `ruvllm._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use super::{Floats, NativeCall, NativeEngine, Pending, end, load, options, version};
}
