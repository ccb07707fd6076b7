//! Page tables.

use crate::block::Allocator;
use ruvllm_kernels::attention::{BLOCK_TOKENS, KvBlock, Segment};
use std::sync::Arc;

/// A sequence's page table: its blocks and its length. Made by [`BlockPool::sequence`](crate::BlockPool::sequence);
/// gives its blocks back when dropped.
///
/// A step is `reserve` (through the pool), write, attend, [`advance`](Sequence::advance). Nothing of it allocates.
#[derive(Debug)]
pub struct Sequence {
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) blocks: Vec<KvBlock>,
    len: usize,
    capacity: usize,
}

impl Sequence {
    pub(crate) fn new(allocator: Arc<Allocator>, capacity: usize) -> Sequence {
        // One place more than blocks: a copy on write passes through it.
        Sequence { allocator, blocks: Vec::with_capacity(capacity.div_ceil(BLOCK_TOKENS) + 1), len: 0, capacity }
    }

    /// Returns a sequence that owns `parent`'s blocks of the first `len` positions as well.
    pub(crate) fn share(parent: &Sequence, len: usize) -> Sequence {
        assert!(len <= parent.len, "fork at {len} of a sequence of {}", parent.len);
        let blocks = &parent.blocks[..len.div_ceil(BLOCK_TOKENS)];
        Sequence::of_blocks(Arc::clone(&parent.allocator), parent.capacity, blocks, len)
    }

    /// Returns a sequence that owns `blocks` as well, whose first `len` positions are its own.
    pub(crate) fn of_blocks(allocator: Arc<Allocator>, capacity: usize, blocks: &[KvBlock], len: usize) -> Sequence {
        assert_eq!(blocks.len(), len.div_ceil(BLOCK_TOKENS), "blocks for {len} positions");
        let mut sequence = Sequence::new(allocator, capacity);
        sequence.blocks.extend_from_slice(blocks);
        sequence.allocator.retain(blocks);
        sequence.len = len;
        sequence
    }

    /// Returns the number of positions that are written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no position is written.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the most positions it can have.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the positions its blocks can hold without another [`reserve`](crate::BlockPool::reserve).
    pub fn n_reserved(&self) -> usize {
        self.blocks.len() * BLOCK_TOKENS
    }

    /// Iterates over its blocks in order of position.
    pub fn blocks(&self) -> impl ExactSizeIterator<Item = KvBlock> {
        self.blocks.iter().copied()
    }

    /// Returns the part of a step that is this sequence's: the `n_rows` rows from `first_row` of the step, which follow
    /// its last position. Call it between `reserve` and [`advance`](Sequence::advance).
    ///
    /// # Panics
    /// If fewer positions are reserved.
    pub fn segment(&self, first_row: usize, n_rows: usize) -> Segment<'_> {
        let n_kv = self.len + n_rows;
        assert!(n_kv <= self.n_reserved(), "a segment up to {n_kv}, {} positions reserved", self.n_reserved());
        Segment { first_row, n_rows, pos: self.len, n_kv, blocks: &self.blocks }
    }

    /// Counts `n` more positions as written.
    ///
    /// # Panics
    /// If fewer are reserved.
    pub fn advance(&mut self, n: usize) {
        let len = self.len + n;
        assert!(len <= self.n_reserved(), "advance to {len}, {} positions reserved", self.n_reserved());
        self.len = len;
    }

    /// Forgets all positions from `len` on and gives back the blocks that only they needed, reserved ones too.
    ///
    /// # Panics
    /// If the sequence is shorter.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len, "truncate to {len} a sequence of {}", self.len);
        let n_blocks = len.div_ceil(BLOCK_TOKENS);
        self.allocator.release(&self.blocks[n_blocks..]);
        self.blocks.truncate(n_blocks);
        self.len = len;
    }
}

impl Drop for Sequence {
    fn drop(&mut self) {
        self.allocator.release(&self.blocks);
    }
}
