//! The order in which workers read weights, so that they are asked for before they are needed.

use super::format::Format;
use super::{Matrix, Plan};
use crate::team::Upcoming;

/// How far ahead of use weights are asked for, in bytes: about a memory latency of work.
const AHEAD_BYTES: usize = 16 * 1024;

/// Where a worker that reads panels goes on after the last one of its share: the weights it needs next are seldom those
/// that lie next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Address where the share ends.
    end: usize,
    /// Address where reading goes on.
    next: usize,
}

impl Stream {
    /// Reading goes on at `next` after `end`.
    pub(super) fn turning(end: usize, next: usize) -> Stream {
        Stream { end, next }
    }

    /// Reading goes on where it is.
    pub(super) fn straight() -> Stream {
        Stream { end: usize::MAX, next: 0 }
    }

    /// Asks for what will be read some time after block `b` of `panel`. The first tile of a panel does it; later ones
    /// find it in cache.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(super) fn prefetch<F: Format>(self, panel: *const u8, b: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let block_bytes = F::GROUP_BYTES / F::GROUP;
        let at = (panel as usize).wrapping_add(AHEAD_BYTES + b * block_bytes);
        let at = if at < self.end { at } else { at.wrapping_sub(self.end).wrapping_add(self.next) };
        for line in 0..block_bytes.div_ceil(64) {
            // SAFETY: a prefetch of any address is allowed; every x86-64 has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line) as *const i8) };
        }
    }
}

/// Returns what [`matmul_many`](super::matmul_many) of these matrices and one activation row will read, by the workers
/// of a team of `n_threads`: see [`Team::expect`](crate::team::Team::expect).
pub fn upcoming(n_threads: usize, matrices: &[&Matrix]) -> Upcoming {
    let plan = Plan::new(n_threads, 1, matrices.iter().copied());
    (0..n_threads)
        .map(|worker| {
            let units = plan.share(worker);
            let (start, end) = (plan.address(units.start), plan.address(units.end));
            // A share that lies in matrices apart from each other is followed to the end of the first.
            if start <= end { start..end } else { start..start }
        })
        .collect()
}
