//! Which blocks are free and how many owners the others have.

use crate::error::{KvError, KvErrorKind};
use ruvllm_kernels::attention::{KvBlock, KvFormat};
use std::sync::{Mutex, MutexGuard, PoisonError};

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
    /// Of all blocks.
    format: KvFormat,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Owners of each block.
    counts: Vec<u32>,
    /// Blocks without owners; the last is handed out first.
    free: Vec<KvBlock>,
}

impl Allocator {
    /// # Panics
    /// If there are more than [`KvBlock::MAX_BLOCKS`].
    pub(crate) fn new(format: KvFormat, n_blocks: usize) -> Allocator {
        // Low numbers first, so that a sequence alone lies in memory in order.
        let free = (0..n_blocks).rev().map(|index| KvBlock::new(format, index)).collect();
        Allocator { format, state: Mutex::new(State { counts: vec![0; n_blocks], free }) }
    }

    /// Returns the format of all blocks.
    pub(crate) fn format(&self) -> KvFormat {
        self.format
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every operation leaves counts and list in step before it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends `n` fresh blocks to `blocks`, or none.
    pub(crate) fn take(&self, n: usize, blocks: &mut Vec<KvBlock>) -> Result<(), KvError> {
        let mut state = self.lock();
        state.check(n)?;
        for _ in 0..n {
            let block = state.free.pop().expect("there are enough");
            state.counts[block.index()] = 1;
            blocks.push(block);
        }
        Ok(())
    }

    /// Returns whether `block` has several owners, and fails unless `n` blocks beyond a copy of it are free.
    pub(crate) fn check_growth(&self, block: Option<KvBlock>, n: usize) -> Result<bool, KvError> {
        let state = self.lock();
        let shared = block.is_some_and(|block| state.counts[block.index()] > 1);
        state.check(n + usize::from(shared))?;
        Ok(shared)
    }

    /// Adds an owner to each block.
    pub(crate) fn retain(&self, blocks: &[KvBlock]) {
        let mut state = self.lock();
        for &block in blocks {
            assert!(state.counts[block.index()] > 0, "block {block:?} has no owner to share it with");
            state.counts[block.index()] += 1;
        }
    }

    /// Takes an owner from each block, last block first, so that it is handed out again in order.
    pub(crate) fn release(&self, blocks: &[KvBlock]) {
        let mut state = self.lock();
        for &block in blocks.iter().rev() {
            let count = &mut state.counts[block.index()];
            *count = count.checked_sub(1).expect("only owners release a block");
            if *count == 0 {
                state.free.push(block);
            }
        }
    }

    /// Takes the owner from a block that has only one, and tells whether it had.
    pub(crate) fn release_last(&self, block: KvBlock) -> bool {
        let mut state = self.lock();
        let is_last = state.counts[block.index()] == 1;
        if is_last {
            state.counts[block.index()] = 0;
            state.free.push(block);
        }
        is_last
    }

    /// Returns the blocks with an owner and all blocks.
    pub(crate) fn occupied(&self) -> (usize, usize) {
        let state = self.lock();
        (state.counts.len() - state.free.len(), state.counts.len())
    }

    pub(crate) fn count(&self, block: KvBlock) -> u32 {
        self.lock().counts[block.index()]
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
