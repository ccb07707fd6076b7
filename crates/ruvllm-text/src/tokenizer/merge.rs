//! Merging neighbours, best first: the loop that byte-pair encoding and SentencePiece's unigram-by-score share.
//!
//! ```text
//! symbols = the word's bytes or characters, in a doubly linked list
//! queue   = every pair of neighbours that may merge, best first, leftmost among equals
//! while the queue gives a pair whose two symbols are still what they were:
//!     merge it into the left one; queue the new symbol with each of its neighbours
//! ```
//! Every merge queues two pairs at most, so a word of `n` symbols costs `O(n log n)`.

use std::collections::BinaryHeap;
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// A piece of the word: what it is and where it lies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol {
    /// The number of its text, [`Symbol::UNKNOWN`] where it has none.
    pub(super) id: u32,
    /// First byte in the word.
    pub(super) start: u32,
    /// Length in bytes; 0 once it is merged into the symbol before it.
    pub(super) len: u32,
    prev: u32,
    next: u32,
}

impl Symbol {
    /// The `id` of a text that has no number: it never merges.
    pub(super) const UNKNOWN: u32 = u32::MAX;

    /// Returns where the symbol lies in the word.
    pub(super) fn range(&self) -> Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }
}

/// Two neighbours that may merge. Ordered so that the greatest is merged first: highest `rank`, then leftmost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    rank: u32,
    leftness: u32,
    right: u32,
    left_id: u32,
    right_id: u32,
    merged_id: u32,
}

/// The linked list and the queue, kept between words for their memory.
#[derive(Default)]
pub(super) struct Merger {
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
}

impl Merger {
    /// Starts a word without symbols.
    pub(super) fn clear(&mut self) {
        self.symbols.clear();
        self.queue.clear();
    }

    /// Appends a symbol of `len` bytes.
    pub(super) fn push(&mut self, id: u32, len: usize) {
        let index = self.symbols.len() as u32;
        let start = self.symbols.last().map_or(0, |last| last.start + last.len);
        if let Some(last) = self.symbols.last_mut() {
            last.next = index;
        }
        let prev = index.checked_sub(1).unwrap_or(NONE);
        self.symbols.push(Symbol { id, start, len: len as u32, prev, next: NONE });
    }

    /// Merges until nothing merges, then yields the symbols that are left. `find(left, right)` returns the rank of a
    /// merge (the highest goes first) and the number of the merged text.
    pub(super) fn merge(
        &mut self,
        find: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>,
    ) -> impl Iterator<Item = &Symbol> {
        for right in 1..self.symbols.len() as u32 {
            self.queue_pair(right - 1, right, &find);
        }
        while let Some(pair) = self.queue.pop() {
            let left_index = NONE - pair.leftness;
            let (left, right) = (self.symbols[left_index as usize], self.symbols[pair.right as usize]);
            let unchanged = left.len > 0 && right.len > 0 && left.id == pair.left_id && right.id == pair.right_id;
            if !unchanged || left.next != pair.right {
                continue;
            }
            self.symbols[pair.right as usize].len = 0;
            let merged = &mut self.symbols[left_index as usize];
            *merged = Symbol { id: pair.merged_id, len: left.len + right.len, next: right.next, ..left };
            if right.next != NONE {
                self.symbols[right.next as usize].prev = left_index;
                self.queue_pair(left_index, right.next, &find);
            }
            if left.prev != NONE {
                self.queue_pair(left.prev, left_index, &find);
            }
        }
        self.symbols.iter().filter(|symbol| symbol.len > 0)
    }

    fn queue_pair(&mut self, left: u32, right: u32, find: &impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let (l, r) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some((rank, merged_id)) = find(l, r) {
            let (left_id, right_id) = (l.id, r.id);
            self.queue.push(Pair { rank, leftness: NONE - left, right, left_id, right_id, merged_id });
        }
    }
}
