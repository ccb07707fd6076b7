//! Kernels of RuvLLM: GGML block formats, dequantisation, packed matmul, attention, norms, RoPE,
//! activations, the thread team and the arena. Slices in, slices out.
//!
//! Every kernel is a folder with one file per instruction set and a static table of
//! implementations, best first; [`Isa`] names the rows, [`Kernels`] holds one row of each.
//! This crate knows no files, models, tokens or logging.

pub mod isa;

pub mod activation;
pub mod arena;
pub mod attention;
pub mod block;
pub mod dequant;
pub mod matmul;
pub mod norm;
pub mod rope;
pub mod softmax;
pub mod team;

pub use block::GgmlType;
pub use isa::Isa;
