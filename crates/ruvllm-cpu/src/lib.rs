//! Parts of a CPU that kernels stand on: instruction sets ([`Isa`]), vectors of 16 floats ([`lanes`]), a [`ThreadPool`] for short
//! parallel regions, slices that workers share, aligned buffers and large pages, and prefetches.
//!
//! It knows no kernels, formats, files or models. Nothing here is logged.
//!
//! ```
//! use ruvllm_cpu::{ThreadPool, arena::AlignedVec};
//!
//! let (threads, row) = (ThreadPool::new(2), AlignedVec::<f32>::new(64));
//! let n_zeros = std::sync::atomic::AtomicUsize::new(0);
//! threads.for_each(row.len(), 16, &|range, _worker| {
//!     let zeros = row[range].iter().filter(|&&x| x == 0.0).count();
//!     n_zeros.fetch_add(zeros, std::sync::atomic::Ordering::Relaxed);
//! });
//! assert_eq!(n_zeros.into_inner(), 64);
//! ```

pub mod arena;
#[cfg(target_arch = "x86_64")]
pub mod family;
#[cfg(any(test, all(target_family = "wasm", target_os = "unknown")))]
pub mod host;
pub mod isa;
pub mod lanes;
pub mod prefetch;

mod clock;
mod compute;
mod pool;

pub use compute::Compute;
pub use isa::Isa;
pub use pool::{ByColumn, ColumnsMut, NextShares, SharedSlice, ThreadPool, share};
