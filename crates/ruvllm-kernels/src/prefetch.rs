//! Asking for memory before it is read. An address may lead anywhere: asking for memory that is gone does nothing.

#[cfg(target_arch = "x86_64")]
use crate::cpu;

/// Bytes of a cache line, which is what is asked for at once.
pub(crate) const LINE_BYTES: usize = 64;

/// The level of cache that memory is asked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// The first.
    First,
    /// The second.
    Second,
}

impl Level {
    /// Asks for the cache line at `from`.
    #[inline(always)]
    pub(crate) fn prefetch<T>(self, from: *const T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address is allowed; every x86-64 has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            match self {
                Level::First => _mm_prefetch::<_MM_HINT_T0>(from.cast()),
                Level::Second => _mm_prefetch::<_MM_HINT_T1>(from.cast()),
            }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch of any address is allowed; the intrinsic for it is not stable.
        unsafe {
            use std::arch::asm;
            match self {
                Level::First => {
                    asm!("prfm pldl1keep, [{from}]", from = in(reg) from, options(nostack, readonly, preserves_flags));
                }
                Level::Second => {
                    asm!("prfm pldl2keep, [{from}]", from = in(reg) from, options(nostack, readonly, preserves_flags));
                }
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = from;
    }
}

/// Asks for the cache line at `at` as one's own, to be written to next.
#[inline(always)]
pub(crate) fn for_writing<T>(at: *const T) {
    use std::arch::asm;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch of any address is allowed; every x86-64 has it, as a no-op at least. The intrinsic asks for
    // ownership only where the build supposes a newer CPU.
    unsafe {
        asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch of any address is allowed; the intrinsic for it is not stable.
    unsafe {
        asm!("prfm pstl1keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Asks for some memory, a few KiB at most, that is read soon and was long ago, or that another core has written.
pub fn prefetch<T>(memory: &[T]) {
    let start = memory.as_ptr().cast::<u8>();
    (0..size_of_val(memory)).step_by(LINE_BYTES).for_each(|at| Level::First.prefetch(start.wrapping_add(at)));
}

/// How a core best reads memory that it streams through once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// The level of cache that memory is asked into.
    pub(crate) level: Level,
    /// Whether one stream comes faster than two side by side.
    pub(crate) is_single: bool,
}

impl Streaming {
    /// Returns what is best for the machine's cores, as far as they were measured.
    ///
    /// A core has so many misses of its first-level cache under way at once, and those of the second level beside them.
    /// AMD's Zen 4 has 24 of the former: lines asked into the first level come at 24 x 64 bytes in a latency of some
    /// 110 ns, which is 14 GB/s a core however far ahead, where the second level's queue lets it read 20. Cores that
    /// have more of them gain from having the lines nearer. Both read a single stream faster than two
    /// (`docs/lab/prefetch.md`).
    pub(crate) fn of_machine() -> Streaming {
        #[cfg(target_arch = "x86_64")]
        {
            match cpu::amd_family() {
                Some(..cpu::ZEN_5) => Streaming { level: Level::Second, is_single: true },
                Some(_) => Streaming { level: Level::First, is_single: true },
                None => Streaming { level: Level::First, is_single: false },
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Streaming { level: Level::First, is_single: false }
    }
}
