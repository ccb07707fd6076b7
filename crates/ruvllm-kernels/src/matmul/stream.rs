//! The order in which workers read weights, so that they are asked for before they are needed.

#[cfg(target_arch = "x86_64")]
use super::format::Format;
use super::{Matrix, Plan};
use crate::team::Upcoming;
use std::cell::Cell;
use std::ops::Range;

/// How far ahead of use weights are asked for, in bytes: about a memory latency of work.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 16 * 1024;

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

/// Ranges that [`Beside`] has room for at most.
const RANGES_MAX: usize = 64;

/// Memory that is read right after a product, in this order and shared out as the product is: workers ask for it little by
/// little while they multiply, which leaves most of the memory's time unused where several rows share the weights.
///
/// It holds addresses and borrows nothing: asking for memory that is gone does nothing.
#[derive(Clone, Debug)]
pub struct Beside {
    ranges: [Range<usize>; RANGES_MAX],
    n_ranges: usize,
    n_bytes: usize,
}

impl Default for Beside {
    fn default() -> Beside {
        Beside { ranges: [const { 0..0 }; RANGES_MAX], n_ranges: 0, n_bytes: 0 }
    }
}

impl Beside {
    /// Appends the addresses of some memory. What there is no room for is left out.
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

    /// Returns how a worker that has claimed some of `n` units asks for its part of it, in `n_steps` steps.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "reading ahead is left to the hardware"))]
    pub(super) fn fetch(&self, claim: &Range<usize>, n: usize, n_steps: usize) -> Option<Fetch<'_>> {
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
        Some(Fetch {
            at: Cell::new(first.start + skip),
            end: Cell::new(first.end),
            rest,
            n_turns: Cell::new(0),
            n_lines: Cell::new(n_lines),
            n_at_once: n_lines.div_ceil(n_steps),
        })
    }
}

const LINE_BYTES: usize = 64;

/// Where a worker is in what it asks for beside its product.
#[derive(Debug)]
pub(super) struct Fetch<'a> {
    at: Cell<usize>,
    /// Where the range ends.
    end: Cell<usize>,
    /// The ranges that follow the first, and how many of them were begun.
    rest: &'a [Range<usize>],
    n_turns: Cell<usize>,
    /// Lines that are left.
    n_lines: Cell<usize>,
    n_at_once: usize,
}

impl Fetch<'_> {
    /// Asks for the next few lines.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn step(&self) {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let n = self.n_at_once.min(self.n_lines.get());
        let at = self.at.get();
        for line in 0..n {
            // SAFETY: a prefetch of any address is allowed; every x86-64 has it.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(at.wrapping_add(LINE_BYTES * line) as *const i8) };
        }
        self.n_lines.set(self.n_lines.get() - n);
        self.at.set(at.wrapping_add(LINE_BYTES * n));
        if self.at.get() >= self.end.get() {
            self.turn();
        }
    }

    /// Goes on to the next range.
    #[cfg(target_arch = "x86_64")]
    fn turn(&self) {
        let n_turns = self.n_turns.get();
        match self.rest.get(n_turns) {
            Some(range) => {
                self.at.set(range.start);
                self.end.set(range.end);
                self.n_turns.set(n_turns + 1);
            }
            None => self.n_lines.set(0),
        }
    }
}

/// What one tile of a job asks for: every line once, by one of the tiles that go through the job's panels.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    stream: Stream<'a>,
    /// Bytes between what is read and what is asked for.
    distance: usize,
    /// This tile asks at blocks `b` with `b % n_tiles == tile`.
    tile: usize,
    n_tiles: usize,
}

/// Tiles that share the asking at most: each has a block or more in a job's chunk of blocks.
#[cfg(target_arch = "x86_64")]
const MOST_TILES: usize = 8;

#[cfg(target_arch = "x86_64")]
impl<'a> Ahead<'a> {
    /// For one pass over the panels.
    #[inline(always)]
    pub(super) fn straight(stream: Stream<'a>) -> Ahead<'a> {
        Ahead { stream, distance: AHEAD_BYTES, tile: 0, n_tiles: 1 }
    }

    /// For the tile of `tile_rows` rows from row `i` of `n_rows` on. A single tile streams; several have the time of all
    /// to ask for the panels of the next job, which lie `job_bytes` on.
    #[inline(always)]
    pub(super) fn new(
        stream: Stream<'a>,
        (i, n_rows): (usize, usize),
        tile_rows: usize,
        job_bytes: usize,
    ) -> Ahead<'a> {
        match n_rows.div_ceil(tile_rows).min(MOST_TILES) {
            0 | 1 => Ahead::straight(stream),
            n_tiles => Ahead { stream, distance: job_bytes.max(AHEAD_BYTES), tile: i / tile_rows, n_tiles },
        }
    }

    /// Asks for what will be read some time after block `b` of `panel`, if it is this tile's turn.
    #[inline(always)]
    pub(super) fn prefetch<F: Format>(self, panel: *const u8, b: usize) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        if b % self.n_tiles != self.tile {
            return;
        }
        let Stream { end, next, beside } = self.stream;
        let block_bytes = F::GROUP_BYTES / F::GROUP;
        let at = (panel as usize).wrapping_add(self.distance + b * block_bytes);
        let at = if at < end { at } else { at.wrapping_sub(end).wrapping_add(next) };
        for line in 0..block_bytes.div_ceil(LINE_BYTES) {
            // SAFETY: a prefetch of any address is allowed; every x86-64 has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(LINE_BYTES * line) as *const i8) };
        }
        if let Some(beside) = beside {
            beside.step();
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
