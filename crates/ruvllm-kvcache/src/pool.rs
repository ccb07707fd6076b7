//! The bytes: a buffer per layer, cut in blocks of keys and values.

use crate::block::{Allocator, PoolStats};
use crate::error::{KvError, KvErrorKind};
use crate::table::Sequence;
use ruvllm_kernels::arena::AlignedVec;
use ruvllm_kernels::attention::{
    self, BLOCK_TOKENS, KvBlock, KvFormat, KvLayer, KvShape, KvUnits, KvUnitsMut, Segment,
};
use ruvllm_kernels::team::Team;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// What keys and values are kept in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// Single precision: twice the memory, exact.
    F32,
}

impl KvType {
    /// Returns the format of its blocks.
    pub fn format(self) -> KvFormat {
        match self {
            KvType::F16 => KvFormat::F16,
            KvType::F32 => KvFormat::F32,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
        })
    }
}

impl FromStr for KvType {
    type Err = KvError;

    fn from_str(name: &str) -> Result<KvType, KvError> {
        match name {
            "f16" => Ok(KvType::F16),
            "f32" => Ok(KvType::F32),
            _ => Err(KvError::new(KvErrorKind::UnknownType)),
        }
    }
}

/// What a model keeps per position: one entry per *attention* layer; layers without attention have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The attention layers in order.
    pub layers: Vec<KvShape>,
}

impl KvLayout {
    /// Returns the bytes of one block over all layers.
    pub fn block_bytes(&self, kv: KvType) -> usize {
        self.layers.iter().map(|&shape| kv.format().k_bytes(shape) + kv.format().v_bytes(shape)).sum()
    }

    /// Returns the number of blocks that hold `n_tokens` positions.
    pub fn blocks_for(n_tokens: usize) -> usize {
        n_tokens.div_ceil(BLOCK_TOKENS)
    }
}

/// One layer of all blocks: `[block][k | v]`.
#[derive(Debug)]
struct Slab {
    shape: KvShape,
    bytes: AlignedVec<u8>,
    /// Bytes of a block.
    stride: usize,
    /// Where the values begin in one.
    v_at: usize,
}

impl Slab {
    fn new(shape: KvShape, format: KvFormat, n_blocks: usize) -> Slab {
        let v_at = format.k_bytes(shape);
        let stride = v_at + format.v_bytes(shape);
        Slab { shape, bytes: AlignedVec::new(n_blocks * stride), stride, v_at }
    }

    fn block(&self, block: usize) -> &[u8] {
        &self.bytes[block * self.stride..][..self.stride]
    }

    fn block_mut(&mut self, block: usize) -> &mut [u8] {
        &mut self.bytes[block * self.stride..][..self.stride]
    }

    fn copy_block(&mut self, from: usize, to: usize) {
        self.bytes.copy_within(from * self.stride..(from + 1) * self.stride, to * self.stride);
    }
}

/// A fixed number of blocks of 16 positions, each with room for the keys and values of every attention layer.
#[derive(Debug)]
pub struct BlockPool {
    kv: KvType,
    slabs: Vec<Slab>,
    allocator: Arc<Allocator>,
    block_bytes: usize,
}

impl BlockPool {
    /// Allocates `n_blocks` blocks; their memory becomes real when it is first written.
    pub fn new(layout: &KvLayout, kv: KvType, n_blocks: usize) -> BlockPool {
        let slabs = layout.layers.iter().map(|&shape| Slab::new(shape, kv.format(), n_blocks)).collect();
        let allocator = Arc::new(Allocator::new(kv.format(), n_blocks));
        BlockPool { kv, slabs, allocator, block_bytes: layout.block_bytes(kv) }
    }

    /// Returns the element type.
    pub fn kv_type(&self) -> KvType {
        self.kv
    }

    /// Returns the number of attention layers.
    pub fn n_layers(&self) -> usize {
        self.slabs.len()
    }

    /// Returns the bytes of all blocks, used or not.
    pub fn n_bytes(&self) -> usize {
        self.block_bytes * self.allocator.occupied().1
    }

    /// Returns the bytes of the blocks that have an owner.
    pub fn held_bytes(&self) -> usize {
        self.block_bytes * self.allocator.occupied().0
    }

    /// Returns the bytes of one block over all layers.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Returns the free list and counts, for another owner of blocks.
    pub(crate) fn allocator(&self) -> Arc<Allocator> {
        Arc::clone(&self.allocator)
    }

    /// Copies a block to `bytes`: of each layer its keys, then its values, elements as they lie in memory.
    ///
    /// # Panics
    /// If `bytes` are not [`BlockPool::block_bytes`], or nobody owns the block.
    pub fn read_block(&self, block: KvBlock, bytes: &mut [u8]) {
        self.assert_block(block, bytes.len());
        let mut rest = bytes;
        for slab in &self.slabs {
            let (to, after) = rest.split_at_mut(slab.stride);
            to.copy_from_slice(slab.block(block.index()));
            rest = after;
        }
    }

    /// Fills a block with what [`BlockPool::read_block`] gave for one of the same layout and element type.
    ///
    /// # Panics
    /// If `bytes` are not [`BlockPool::block_bytes`], or the block does not have exactly one owner.
    pub fn write_block(&mut self, block: KvBlock, bytes: &[u8]) {
        self.assert_block(block, bytes.len());
        assert_eq!(self.allocator.count(block), 1, "owners of the block that is written");
        let mut rest = bytes;
        for slab in &mut self.slabs {
            let (from, after) = rest.split_at(slab.stride);
            slab.block_mut(block.index()).copy_from_slice(from);
            rest = after;
        }
    }

    fn assert_block(&self, block: KvBlock, n_bytes: usize) {
        assert_eq!(n_bytes, self.block_bytes, "bytes of a block");
        assert!(self.allocator.count(block) > 0, "block {block:?} has no owner");
    }

    /// Returns how the blocks are used.
    pub fn stats(&self) -> PoolStats {
        self.allocator.stats()
    }

    /// Returns an empty sequence for up to `capacity` positions. It owns no blocks yet.
    pub fn sequence(&self, capacity: usize) -> Sequence {
        Sequence::new(Arc::clone(&self.allocator), capacity)
    }

    /// Returns a sequence that starts with the first `len` positions of `parent`, shared, not copied.
    ///
    /// # Panics
    /// If `parent` is shorter or belongs to another pool.
    pub fn fork(&self, parent: &Sequence, len: usize) -> Sequence {
        self.assert_owns(parent);
        Sequence::share(parent, len)
    }

    /// Makes room for `n` positions after the sequence's last, and for writing them: a last block that is shared and
    /// only partly filled is replaced by a copy. Room that is already there costs nothing. Allocates no memory.
    ///
    /// # Errors
    /// [`KvErrorKind::SequenceFull`] past the sequence's capacity, [`KvErrorKind::PoolFull`] when blocks are missing;
    /// the sequence is as before.
    ///
    /// # Panics
    /// If the sequence belongs to another pool.
    pub fn reserve(&mut self, sequence: &mut Sequence, n: usize) -> Result<(), KvError> {
        self.assert_owns(sequence);
        let needed = sequence.len().saturating_add(n);
        if needed > sequence.capacity() {
            return Err(KvError::new(KvErrorKind::SequenceFull { needed, capacity: sequence.capacity() }));
        }
        if n == 0 {
            return Ok(());
        }
        let n_more = needed.div_ceil(BLOCK_TOKENS).saturating_sub(sequence.blocks.len());
        let partial = sequence.len() / BLOCK_TOKENS;
        let written = sequence.blocks.get(partial).copied();
        if self.allocator.check_growth(written, n_more)? {
            self.copy_on_write(sequence, partial)?;
        }
        self.allocator.take(n_more, &mut sequence.blocks)
    }

    /// Replaces block `index` of a sequence by a copy of its own.
    fn copy_on_write(&mut self, sequence: &mut Sequence, index: usize) -> Result<(), KvError> {
        // The copy goes through the table's spare place, so that nothing is allocated.
        let shared = sequence.blocks[index];
        let last = sequence.blocks.len();
        self.allocator.take(1, &mut sequence.blocks)?;
        let copy = sequence.blocks.swap_remove(last);
        sequence.blocks[index] = copy;
        self.slabs.iter_mut().for_each(|slab| slab.copy_block(shared.index(), copy.index()));
        self.allocator.release(&[shared]);
        Ok(())
    }

    /// Returns one layer for attention.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        let Slab { bytes, stride, v_at, .. } = &self.slabs[layer];
        let units = KvUnits { bytes, stride: *stride, k_at: 0, v_at: *v_at };
        KvLayer::default().with(self.allocator.format(), units)
    }

    /// Writes a step's keys and values of one layer, all segments on the whole team. `k`: `[n_rows, n_kv_heads * k_dim]`,
    /// `v`: `[n_rows, n_kv_heads * v_dim]`. Halves are rounded to nearest even.
    ///
    /// Segments come from [`Sequence::segment`] after [`BlockPool::reserve`], which makes their positions their own.
    ///
    /// # Panics
    /// If there is no such layer, or a segment reaches past its blocks or past `k` and `v`.
    pub fn write_rows(&mut self, team: &Team, layer: usize, segments: &[Segment<'_>], k: &[f32], v: &[f32]) {
        debug_assert!(
            segments.iter().flat_map(written).all(|block| self.allocator.count(block) == 1),
            "a shared block is written"
        );
        let Slab { shape, bytes, stride, v_at } = &mut self.slabs[layer];
        let units = KvUnitsMut { format: self.allocator.format(), bytes, stride: *stride, k_at: 0, v_at: *v_at };
        attention::store(team, *shape, units, segments, k, v);
    }

    fn assert_owns(&self, sequence: &Sequence) {
        assert!(Arc::ptr_eq(&self.allocator, &sequence.allocator), "the sequence belongs to another pool");
    }
}

/// Returns the blocks a segment writes.
fn written<'a>(segment: &Segment<'a>) -> impl Iterator<Item = KvBlock> + use<'a> {
    let end = if segment.n_rows > 0 { (segment.pos + segment.n_rows).div_ceil(BLOCK_TOKENS) } else { 0 };
    segment.blocks[..end].iter().skip(segment.pos / BLOCK_TOKENS).copied()
}

#[cfg(test)]
mod tests;
