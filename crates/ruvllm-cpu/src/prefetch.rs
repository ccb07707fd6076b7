//! Prefetches into the caches. An address may lead anywhere: a prefetch of memory that is gone does nothing.

/// Bytes of a cache line, the unit of a prefetch.
pub const LINE_BYTES: usize = 64;

/// CacheLevel of cache that memory is prefetched into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLevel {
    /// The first-level cache.
    L1,
    /// The second-level cache.
    L2,
}

impl CacheLevel {
    /// Prefetches the cache line at `from`.
    #[inline(always)]
    pub fn prefetch<T>(self, from: *const T) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address is allowed; every x86-64 has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
            match self {
                CacheLevel::L1 => _mm_prefetch::<_MM_HINT_T0>(from.cast()),
                CacheLevel::L2 => _mm_prefetch::<_MM_HINT_T1>(from.cast()),
            }
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch of any address is allowed; the intrinsic for it is not stable.
        unsafe {
            use std::arch::asm;
            match self {
                CacheLevel::L1 => {
                    asm!("prfm pldl1keep, [{from}]", from = in(reg) from, options(nostack, readonly, preserves_flags));
                }
                CacheLevel::L2 => {
                    asm!("prfm pldl2keep, [{from}]", from = in(reg) from, options(nostack, readonly, preserves_flags));
                }
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = from;
    }
}

/// Prefetches the cache line at `at` for writing: the core owns it when it arrives.
#[inline(always)]
pub fn for_writing<T>(at: *const T) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
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

/// Prefetches some memory into L1: a few KiB at most, last read long ago or written by another core.
pub fn prefetch<T>(memory: &[T]) {
    let start = memory.as_ptr().cast::<u8>();
    (0..size_of_val(memory)).step_by(LINE_BYTES).for_each(|at| CacheLevel::L1.prefetch(start.wrapping_add(at)));
}
