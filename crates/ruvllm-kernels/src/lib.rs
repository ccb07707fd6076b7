//! Kernels of RuvLLM: dequantisation, packed matmul, attention, norms, RoPE,
//! and activations. Slices in, slices out.
//!
//! Every kernel is a folder with a static table of implementations, best first; [`Isa`] names the rows. What is the same for all
//! instruction sets is written once over 16 floats or bytes, the rest has a file for each. This crate knows no files, models, tokens or logging.
//!
//! ```
//! use ruvllm_kernels::matmul::{self, Acts, Matrix};
//! use ruvllm_kernels::{GgmlType, Isa, dequant};
//! use ruvllm_cpu::ThreadPool;
//!
//! // A matrix of one row: a Q8_0 block with scale 0.5 and quants 0, 1, .. 31.
//! let mut block = 0x3800u16.to_le_bytes().to_vec();
//! block.extend(0..32u8);
//!
//! let mut row = [0.0; 32];
//! dequant::pick(Isa::best()).dequantize(GgmlType::Q8_0, &block, &mut row);
//! assert_eq!(row[31], 15.5);
//!
//! let (kernels, threads) = (matmul::pick(Isa::best()), ThreadPool::new(2));
//! let w = Matrix::new(kernels, &threads, GgmlType::Q8_0, 1, 32, block.into());
//! let mut x = Acts::new(32, 1);
//! x.set(kernels, &threads, &[1.0; 32], 1, 32, w.act_format()); // quantised once, for every matrix that reads it
//! let mut y = [0.0];
//! matmul::matmul(&threads, &w, &x, &mut y);
//! assert!((y[0] / row.iter().sum::<f32>() - 1.0).abs() < 0.005); // what is not large in a block has 8 bits
//! ```

pub mod isa;

pub mod activation;
pub mod attention;
pub mod dequant;
pub mod distance;
mod lanes;
pub mod lowrank;
#[cfg(feature = "matmul")]
pub mod matmul;
pub mod norm;
pub mod prefetch;
pub mod rope;
pub mod softmax;

pub use isa::Dispatch;
pub use ruvllm_cpu::{Compute, Isa};
pub use ruvllm_ggml::{self as block, GgmlType};

/// Version of the numbers: two builds of one version compute the same bits on the same instruction set, of the same weights in
/// the same panels. Caches on disk are kept over updates that leave it as it is. To be raised with every change of results or
/// of the form of packed weights, however small; tests here and in `ruvllm-native` compare with recorded bits.
pub const NUMERICS_VERSION: u32 = 2;
