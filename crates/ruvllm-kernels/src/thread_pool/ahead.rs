//! Memory that workers bring near while they wait.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::prefetch::{LINE_BYTES, Level};

/// Prefetch plan: the weights of the next product that each worker reads soon.
///
/// It holds addresses and borrows nothing: asking for memory that is gone does nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upcoming {
    /// By worker.
    pub(crate) shares: Box<[Range<usize>]>,
}

impl FromIterator<Range<usize>> for Upcoming {
    /// Takes the addresses that each worker will read.
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(shares: I) -> Upcoming {
        Upcoming { shares: shares.into_iter().collect() }
    }
}

/// Bytes that a worker asks for at most: what leaves room in a second-level cache for what it is working on.
const MOST_BYTES: usize = 128 * 1024;

/// Bytes asked for between two looks at whether the wait is over: they come in about 30 ns.
const STEP_BYTES: usize = 512;

/// What one worker is told to expect. The two addresses need not be seen together: what is asked for by a mixture is
/// only of no use.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    start: AtomicUsize,
    end: AtomicUsize,
}

/// How far a worker has asked for it.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    seen: Cell<usize>,
    next: Cell<usize>,
    end: Cell<usize>,
}

impl Ahead {
    pub(super) fn set(&self, share: &Range<usize>) {
        self.end.store(share.end, Ordering::Relaxed);
        self.start.store(share.start, Ordering::Relaxed);
    }

    /// Returns the first address, if there is one.
    pub(super) fn start(&self) -> Option<usize> {
        Some(self.start.load(Ordering::Relaxed)).filter(|&start| start != 0)
    }

    /// Asks for the next few lines. Returns false when there are enough.
    pub(super) fn fetch(&self, cursor: &Cursor) -> bool {
        let start = self.start.load(Ordering::Relaxed);
        if start != cursor.seen.get() {
            cursor.seen.set(start);
            cursor.next.set(start);
            cursor.end.set(self.end.load(Ordering::Relaxed).min(start.saturating_add(MOST_BYTES)));
        }
        let next = cursor.next.get();
        if next >= cursor.end.get() {
            return false;
        }
        let step = next..next.saturating_add(STEP_BYTES);
        cursor.next.set(step.end);
        step.step_by(LINE_BYTES).for_each(|line| Level::Second.prefetch(line as *const u8));
        true
    }
}
