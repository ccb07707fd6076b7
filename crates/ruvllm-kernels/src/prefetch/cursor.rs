//! Progress of workers in a prefetch plan, while they multiply.

use std::cell::Cell;
use std::ops::Range;

use ruvllm_cpu::prefetch::{CacheLevel, LINE_BYTES};

use super::plan::PrefetchPlan;

impl PrefetchPlan {
    /// Returns the cursor of a worker that has claimed some of `n` units: it prefetches its part in `n_steps` steps.
    pub(crate) fn cursor(&self, claim: &Range<usize>, n: usize, n_steps: usize) -> Option<PlanCursor<'_>> {
        if self.n_bytes == 0 || n_steps == 0 {
            return None;
        }
        let at = |unit: usize| self.n_bytes * unit / n;
        let (mut skip, n_lines) = (at(claim.start), (at(claim.end) - at(claim.start)).div_ceil(LINE_BYTES));
        let mut ranges = &self.ranges[..self.n_ranges];
        while let [first, rest @ ..] = ranges
            && skip >= first.len()
            && !rest.is_empty()
        {
            skip -= first.len();
            ranges = rest;
        }
        let (first, rest) = ranges.split_first()?;
        Some(PlanCursor {
            at: Cell::new(first.start + skip),
            end: Cell::new(first.end),
            rest,
            n_begun: Cell::new(0),
            n_lines: Cell::new(n_lines),
            n_at_once: n_lines.div_ceil(n_steps),
        })
    }
}

/// Progress of a worker in its part of a plan.
#[derive(Debug)]
pub(crate) struct PlanCursor<'a> {
    at: Cell<usize>,
    /// Where the range ends.
    end: Cell<usize>,
    /// The ranges that follow the first, and how many of them were begun.
    rest: &'a [Range<usize>],
    n_begun: Cell<usize>,
    /// Lines that are left.
    n_lines: Cell<usize>,
    n_at_once: usize,
}

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "these rows leave prefetching to the hardware"))]
impl PlanCursor<'_> {
    /// Prefetches the next few lines.
    #[inline(always)]
    pub(crate) fn step(&self) {
        let (at, n) = self.advance();
        for line in 0..n {
            CacheLevel::L2.prefetch(at.wrapping_add(LINE_BYTES * line) as *const u8);
        }
    }

    /// Returns the address and number of the next lines, and moves past them.
    #[inline(always)]
    fn advance(&self) -> (usize, usize) {
        let (at, n) = (self.at.get(), self.n_at_once.min(self.n_lines.get()));
        self.n_lines.set(self.n_lines.get() - n);
        self.at.set(at.wrapping_add(LINE_BYTES * n));
        if self.at.get() >= self.end.get() {
            self.next_range();
        }
        (at, n)
    }

    /// Moves on to the next range.
    fn next_range(&self) {
        let n_begun = self.n_begun.get();
        match self.rest.get(n_begun) {
            Some(range) => {
                self.at.set(range.start);
                self.end.set(range.end);
                self.n_begun.set(n_begun + 1);
            }
            None => self.n_lines.set(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::RANGES_MAX;
    use super::*;

    /// All lines that the claims of a product prefetch, in order.
    fn prefetched(plan: &PrefetchPlan, n_units: usize, grain: usize, n_steps: usize) -> Vec<usize> {
        let mut lines = Vec::new();
        for start in (0..n_units).step_by(grain) {
            let claim = start..n_units.min(start + grain);
            let Some(cursor) = plan.cursor(&claim, n_units, n_steps) else { continue };
            for _ in 0..n_steps {
                let (at, n) = cursor.advance();
                lines.extend((0..n).map(|line| at + LINE_BYTES * line));
            }
        }
        lines
    }

    #[test]
    fn the_claims_prefetch_nearly_all_lines_once() {
        let mut plan = PrefetchPlan::default();
        // The second follows the first; a range of each length.
        for (start, len) in [(0x1000, 0x400), (0x1400, 0x400), (0x8000, 0x1000), (0x20000, 0x240), (0x30000, 0x800)] {
            plan.push(start..start + len);
        }
        assert_eq!(plan.n_ranges, 4);
        let all: Vec<usize> = plan.ranges[..4].iter().flat_map(|range| range.clone().step_by(LINE_BYTES)).collect();
        for (n_units, grain, n_steps) in [(1, 1, 200), (16, 1, 40), (16, 4, 100), (30, 7, 64)] {
            let mut lines = prefetched(&plan, n_units, grain, n_steps);
            lines.iter_mut().for_each(|line| *line = *line / LINE_BYTES * LINE_BYTES);
            lines.dedup();
            let n_found = all.iter().filter(|line| lines.contains(line)).count();
            assert!(n_found * 10 >= all.len() * 9, "{n_units} units by {grain}: {n_found} of {}", all.len());
            assert!(lines.len() <= all.len() + n_units, "{} lines for {}", lines.len(), all.len());
        }
    }

    #[test]
    fn nothing_is_prefetched_beyond_the_end_or_the_room() {
        assert!(PrefetchPlan::default().cursor(&(0..1), 1, 8).is_none());
        let mut plan = PrefetchPlan::default();
        (0..RANGES_MAX + 3).for_each(|i| plan.push(i * 0x1000..i * 0x1000 + 0x40));
        assert_eq!((plan.n_ranges, plan.n_bytes), (RANGES_MAX, RANGES_MAX * 0x40));
        let lines = prefetched(&plan, 1, 1, 1000);
        assert_eq!(lines, (0..RANGES_MAX).map(|i| i * 0x1000).collect::<Vec<_>>());
    }
}
