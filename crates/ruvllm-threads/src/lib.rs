//! Threads and memory for kernels: a [`ThreadPool`] for short parallel regions, slices that workers share, aligned buffers and
//! large pages, and prefetches.
//!
//! It knows no kernels, instruction sets, formats, files or models. Nothing here is logged.
//!
//! ```
//! use ruvllm_threads::{ThreadPool, arena::AlignedVec};
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
pub mod prefetch;

mod clock;
mod pool;

pub use pool::{ByColumn, ColumnsMut, NextShares, SharedSlice, ThreadPool, share};
