//! The paged KV cache of RuvLLM: who owns which block.
//!
//! The KV cache of all sequences lies in one [`BlockPool`], in blocks of 16 positions for all attention layers at
//! once. A [`Sequence`] is a page table: position `p` is slot `p % 16` of its block `p / 16`. Blocks are counted
//! references, so sequences can share a prefix ([`BlockPool::fork`]) and write on without seeing each other: the first
//! block that would be written while shared is copied.
//!
//! A [`PrefixCache`] keeps the blocks of sequences that have ended in a radix tree over their tokens, by [`Namespace`],
//! and gives them to sequences that start alike; what nobody uses is evicted when blocks are missing.
//!
//! At any time `free + in_use == total`, where the cache is an owner like any other. A block's memory is touched when
//! its positions are first written, so a pool for the longest context costs what is used of it.
//!
//! This crate knows no attention maths, models or requests; layout and arithmetic are
//! [`ruvllm_kernels::attention`]'s.
//!
//! ```
//! use ruvllm_kernels::attention::{self, Inputs, Limits, Options, Scratch};
//! use ruvllm_kernels::Isa;
//! use ruvllm_cpu::ThreadPool;
//! use ruvllm_kvcache::{BlockPool, KvLayout, KvFormat, LayerKv};
//!
//! let shape = LayerKv { n_kv_heads: 1, k_dim: 8, v_dim: 8 };
//! let mut pool = BlockPool::new(&KvLayout { layers: vec![shape; 2] }, KvFormat::F16, 64);
//! let mut sequence = pool.sequence(1024);
//!
//! // One step of three rows through layer 1.
//! let (threads, options) = (ThreadPool::new(2), Options::causal(2, shape));
//! let limits = Limits { n_heads: 2, k_dim: 8, v_dim: 8, n_ctx: 1024 };
//! let mut scratch = Scratch::new(threads.n_threads(), limits);
//! let (q, k, v, mut out) = ([0.5; 3 * 16], [0.5; 3 * 8], [0.25; 3 * 8], [0.0; 3 * 16]);
//! pool.reserve(&mut sequence, 3)?;
//! let segments = [sequence.segment(0, 3)];
//! pool.write_rows(&threads, 1, &segments, &k, &v);
//! let inputs = Inputs { options: &options, kv: pool.layer(1), segments: &segments, q: &q };
//! attention::attend(attention::pick(Isa::best()), &threads, &mut scratch, &inputs, &mut out);
//! sequence.advance(3);
//!
//! assert_eq!(out, [0.25; 3 * 16]);
//! assert_eq!((pool.stats().in_use, pool.stats().free), (1, 63));
//! drop(sequence);
//! assert_eq!(pool.stats().free, 64);
//! # Ok::<(), ruvllm_kvcache::KvError>(())
//! ```

mod bits;
mod block;
mod budget;
#[cfg(feature = "disk")]
pub mod disk;
mod error;
mod key;
mod policy;
mod pool;
mod prefix;
#[cfg(any(test, not(feature = "disk")))]
mod process_names;
mod radix;
mod stats;
mod table;

pub use block::PoolStats;
pub use budget::{Level, MemoryBudget, Owner, PAGE_BYTES, Pressure, Relief};
pub use error::{DiskFault, KvError, KvErrorKind};
pub use key::{Namespace, NamespaceBuilder};
pub use policy::{Ageing, KvPolicy, Move};
pub use pool::{BlockPool, KvLayout, PageLender, Quantizer};
pub use prefix::{CachedPrefix, PrefixCache, PrefixEntry, StoredBlock};
pub use ruvllm_kernels::attention::{BLOCK_TOKENS, KvBlock, KvFormat, KvShape as LayerKv};
pub use stats::{CacheStats, Usage};
pub use table::Sequence;
