//! Memory that workers prefetch while they wait.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::prefetch::{CacheLevel, LINE_BYTES};

/// Addresses that each worker reads after the next region: its share of the next product's weights.
///
/// It holds addresses and borrows nothing: a prefetch of memory that is gone does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NextShares {
    /// By worker.
    shares: Box<[Range<usize>]>,
}

impl NextShares {
    /// Returns the addresses of each worker.
    pub fn shares(&self) -> &[Range<usize>] {
        &self.shares
    }
}

impl FromIterator<Range<usize>> for NextShares {
    /// Takes the addresses that each worker will read.
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(shares: I) -> NextShares {
        NextShares { shares: shares.into_iter().collect() }
    }
}

/// Bytes that a worker prefetches at most: they leave room in its L2 for what it is working on.
const BYTES_MAX: usize = 128 * 1024;

/// Bytes prefetched between two checks whether the wait is over: they arrive in about 30 ns.
const STEP_BYTES: usize = 512;

/// Next share of one worker. The two addresses need not be seen together: a prefetch of a mixture is merely useless.
#[derive(Debug, Default)]
pub(super) struct NextShare {
    start: AtomicUsize,
    end: AtomicUsize,
}

/// Progress of a worker's prefetches.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    seen: Cell<usize>,
    next: Cell<usize>,
    end: Cell<usize>,
}

impl NextShare {
    pub(super) fn set(&self, share: &Range<usize>) {
        self.end.store(share.end, Ordering::Relaxed);
        self.start.store(share.start, Ordering::Relaxed);
    }

    /// Returns the first address, if there is one.
    pub(super) fn start(&self) -> Option<usize> {
        Some(self.start.load(Ordering::Relaxed)).filter(|&start| start != 0)
    }

    /// Prefetches the next few lines into L2. Returns false when all of them were prefetched.
    pub(super) fn prefetch(&self, cursor: &Cursor) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        if start != cursor.seen.get() {
            cursor.seen.set(start);
            cursor.next.set(start);
            cursor.end.set(self.end.load(Ordering::Relaxed).min(start.saturating_add(BYTES_MAX)));
        }
        let next = cursor.next.get();
        if next >= cursor.end.get() {
            return false;
        }
        let step = next..next.saturating_add(STEP_BYTES);
        cursor.next.set(step.end);
        step.step_by(LINE_BYTES).for_each(|line| CacheLevel::L2.prefetch(line as *const u8));
        true
    }
}
