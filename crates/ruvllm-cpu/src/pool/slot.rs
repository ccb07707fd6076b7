//! State that the caller of a pool and one worker share.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::next::NextShare;
use crate::prefetch;

/// Closure that a region runs, borrowed from the caller of a [`ThreadPool`](super::ThreadPool).
pub(super) type Job = *const (dyn Fn(usize) + Sync);

/// All that the caller and one worker exchange, on one cache line: it goes to the worker when a region opens and
/// comes back when the worker is done. Cores that share no cache hand over a line in 250 ns, and a decode step has a
/// hundred regions.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct WorkerSlot {
    /// The number of the last region in bits 2 and up, and the worker's part in it in the others.
    state: AtomicU64,
    /// Chunks that the worker has left of a region that is cut in chunks.
    pub(super) chunks: Chunks,
    /// Memory that the worker prefetches while it waits.
    pub(super) next_share: NextShare,
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is written by the pool's caller only while the worker is in no region, and read by the worker only after it
// has joined one, which comes after the write; the closure it points to is `Sync`.
unsafe impl Sync for WorkerSlot {}
// SAFETY: as above; the pointer is used only while the region that set it has not returned.
unsafe impl Send for WorkerSlot {}

/// Phase in the low bits of a slot's state: the worker is done with the region, or it was closed without the worker.
const OVER: u64 = 0;
/// The worker may join.
const OPEN: u64 = 1;
/// The worker is in it.
const JOINED: u64 = 2;
/// There will be no more regions.
const STOPPED: u64 = 3;
const PHASE_BITS: u32 = 2;

fn phase(state: u64) -> u64 {
    state & ((1 << PHASE_BITS) - 1)
}

fn number(state: u64) -> u64 {
    state >> PHASE_BITS
}

/// Signal of the caller to a worker.
pub(super) enum Signal {
    /// A region, which the worker has joined.
    Region(Job),
    /// A region that was closed meanwhile.
    Missed,
    /// The end.
    Stop,
}

impl WorkerSlot {
    /// Opens the next region for the worker. It sees all that was written before.
    ///
    /// # Safety
    /// The worker must be in no region, and `job` must stay alive until the region was closed and [`WorkerSlot::is_in`]
    /// returned false.
    pub(super) unsafe fn open(&self, job: Job) {
        // SAFETY: the worker reads it only in a region, as the caller promises.
        unsafe { *self.job.get() = Some(job) };
        self.next(OPEN);
    }

    /// Tells the worker to end.
    pub(super) fn stop(&self) {
        self.next(STOPPED);
    }

    fn next(&self, phase: u64) {
        let next = number(self.state.load(Ordering::Relaxed)) + 1;
        self.state.store(next << PHASE_BITS | phase, Ordering::Release);
    }

    /// Closes the region to the worker, unless it has joined.
    pub(super) fn close(&self) {
        let close = |state| (phase(state) == OPEN).then_some(state & !OPEN);
        // An error means that the worker was faster.
        let _ = self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, close);
    }

    /// Returns whether the worker is in the region.
    pub(super) fn is_in(&self) -> bool {
        phase(self.state.load(Ordering::SeqCst)) == JOINED
    }

    /// Returns whether the worker has joined the region and is done.
    pub(super) fn is_over(&self) -> bool {
        phase(self.state.load(Ordering::SeqCst)) == OVER
    }

    /// Returns whether a signal has come after region `seen`. The worker polls it: the line arrives owned at once, and
    /// joining costs no second transfer.
    pub(super) fn has_signal(&self, seen: u64) -> bool {
        prefetch::for_writing(self);
        number(self.state.load(Ordering::SeqCst)) != seen
    }

    /// Joins the region if it is open. Returns its number as well.
    pub(super) fn join(&self) -> (u64, Signal) {
        let join = |state| (phase(state) == OPEN).then_some(state ^ OPEN ^ JOINED);
        match self.state.fetch_update(Ordering::SeqCst, Ordering::SeqCst, join) {
            // SAFETY: joining synchronises with the opening, which came after the write; it is written again only after
            // the worker has left.
            Ok(state) => (number(state), Signal::Region(unsafe { *self.job.get() }.expect("a region has its job"))),
            Err(state) if phase(state) == STOPPED => (number(state), Signal::Stop),
            Err(state) => (number(state), Signal::Missed),
        }
    }

    /// Leaves region `number`, which the worker has joined. No other thread wrote the state meanwhile.
    pub(super) fn leave(&self, number: u64) {
        self.state.store(number << PHASE_BITS | OVER, Ordering::Release);
    }
}

/// Chunks that are left of a worker's share: the first in the low half, the end in the high half.
#[derive(Debug, Default)]
pub(super) struct Chunks(AtomicU64);

impl Chunks {
    pub(super) fn set(&self, chunks: Range<usize>) {
        self.0.store(chunks.start as u64 | (chunks.end as u64) << 32, Ordering::Relaxed);
    }

    /// Takes the first half of the chunks, or only one. A claim costs more than its instruction: the core finishes what
    /// it reads before it goes on (one chunk at a time was 6 % of decoding SmolLM2 on a Zen 5).
    pub(super) fn take_first(&self, single: bool) -> Option<Range<usize>> {
        self.take(|start, end| start..if single { start + 1 } else { start + (end - start).div_ceil(2) })
    }

    /// Takes the last chunk.
    pub(super) fn take_last(&self) -> Option<Range<usize>> {
        self.take(|_, end| end - 1..end)
    }

    /// Takes what `which` picks of the chunks that are left, at one end of them.
    fn take(&self, which: impl Fn(u64, u64) -> Range<u64>) -> Option<Range<usize>> {
        let mut old = self.0.load(Ordering::Relaxed);
        loop {
            let (start, end) = (old & u64::from(u32::MAX), old >> 32);
            if start >= end {
                return None;
            }
            let taken = which(start, end);
            let left = if taken.start == start { taken.end..end } else { start..taken.start };
            // Only the count is shared: results of chunks are published by the worker that leaves the region.
            match self.0.compare_exchange_weak(old, left.start | left.end << 32, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken.start as usize..taken.end as usize),
                Err(now) => old = now,
            }
        }
    }
}
