//! Which blocks are free and how many owners the others have.

use crate::error::{KvError, KvErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub(crate) u32);

impl BlockId {
    /// Returns the block's place in the slabs.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// How a pool's blocks are used: `free + in_use == total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolStats {
    /// All blocks.
    pub total: usize,
    /// Blocks without an owner.
    pub free: usize,
    /// Blocks with at least one owner.
    pub in_use: usize,
    /// References to blocks; more than `in_use` when sequences share.
    pub references: usize,
}

/// The reference counts and the free list. Locked for a few instructions at a time: once per step and sequence, not per
/// layer or token.
#[derive(Debug)]
pub(crate) struct Allocator {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Owners of each block.
    counts: Vec<u32>,
    /// Blocks without owners; the last is handed out first.
    free: Vec<u32>,
}

impl Allocator {
    /// # Panics
    /// If `n_blocks` does not fit 32 bits.
    pub(crate) fn new(n_blocks: usize) -> Allocator {
        let n = u32::try_from(n_blocks).expect("a pool has less than 2^32 blocks");
        // Low numbers first, so that a sequence alone lies in memory in order.
        Allocator { state: Mutex::new(State { counts: vec![0; n_blocks], free: (0..n).rev().collect() }) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every operation leaves counts and list in step before it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends `n` fresh blocks to `blocks`, or none.
    pub(crate) fn take(&self, n: usize, blocks: &mut Vec<u32>) -> Result<(), KvError> {
        let mut state = self.lock();
        state.check(n)?;
        for _ in 0..n {
            let block = state.free.pop().expect("there are enough");
            state.counts[block as usize] = 1;
            blocks.push(block);
        }
        Ok(())
    }

    /// Returns whether `block` has several owners, and fails unless `n` blocks beyond a copy of it are free.
    pub(crate) fn check_growth(&self, block: Option<u32>, n: usize) -> Result<bool, KvError> {
        let state = self.lock();
        let shared = block.is_some_and(|block| state.counts[block as usize] > 1);
        state.check(n + usize::from(shared))?;
        Ok(shared)
    }

    /// Adds an owner to each block.
    pub(crate) fn retain(&self, blocks: &[u32]) {
        let mut state = self.lock();
        for &block in blocks {
            assert!(state.counts[block as usize] > 0, "block {block} has no owner to share it with");
            state.counts[block as usize] += 1;
        }
    }

    /// Takes an owner from each block, last block first, so that it is handed out again in order.
    pub(crate) fn release(&self, blocks: &[u32]) {
        let mut state = self.lock();
        for &block in blocks.iter().rev() {
            let count = &mut state.counts[block as usize];
            *count = count.checked_sub(1).expect("only owners release a block");
            if *count == 0 {
                state.free.push(block);
            }
        }
    }

    /// Takes the owner from a block that has only one, and tells whether it had.
    pub(crate) fn release_last(&self, block: u32) -> bool {
        let mut state = self.lock();
        let is_last = state.counts[block as usize] == 1;
        if is_last {
            state.counts[block as usize] = 0;
            state.free.push(block);
        }
        is_last
    }

    /// Returns the blocks with an owner and all blocks.
    pub(crate) fn occupied(&self) -> (usize, usize) {
        let state = self.lock();
        (state.counts.len() - state.free.len(), state.counts.len())
    }

    pub(crate) fn count(&self, block: u32) -> u32 {
        self.lock().counts[block as usize]
    }

    pub(crate) fn stats(&self) -> PoolStats {
        let state = self.lock();
        let in_use = state.counts.iter().filter(|&&count| count > 0).count();
        let references = state.counts.iter().map(|&count| count as usize).sum();
        PoolStats { total: state.counts.len(), free: state.free.len(), in_use, references }
    }
}

impl State {
    fn check(&self, n: usize) -> Result<(), KvError> {
        let (free, total) = (self.free.len(), self.counts.len());
        if n > free { Err(KvError::new(KvErrorKind::PoolFull { needed: n, free, total })) } else { Ok(()) }
    }
}
