//! The bytes: one slab of keys and one of values per layer, cut in blocks.

use crate::block::{Allocator, BlockId, PoolStats};
use crate::error::{KvError, KvErrorKind};
use crate::table::Sequence;
use half::f16;
use ruvllm_kernels::arena::AlignedVec;
use ruvllm_kernels::attention::{self, BLOCK_TOKENS, KvShape, KvSlab, KvSlabMut, Segment};
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
    /// Returns the bytes of an element.
    pub fn n_bytes(self) -> usize {
        match self {
            KvType::F16 => 2,
            KvType::F32 => 4,
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
        self.layers.iter().map(|shape| (shape.k_block_len() + shape.v_block_len()) * kv.n_bytes()).sum()
    }

    /// Returns the number of blocks that hold `n_tokens` positions.
    pub fn blocks_for(n_tokens: usize) -> usize {
        n_tokens.div_ceil(BLOCK_TOKENS)
    }
}

/// The keys and values of one layer.
#[derive(Debug)]
struct Slab<T: bytemuck::Pod> {
    shape: KvShape,
    k: AlignedVec<T>,
    v: AlignedVec<T>,
}

impl<T: bytemuck::Pod> Slab<T> {
    fn new(shape: KvShape, n_blocks: usize) -> Slab<T> {
        let k = AlignedVec::new(n_blocks * shape.k_block_len());
        Slab { shape, k, v: AlignedVec::new(n_blocks * shape.v_block_len()) }
    }

    /// Returns the keys and the values of a block, as bytes.
    fn block(&self, block: usize) -> [&[u8]; 2] {
        let (k_len, v_len) = (self.shape.k_block_len(), self.shape.v_block_len());
        let (k, v) = (&self.k[block * k_len..][..k_len], &self.v[block * v_len..][..v_len]);
        [bytemuck::must_cast_slice(k), bytemuck::must_cast_slice(v)]
    }

    fn block_mut(&mut self, block: usize) -> [&mut [u8]; 2] {
        let (k_len, v_len) = (self.shape.k_block_len(), self.shape.v_block_len());
        let (k, v) = (&mut self.k[block * k_len..][..k_len], &mut self.v[block * v_len..][..v_len]);
        [bytemuck::cast_slice_mut(k), bytemuck::cast_slice_mut(v)]
    }

    fn copy_block(&mut self, from: usize, to: usize) {
        let (k_len, v_len) = (self.shape.k_block_len(), self.shape.v_block_len());
        self.k.copy_within(from * k_len..(from + 1) * k_len, to * k_len);
        self.v.copy_within(from * v_len..(from + 1) * v_len, to * v_len);
    }
}

/// All layers, by element type.
#[derive(Debug)]
enum Slabs {
    F16(Vec<Slab<f16>>),
    F32(Vec<Slab<f32>>),
}

/// A fixed number of blocks of 16 positions, each with room for the keys and values of every attention layer.
#[derive(Debug)]
pub struct BlockPool {
    slabs: Slabs,
    allocator: Arc<Allocator>,
    block_bytes: usize,
}

impl BlockPool {
    /// Allocates `n_blocks` blocks; their memory becomes real when it is first written.
    pub fn new(layout: &KvLayout, kv: KvType, n_blocks: usize) -> BlockPool {
        let shapes = layout.layers.iter();
        let slabs = match kv {
            KvType::F16 => Slabs::F16(shapes.map(|&shape| Slab::new(shape, n_blocks)).collect()),
            KvType::F32 => Slabs::F32(shapes.map(|&shape| Slab::new(shape, n_blocks)).collect()),
        };
        BlockPool { slabs, allocator: Arc::new(Allocator::new(n_blocks)), block_bytes: layout.block_bytes(kv) }
    }

    /// Returns the element type.
    pub fn kv_type(&self) -> KvType {
        match self.slabs {
            Slabs::F16(_) => KvType::F16,
            Slabs::F32(_) => KvType::F32,
        }
    }

    /// Returns the number of attention layers.
    pub fn n_layers(&self) -> usize {
        match &self.slabs {
            Slabs::F16(slabs) => slabs.len(),
            Slabs::F32(slabs) => slabs.len(),
        }
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
    pub fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        self.assert_block(block, bytes.len());
        let mut rest = bytes;
        let mut copy = |parts: [&[u8]; 2]| {
            for part in parts {
                let (to, after) = std::mem::take(&mut rest).split_at_mut(part.len());
                to.copy_from_slice(part);
                rest = after;
            }
        };
        match &self.slabs {
            Slabs::F16(slabs) => slabs.iter().for_each(|slab| copy(slab.block(block.index()))),
            Slabs::F32(slabs) => slabs.iter().for_each(|slab| copy(slab.block(block.index()))),
        }
    }

    /// Fills a block with what [`BlockPool::read_block`] gave for one of the same layout and element type.
    ///
    /// # Panics
    /// If `bytes` are not [`BlockPool::block_bytes`], or the block does not have exactly one owner.
    pub fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        self.assert_block(block, bytes.len());
        assert_eq!(self.allocator.count(block.0), 1, "owners of the block that is written");
        let mut rest = bytes;
        let mut copy = |parts: [&mut [u8]; 2]| {
            for part in parts {
                let (from, after) = rest.split_at(part.len());
                part.copy_from_slice(from);
                rest = after;
            }
        };
        match &mut self.slabs {
            Slabs::F16(slabs) => slabs.iter_mut().for_each(|slab| copy(slab.block_mut(block.index()))),
            Slabs::F32(slabs) => slabs.iter_mut().for_each(|slab| copy(slab.block_mut(block.index()))),
        }
    }

    fn assert_block(&self, block: BlockId, n_bytes: usize) {
        assert_eq!(n_bytes, self.block_bytes, "bytes of a block");
        assert!(self.allocator.count(block.0) > 0, "block {} has no owner", block.0);
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
        let (from, to) = (shared as usize, copy as usize);
        match &mut self.slabs {
            Slabs::F16(slabs) => slabs.iter_mut().for_each(|slab| slab.copy_block(from, to)),
            Slabs::F32(slabs) => slabs.iter_mut().for_each(|slab| slab.copy_block(from, to)),
        }
        self.allocator.release(&[shared]);
        Ok(())
    }

    /// Returns one layer for attention.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> KvSlab<'_> {
        match &self.slabs {
            Slabs::F16(slabs) => KvSlab::F16 { k: &slabs[layer].k, v: &slabs[layer].v },
            Slabs::F32(slabs) => KvSlab::F32 { k: &slabs[layer].k, v: &slabs[layer].v },
        }
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
        let (shape, slab) = match &mut self.slabs {
            Slabs::F16(slabs) => {
                let Slab { shape, k, v } = &mut slabs[layer];
                (*shape, KvSlabMut::F16 { k, v })
            }
            Slabs::F32(slabs) => {
                let Slab { shape, k, v } = &mut slabs[layer];
                (*shape, KvSlabMut::F32 { k, v })
            }
        };
        attention::store(team, shape, slab, segments, k, v);
    }

    fn assert_owns(&self, sequence: &Sequence) {
        assert!(Arc::ptr_eq(&self.allocator, &sequence.allocator), "the sequence belongs to another pool");
    }
}

/// Returns the blocks a segment writes.
fn written<'a>(segment: &Segment<'a>) -> impl Iterator<Item = u32> + use<'a> {
    let end = if segment.n_rows > 0 { (segment.pos + segment.n_rows).div_ceil(BLOCK_TOKENS) } else { 0 };
    segment.blocks[..end].iter().skip(segment.pos / BLOCK_TOKENS).copied()
}

#[cfg(test)]
mod tests;
