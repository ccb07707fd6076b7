//! Free blocks, owners of the others, and the pages that their bytes need.

use crate::bits::Bits;
use crate::error::{KvError, KvErrorKind};
use ruvllm_kernels::attention::{KvBlock, KvFormat};
use std::ops::RangeInclusive;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Pages that formats of more bits leave to each of fewer, if there are enough.
pub(crate) const LEFT_TO_EACH: usize = 2;

/// Use of a pool's blocks: `free + in_use == total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// All blocks. With quantised formats, fewer bits a block make more of them; pages that are lent make fewer.
    pub total: usize,
    /// Blocks that can be taken to write rows to.
    pub free: usize,
    /// Blocks with at least one owner, of all formats.
    pub in_use: usize,
    /// References to blocks; more than `in_use` when sequences share.
    pub references: usize,
}

/// The reference counts, free lists and pages of all formats. Locked for a few instructions at a time: once per step and
/// sequence, not per layer or token.
///
/// A format's units lie one after the other in a range of addresses of its own. A page of that range is *committed* from
/// the first use of a unit that touches it until it is reclaimed, and over all formats no more pages are than allowed.
#[derive(Debug)]
pub(crate) struct Allocator {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// By format; those not used have no units.
    spaces: [Space; KvFormat::COUNT],
    /// What rows are written to.
    exact: KvFormat,
    /// Committed pages of all formats.
    n_pages: usize,
    /// Pages that may be committed: all but those that are lent.
    n_pages_max: usize,
    n_lent: usize,
}

/// The units of one format.
#[derive(Debug)]
struct Space {
    format: KvFormat,
    /// Bytes from a unit to the next.
    stride: usize,
    page_bytes: usize,
    /// Pages that it leaves to formats of fewer bits, which otherwise could not be made when they are needed most.
    n_left_over: usize,
    /// Owners of each block.
    counts: Vec<u32>,
    /// Generation of each block; empty where there is one format.
    generations: Vec<Generation>,
    /// Blocks with owners.
    n_owned: usize,
    /// Units without owners.
    free: Bits,
    /// Those of them whose pages are all committed.
    ready: Bits,
    /// Units in use that touch each page.
    users: Vec<u32>,
    committed: Bits,
    /// Committed pages without users.
    n_idle: usize,
}

/// Generation of a block: how often it was taken, and its quantised copy.
#[derive(Clone, Copy, Debug, Default)]
struct Generation {
    /// How often it was taken.
    n_taken: u32,
    /// The block with the same positions in fewer bits, and how often that one had been taken.
    copy: Option<(KvBlock, u32)>,
}

/// What an [`Allocator`] needs to know of a format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceSize {
    pub(crate) format: KvFormat,
    pub(crate) stride: usize,
    pub(crate) n_units: usize,
}

impl Allocator {
    /// Makes an allocator over the formats of `sizes`, the first of which is what rows are written to.
    ///
    /// # Panics
    /// If a format has more blocks than a page table can name.
    pub(crate) fn new(sizes: &[SpaceSize], page_bytes: usize, n_pages_max: usize) -> Allocator {
        let n_each = (n_pages_max / 8).min(LEFT_TO_EACH);
        let space = |format: KvFormat| {
            let n_smaller = sizes.iter().filter(|size| size.format > format).count();
            let size = sizes.iter().find(|size| size.format == format).copied();
            let SpaceSize { stride, n_units, .. } = size.unwrap_or(SpaceSize { format, stride: 0, n_units: 0 });
            let n_blocks = n_units * format.blocks_per_unit();
            assert!(n_blocks <= KvBlock::MAX_BLOCKS, "{n_blocks} blocks of {format}, more than a page table can name");
            let n_pages = (stride * n_units).div_ceil(page_bytes);
            Space {
                format,
                stride,
                page_bytes,
                n_left_over: n_smaller * n_each,
                counts: vec![0; n_blocks],
                generations: vec![Generation::default(); if sizes.len() > 1 { n_blocks } else { 0 }],
                n_owned: 0,
                free: Bits::full(n_units),
                ready: Bits::new(n_units),
                users: vec![0; n_pages],
                committed: Bits::new(n_pages),
                n_idle: 0,
            }
        };
        let exact = sizes[0].format;
        let state = State { spaces: KvFormat::ALL.map(space), exact, n_pages: 0, n_pages_max, n_lent: 0 };
        Allocator { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every operation leaves counts and lists in step before it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the blocks of `n_units` fresh units to `blocks`, or none.
    pub(crate) fn take(&self, format: KvFormat, n_units: usize, blocks: &mut Vec<KvBlock>) -> Result<(), KvError> {
        let (mut state, before) = (self.lock(), blocks.len());
        for _ in 0..n_units {
            let Some(unit) = state.take_unit(format) else {
                state.release(&blocks[before..]);
                blocks.truncate(before);
                let (free, in_use) = (state.n_free(), state.n_in_use());
                let needed = n_units * format.blocks_per_unit();
                return Err(KvError::new(KvErrorKind::PoolFull { needed, free, total: free + in_use }));
            };
            let first = unit * format.blocks_per_unit();
            blocks.extend((first..first + format.blocks_per_unit()).map(|index| KvBlock::new(format, index)));
        }
        Ok(())
    }

    /// Adds an owner to each block.
    pub(crate) fn retain(&self, blocks: &[KvBlock]) {
        let mut state = self.lock();
        for &block in blocks {
            let count = state.count_mut(block);
            assert!(*count > 0, "block {block:?} has no owner to share it with");
            *count += 1;
        }
    }

    /// Takes an owner from each block.
    pub(crate) fn release(&self, blocks: &[KvBlock]) {
        self.lock().release(blocks);
    }

    /// Takes the owner from a block that has only one, and tells whether it had.
    pub(crate) fn release_last(&self, block: KvBlock) -> bool {
        let mut state = self.lock();
        let is_last = *state.count_mut(block) == 1;
        if is_last {
            state.release(&[block]);
        }
        is_last
    }

    /// Records `copies`, the same positions as `blocks` in fewer bits, for owners of `blocks` to come.
    ///
    /// # Panics
    /// If there is one format only.
    pub(crate) fn set_quantised(&self, blocks: &[KvBlock], copies: &[KvBlock]) {
        let mut state = self.lock();
        for (&block, &copy) in blocks.iter().zip(copies) {
            let n_taken = state.spaces[copy.format() as usize].generations[copy.index()].n_taken;
            state.spaces[block.format() as usize].generations[block.index()].copy = Some((copy, n_taken));
        }
    }

    /// Forgets the quantised copy of a block that is about to hold something else.
    pub(crate) fn forget_quantised(&self, block: KvBlock) {
        if let Some(generation) = self.lock().spaces[block.format() as usize].generations.get_mut(block.index()) {
            generation.copy = None;
        }
    }

    /// Adds an owner to the unit of format `to` that was made of `blocks`, and appends its blocks to `copies`; `false` if
    /// it is gone.
    pub(crate) fn take_quantised(&self, blocks: &[KvBlock], to: KvFormat, copies: &mut Vec<KvBlock>) -> bool {
        let (mut state, before) = (self.lock(), copies.len());
        for (sub, &block) in blocks.iter().enumerate() {
            let generation = state.spaces[block.format() as usize].generations[block.index()];
            let copy = generation.copy.filter(|&(copy, n_taken)| {
                let space = &state.spaces[copy.format() as usize];
                let is_same = space.counts[copy.index()] > 0 && space.generations[copy.index()].n_taken == n_taken;
                let is_beside = copies.get(before).is_none_or(|first: &KvBlock| first.unit() == copy.unit());
                is_same && is_beside && copy.format() == to && copy.sub() == sub
            });
            let Some((copy, _)) = copy else {
                copies.truncate(before);
                return false;
            };
            copies.push(copy);
        }
        for &copy in &copies[before..] {
            *state.count_mut(copy) += 1;
        }
        true
    }

    /// Uncommits pages that no unit in use touches, all but `n_kept` of them, and tells `give_back` which.
    pub(crate) fn reclaim(&self, n_kept: usize, give_back: &mut dyn FnMut(KvFormat, usize)) {
        let mut state = self.lock();
        let State { spaces, n_pages, .. } = &mut *state;
        let mut n = spaces.iter().map(|space| space.n_idle).sum::<usize>().saturating_sub(n_kept);
        for space in spaces {
            // The last pages first: units are taken from the front.
            for page in (0..space.users.len()).rev() {
                if n == 0 || space.n_idle == 0 {
                    break;
                }
                if space.users[page] == 0 && space.committed.contains(page) {
                    space.uncommit(page);
                    give_back(space.format, page);
                    (n, *n_pages) = (n - 1, *n_pages - 1);
                }
            }
        }
    }

    /// Commits the pages of one more unit for rows unless `n_units` are ready to be taken, if there is room, and tells `touch`
    /// which; returns whether one more is ready.
    pub(crate) fn make_ready(&self, n_units: usize, touch: &mut dyn FnMut(KvFormat, usize)) -> bool {
        let mut state = self.lock();
        let format = state.exact;
        let Space { free, ready, .. } = &state.spaces[format as usize];
        let next = free.iter().find(|&unit| !ready.contains(unit)).filter(|_| ready.len() < n_units);
        next.is_some_and(|unit| state.commit(format, unit, &mut |page| touch(format, page)))
    }

    /// Lends pages that are not committed: fewer may be until they are back. Returns whether there were as many.
    pub(crate) fn lend(&self, n: usize) -> bool {
        let mut state = self.lock();
        let is_room = n <= state.n_pages_max - state.n_pages;
        if is_room {
            (state.n_pages_max, state.n_lent) = (state.n_pages_max - n, state.n_lent + n);
        }
        is_room
    }

    /// Takes pages back.
    ///
    /// # Panics
    /// If fewer are lent.
    pub(crate) fn take_back(&self, n: usize) {
        let mut state = self.lock();
        assert!(n <= state.n_lent, "{n} pages come back, {} are lent", state.n_lent);
        (state.n_pages_max, state.n_lent) = (state.n_pages_max + n, state.n_lent - n);
    }

    /// Returns the pages that are lent.
    pub(crate) fn n_lent(&self) -> usize {
        self.lock().n_lent
    }

    /// Returns the committed pages: what of all ranges may be memory.
    pub(crate) fn n_pages(&self) -> usize {
        self.lock().n_pages
    }

    /// Returns the blocks with an owner, by format.
    pub(crate) fn n_owned(&self) -> [usize; KvFormat::COUNT] {
        let state = self.lock();
        KvFormat::ALL.map(|format| state.spaces[format as usize].n_owned)
    }

    pub(crate) fn count(&self, block: KvBlock) -> u32 {
        *self.lock().count_mut(block)
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let state = self.lock();
        let (free, in_use) = (state.n_free(), state.n_in_use());
        let references = state.spaces.iter().flat_map(|space| &space.counts).map(|&count| count as usize).sum();
        PoolStats { total: free + in_use, free, in_use, references }
    }
}

impl State {
    fn count_mut(&mut self, block: KvBlock) -> &mut u32 {
        &mut self.spaces[block.format() as usize].counts[block.index()]
    }

    /// Takes the first unit whose pages are there, else the first one if its pages may be committed.
    fn take_unit(&mut self, format: KvFormat) -> Option<usize> {
        let space = &mut self.spaces[format as usize];
        let unit = match space.ready.least() {
            Some(unit) => unit,
            None => space.free.least().filter(|&unit| self.commit(format, unit, &mut |_| {}))?,
        };
        self.spaces[format as usize].occupy(unit);
        Some(unit)
    }

    /// Commits the pages of a free unit that are not, if there is room for them, and tells `touch` which; returns whether
    /// there was.
    fn commit(&mut self, format: KvFormat, unit: usize, touch: &mut dyn FnMut(usize)) -> bool {
        let space = &mut self.spaces[format as usize];
        let n_left = (self.n_pages_max - self.n_pages).saturating_sub(space.n_left_over);
        let new = space.pages_of(unit).filter(|&page| !space.committed.contains(page));
        let n_new = new.clone().count();
        if n_new > n_left {
            return false;
        }
        new.for_each(touch);
        space.commit(unit);
        self.n_pages += n_new;
        true
    }

    fn release(&mut self, blocks: &[KvBlock]) {
        for &block in blocks {
            let count = self.count_mut(block);
            *count = count.checked_sub(1).expect("only owners release a block");
            if *count == 0 {
                let space = &mut self.spaces[block.format() as usize];
                space.n_owned -= 1;
                space.vacate(block.unit());
            }
        }
    }

    /// Returns how many blocks to write to could be taken, one after the other.
    fn n_free(&self) -> usize {
        let space = &self.spaces[self.exact as usize];
        let mut n_left = (self.n_pages_max - self.n_pages).saturating_sub(space.n_left_over);
        if space.users.len() - space.committed.len() <= n_left {
            return space.free.len();
        }
        // Units are in order, so a page that two of them need is the last page of the first.
        let (mut n, mut committed_to) = (space.ready.len(), 0);
        if n == space.free.len() {
            return n;
        }
        for unit in space.free.iter().filter(|&unit| !space.ready.contains(unit)) {
            let pages = space.pages_of(unit);
            let n_new = pages.clone().filter(|&page| page >= committed_to && !space.committed.contains(page)).count();
            if n_new > n_left {
                break;
            }
            (n, n_left, committed_to) = (n + 1, n_left - n_new, pages.end() + 1);
        }
        n
    }

    fn n_in_use(&self) -> usize {
        self.spaces.iter().map(|space| space.n_owned).sum()
    }
}

impl Space {
    /// Returns the pages that a unit's bytes lie in.
    fn pages_of(&self, unit: usize) -> RangeInclusive<usize> {
        unit * self.stride / self.page_bytes..=((unit + 1) * self.stride - 1) / self.page_bytes
    }

    /// Returns the units that have bytes in a page.
    fn units_of(&self, page: usize) -> RangeInclusive<usize> {
        let last = ((page + 1) * self.page_bytes - 1) / self.stride;
        page * self.page_bytes / self.stride..=last.min(self.counts.len() / self.format.blocks_per_unit() - 1)
    }

    /// Commits a free unit's pages.
    fn commit(&mut self, unit: usize) {
        for page in self.pages_of(unit) {
            if !self.committed.contains(page) {
                self.committed.set(page, true);
                self.n_idle += 1;
                for unit in self.units_of(page) {
                    self.update_ready(unit);
                }
            }
        }
    }

    fn uncommit(&mut self, page: usize) {
        self.committed.set(page, false);
        self.n_idle -= 1;
        for unit in self.units_of(page) {
            self.ready.set(unit, false);
        }
    }

    fn update_ready(&mut self, unit: usize) {
        let is_ready = self.free.contains(unit) && self.pages_of(unit).all(|page| self.committed.contains(page));
        self.ready.set(unit, is_ready);
    }

    /// Gives a ready unit's blocks an owner each.
    fn occupy(&mut self, unit: usize) {
        self.free.set(unit, false);
        self.ready.set(unit, false);
        for page in self.pages_of(unit) {
            self.n_idle -= usize::from(self.users[page] == 0);
            self.users[page] += 1;
        }
        let per_unit = self.format.blocks_per_unit();
        let blocks = unit * per_unit..(unit + 1) * per_unit;
        self.counts[blocks.clone()].fill(1);
        self.n_owned += per_unit;
        for generation in self.generations.get_mut(blocks).into_iter().flatten() {
            *generation = Generation { n_taken: generation.n_taken.wrapping_add(1), copy: None };
        }
    }

    /// Frees a unit if none of its blocks has an owner.
    fn vacate(&mut self, unit: usize) {
        let per_unit = self.format.blocks_per_unit();
        if self.counts[unit * per_unit..(unit + 1) * per_unit].iter().any(|&count| count > 0) {
            return;
        }
        self.free.set(unit, true);
        self.ready.set(unit, true);
        for page in self.pages_of(unit) {
            self.users[page] -= 1;
            self.n_idle += usize::from(self.users[page] == 0);
        }
    }
}

#[cfg(test)]
mod tests;
