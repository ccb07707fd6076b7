//! The order in which workers read weights, so that they are asked for before they are needed.

use super::beside::Fetch;
#[cfg(target_arch = "x86_64")]
use super::format::Format;
use super::{Matrix, Plan};
use crate::prefetch::Streaming;
use ruvllm_threads::NextShares;
#[cfg(target_arch = "x86_64")]
use ruvllm_threads::prefetch::{LINE_BYTES, Level};

/// How far ahead of use weights are asked for, in bytes: about a memory latency of work, and what is left of the level of
/// cache by other streams.
#[cfg(target_arch = "x86_64")]
const fn ahead_bytes(level: Level) -> usize {
    match level {
        Level::L1 => 16 * 1024,
        Level::L2 => 24 * 1024,
    }
}

/// How far ahead weights that are in the second level are asked into the first.
#[cfg(target_arch = "x86_64")]
const NEAR_BYTES: usize = 1024;

/// Where a worker that reads panels goes on after the last one of its share: the weights it needs next are seldom those
/// that lie next.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "other rows leave reading ahead to the hardware"))]
pub(super) struct Stream<'a> {
    /// Address where the share ends.
    end: usize,
    /// Address where reading goes on.
    next: usize,
    /// What else is asked for.
    beside: Option<&'a Fetch<'a>>,
}

impl<'a> Stream<'a> {
    /// Reading goes on at `next` after `end`.
    pub(super) fn turning(end: usize, next: usize) -> Stream<'a> {
        Stream { end, next, beside: None }
    }

    /// Reading goes on where it is.
    pub(super) fn straight() -> Stream<'a> {
        Stream { end: usize::MAX, next: 0, beside: None }
    }

    /// The same while other memory is asked for.
    pub(super) fn with<'b>(self, beside: Option<&'b Fetch<'b>>) -> Stream<'b> {
        Stream { end: self.end, next: self.next, beside }
    }
}

/// What a pass over some panels asks for.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    stream: Stream<'a>,
    level: Level,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Ahead<'a> {
    #[inline(always)]
    pub(super) fn new(stream: Stream<'a>) -> Ahead<'a> {
        Ahead { stream, level: Streaming::of_machine().level }
    }

    /// Asks for what will be read some time after block `b` of `panel`.
    #[inline(always)]
    pub(super) fn prefetch<F: Format>(self, panel: *const u8, b: usize) {
        let Stream { end, next, beside } = self.stream;
        let block_bytes = F::GROUP_BYTES / F::GROUP;
        let at = (panel as usize).wrapping_add(b * block_bytes);
        let far = at.wrapping_add(ahead_bytes(self.level));
        let far = if far < end { far } else { far.wrapping_sub(end).wrapping_add(next) };
        let ask = |level: Level, at: usize| {
            for line in 0..block_bytes.div_ceil(LINE_BYTES) {
                level.prefetch(at.wrapping_add(LINE_BYTES * line) as *const u8);
            }
        };
        ask(self.level, far);
        if self.level == Level::L2 {
            ask(Level::L1, at.wrapping_add(NEAR_BYTES));
        }
        if let Some(beside) = beside {
            beside.step();
        }
    }
}

/// Returns how many panels a job with so many activation rows has: two share the loads of activations, one is a straight
/// stream.
pub(super) fn panels_at_once(n_rows: usize) -> usize {
    // Eight rows go through one panel after the other anyway, and more of them are bound by arithmetic.
    const STREAMED_ROWS: usize = 7;
    if n_rows <= STREAMED_ROWS && Streaming::of_machine().is_single { 1 } else { 2 }
}

/// Returns what each worker of a pool of `n_threads` reads in [`matmul_many`](super::matmul_many) of these matrices and one
/// activation row: see [`ThreadPool::set_next`](ruvllm_threads::ThreadPool::set_next).
pub fn next_shares(n_threads: usize, matrices: &[&Matrix]) -> NextShares {
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
