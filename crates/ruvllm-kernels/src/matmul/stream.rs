//! Order in which workers read weights, for prefetching them.

#[cfg(target_arch = "x86_64")]
use super::format::Format;
use super::region::Plan;
use super::{MAX_PRODUCTS, Matrix};
use crate::prefetch::PlanCursor;
#[cfg(target_arch = "x86_64")]
use crate::prefetch::Streaming;
use ruvllm_cpu::NextShares;
#[cfg(target_arch = "x86_64")]
use ruvllm_cpu::prefetch::{CacheLevel, LINE_BYTES};

/// Bytes from the weights in use to those prefetched from memory: about a memory latency of work, and what other streams
/// leave of the level of cache.
#[cfg(target_arch = "x86_64")]
const fn memory_distance(level: CacheLevel) -> usize {
    match level {
        CacheLevel::L1 => 16 * 1024,
        CacheLevel::L2 => 24 * 1024,
    }
}

/// Bytes from the weights in use to those prefetched from L2 into L1.
#[cfg(target_arch = "x86_64")]
const L2_DISTANCE: usize = 2048;

/// Weights that a worker reads one after another: after the last panel of its share it goes on with its next share, which
/// seldom lies next.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "other rows leave prefetching to the hardware"))]
pub(super) struct Stream<'a> {
    /// Address where the share ends.
    end: usize,
    /// Address where the next share begins.
    next: usize,
    /// Plan of what else is prefetched.
    plan: Option<&'a PlanCursor<'a>>,
}

impl<'a> Stream<'a> {
    /// Makes a stream without a next share.
    pub(super) fn straight() -> Stream<'a> {
        Stream { end: usize::MAX, next: 0, plan: None }
    }

    /// Makes a stream of a share that ends at `end`, with the address where the next one begins.
    pub(super) fn until(end: usize, next: usize) -> Stream<'a> {
        Stream { end, next, plan: None }
    }

    /// Sets the plan of what else is prefetched.
    pub(super) fn with<'b>(self, plan: Option<&'b PlanCursor<'b>>) -> Stream<'b> {
        Stream { end: self.end, next: self.next, plan }
    }
}

/// Prefetches of a pass over some panels.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Prefetcher<'a> {
    stream: Stream<'a>,
    level: CacheLevel,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Prefetcher<'a> {
    #[inline(always)]
    pub(super) fn new(stream: Stream<'a>) -> Prefetcher<'a> {
        Prefetcher { stream, level: Streaming::of_machine().level }
    }

    /// Prefetches what is read some time after block `b` of `panel`.
    #[inline(always)]
    pub(super) fn prefetch<F: Format>(self, panel: *const u8, b: usize) {
        let Stream { end, next, plan } = self.stream;
        let block_bytes = F::GROUP_BYTES / F::GROUP;
        let at = (panel as usize).wrapping_add(b * block_bytes);
        let far = at.wrapping_add(memory_distance(self.level));
        let far = if far < end { far } else { far.wrapping_sub(end).wrapping_add(next) };
        let prefetch = |level: CacheLevel, at: usize| {
            for line in 0..block_bytes.div_ceil(LINE_BYTES) {
                level.prefetch(at.wrapping_add(LINE_BYTES * line) as *const u8);
            }
        };
        prefetch(self.level, far);
        if self.level == CacheLevel::L2 {
            prefetch(CacheLevel::L1, at.wrapping_add(L2_DISTANCE));
        }
        if let Some(plan) = plan {
            plan.step();
        }
    }
}

/// Returns whether so many activation rows go through one panel after the other, each a straight stream; else two panels
/// share the loads of activations.
#[cfg(target_arch = "x86_64")]
pub(super) fn is_single(n_rows: usize) -> bool {
    // Eight rows go through one panel after the other anyway, and more of them are bound by arithmetic.
    const STREAMED_ROWS: usize = 7;
    n_rows <= STREAMED_ROWS && Streaming::of_machine().is_single
}

/// Returns what each worker of a pool of `n_threads` reads in [`matmul_many`](super::matmul_many) of these matrices and one
/// activation row: see [`ThreadPool::set_next`](ruvllm_cpu::ThreadPool::set_next).
pub fn next_shares(n_threads: usize, matrices: &[&Matrix]) -> NextShares {
    let plan = Plan::<MAX_PRODUCTS>::of_one_row(n_threads, matrices);
    (0..n_threads)
        .map(|worker| {
            let units = plan.share(worker);
            let (start, end) = (plan.address(units.start), plan.address(units.end));
            // A share that lies in matrices apart from each other is followed to the end of the first.
            if start <= end { start..end } else { start..start }
        })
        .collect()
}
