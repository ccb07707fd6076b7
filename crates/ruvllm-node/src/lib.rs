//! RuvLLM in Node: the server of `ruvllm serve` in the process of a JavaScript program, without a socket.
//!
//! The addon is small: [`NativeLoading::engine`] brings the models as the command does, [`NativeEngine::call`] takes a request as it stands in the HTTP
//! API, and [`NativeCall`] gives its answer in pieces. Everything that is typed stands above it in JavaScript (`js/`).
//!
//! Nothing here waits on the thread of JavaScript: requests run on tokio's threads, and engines on their own.

// `#[napi]` writes the calls of Node's C interface; nothing else here is unsafe.
#![deny(unsafe_op_in_unsafe_fn)]

mod call;
mod engine;
mod error;
mod load;
mod options;
mod progress;

pub use call::{NativeCall, ResponseHead};
pub use engine::NativeEngine;
pub use load::{NativeLoading, load};
pub use options::{OptionInfo, options, version};
pub use progress::ProgressEvent;
