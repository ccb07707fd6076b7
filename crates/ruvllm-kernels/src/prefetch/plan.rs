//! Prefetch plans: memory that is read right after a product, prefetched while it is computed.

use std::ops::Range;

/// Ranges of a plan at most: more rows with different adapters keep the cores busy anyway.
pub(super) const RANGES_MAX: usize = 64;

/// Memory that is read right after a product, in this order and shared out as the product is. Workers prefetch it into L2 little by
/// little while they multiply: products of several rows leave most of the memory's time unused.
///
/// It holds addresses and borrows nothing: a prefetch of memory that is gone does nothing.
#[derive(Clone, Debug)]
pub struct PrefetchPlan {
    pub(super) ranges: [Range<usize>; RANGES_MAX],
    pub(super) n_ranges: usize,
    pub(super) n_bytes: usize,
}

impl Default for PrefetchPlan {
    fn default() -> PrefetchPlan {
        PrefetchPlan { ranges: [const { 0..0 }; RANGES_MAX], n_ranges: 0, n_bytes: 0 }
    }
}

impl PrefetchPlan {
    /// Appends the addresses of some memory. A range that there is no room for is left out.
    pub fn push(&mut self, range: Range<usize>) {
        let n_bytes = range.len();
        match self.n_ranges.checked_sub(1) {
            Some(last) if self.ranges[last].end == range.start => self.ranges[last].end = range.end,
            _ if self.n_ranges < RANGES_MAX => {
                self.ranges[self.n_ranges] = range;
                self.n_ranges += 1;
            }
            _ => return,
        }
        self.n_bytes += n_bytes;
    }

    #[cfg(test)]
    pub(crate) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges[..self.n_ranges]
    }
}
