//! Prefetching: the policy of the machine, and plans of what is read next.

#[cfg(feature = "matmul")]
mod cursor;
mod plan;

#[cfg(feature = "matmul")]
pub(crate) use cursor::PlanCursor;
pub use plan::PrefetchPlan;

use ruvllm_cpu::prefetch::CacheLevel;

#[cfg(target_arch = "x86_64")]
use ruvllm_cpu::family;

/// Prefetch policy of a core for memory that it streams through once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// The level of cache that memory is prefetched into.
    pub(crate) level: CacheLevel,
    /// Whether one stream arrives faster than two at a time.
    pub(crate) is_single: bool,
}

impl Streaming {
    /// Returns what is best for the machine's cores, as far as they were measured.
    ///
    /// A core has so many misses of its first-level cache under way at once, and those of the second level in addition.
    /// AMD's Zen 4 has 24 of the former: lines prefetched into the first level come at 24 x 64 bytes in a latency of some
    /// 110 ns, which is 14 GB/s a core however far ahead, where the second level's queue lets it read 20. Cores that
    /// have more of them gain from having the lines nearer. Both read a single stream faster than two
    /// (`docs/lab/prefetch.md`).
    pub(crate) fn of_machine() -> Streaming {
        #[cfg(target_arch = "x86_64")]
        {
            match family::amd_family() {
                Some(..family::ZEN_5) => Streaming { level: CacheLevel::L2, is_single: true },
                Some(_) => Streaming { level: CacheLevel::L1, is_single: true },
                None => Streaming { level: CacheLevel::L1, is_single: false },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Streaming { level: CacheLevel::L1, is_single: false }
    }
}
