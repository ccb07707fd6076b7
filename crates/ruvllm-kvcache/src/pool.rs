//! The bytes: a range of addresses per format, cut in units that hold every layer's part of some positions.

use crate::block::{Allocator, PoolStats, SpaceSize};
use crate::budget::PAGE_BYTES;
use crate::error::{KvError, KvErrorKind};
use crate::table::Sequence;
use ruvllm_kernels::arena::PageRange;
use ruvllm_kernels::attention::{
    self, BLOCK_TOKENS, KvBlock, KvFormat, KvLayer, KvShape, KvUnits, KvUnitsMut, Segment,
};
use ruvllm_kernels::team::Team;
use std::sync::Arc;

/// What a model keeps per position: one entry per *attention* layer; layers without attention have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// The attention layers in order.
    pub layers: Vec<KvShape>,
}

impl KvLayout {
    /// Returns the bytes of one block over all layers; of Q4 and Q2, of a quarter of a unit.
    pub fn block_bytes(&self, format: KvFormat) -> usize {
        self.unit_bytes(format) / format.blocks_per_unit()
    }

    /// Returns the bytes of one unit over all layers.
    pub fn unit_bytes(&self, format: KvFormat) -> usize {
        self.layers.iter().map(|&shape| format.k_bytes(shape) + format.v_bytes(shape)).sum()
    }

    /// Returns the number of blocks that hold `n_tokens` positions.
    pub fn blocks_for(n_tokens: usize) -> usize {
        n_tokens.div_ceil(BLOCK_TOKENS)
    }

    /// Returns the bytes of memory that `n_blocks` blocks of a format take in a pool: somewhat more than the blocks have,
    /// because units do not lie side by side.
    pub fn memory_for(&self, format: KvFormat, n_blocks: usize) -> usize {
        self.stride(format).saturating_mul(n_blocks.div_ceil(format.blocks_per_unit()))
    }

    /// Returns the distance between units in memory.
    ///
    /// A head of every block at the same place of a 4 KiB page would crowd few sets of the first-level cache; large
    /// units, for which half a page is nothing, begin at places that change.
    fn stride(&self, format: KvFormat) -> usize {
        let n_bytes = self.unit_bytes(format).max(1);
        if n_bytes < PADDED_BYTES { n_bytes } else { (n_bytes - SPREAD).next_multiple_of(SMALL_PAGE) + SPREAD }
    }
}

/// What the first-level cache sees of an address, in bytes.
const SMALL_PAGE: usize = 4096;
/// How far apart neighbouring units are within such a page: half of it and a line.
const SPREAD: usize = 2112;
/// Units from this size on are spread.
const PADDED_BYTES: usize = 64 << 10;

/// The units of one format.
#[derive(Debug)]
struct Store {
    range: PageRange,
    /// Bytes of all units.
    n_bytes: usize,
    stride: usize,
    unit_bytes: usize,
    /// Where each layer's keys and values begin in a unit.
    parts: Vec<(usize, usize)>,
}

impl Store {
    fn new(layout: &KvLayout, size: SpaceSize) -> Option<Store> {
        let mut at = 0;
        let parts = layout.layers.iter().map(|&shape| {
            let (k_at, v_at) = (at, at + size.format.k_bytes(shape));
            at = v_at + size.format.v_bytes(shape);
            (k_at, v_at)
        });
        let parts = parts.collect();
        let n_bytes = size.stride.checked_mul(size.n_units)?;
        let range = PageRange::reserve(n_bytes)?;
        Some(Store { range, n_bytes, stride: size.stride, unit_bytes: layout.unit_bytes(size.format), parts })
    }

    fn units(&self, layer: usize) -> KvUnits<'_> {
        let (k_at, v_at) = self.parts[layer];
        KvUnits { bytes: &self.range[..self.n_bytes], stride: self.stride, k_at, v_at }
    }

    fn unit(&self, unit: usize) -> &[u8] {
        &self.range[unit * self.stride..][..self.unit_bytes]
    }

    fn unit_mut(&mut self, unit: usize) -> &mut [u8] {
        &mut self.range[unit * self.stride..][..self.unit_bytes]
    }
}

/// Blocks of 16 positions, each with room for the keys and values of every attention layer, in one or more formats that
/// share a limit of memory.
#[derive(Debug)]
pub struct BlockPool {
    /// By format; `None` for those not used.
    stores: [Option<Store>; KvFormat::COUNT],
    allocator: Arc<Allocator>,
    layout: KvLayout,
    exact: KvFormat,
    n_bytes: usize,
}

impl BlockPool {
    /// Makes a pool of `n_blocks` blocks of one exact format; their memory becomes real when it is first written.
    ///
    /// # Panics
    /// If the system has not so many addresses, or the format is not exact.
    pub fn new(layout: &KvLayout, format: KvFormat, n_blocks: usize) -> BlockPool {
        let stride = layout.stride(format);
        let sizes = [SpaceSize { format, stride, n_units: n_blocks }];
        BlockPool::with_sizes(layout, &sizes, stride * n_blocks).expect("there are addresses for the pool")
    }

    /// Makes a pool of blocks of `formats` that together never take more than `bytes_max` bytes of memory, in whole
    /// pages of 2 MiB. Rows are written in the first format, which must be exact.
    ///
    /// # Errors
    /// [`KvErrorKind::NoMemory`] if the system has not so many addresses.
    ///
    /// # Panics
    /// If the first format is not exact.
    pub fn within(layout: &KvLayout, formats: &[KvFormat], bytes_max: usize) -> Result<BlockPool, KvError> {
        let n_bytes = bytes_max / PAGE_BYTES * PAGE_BYTES;
        let size = |&format: &KvFormat| {
            let stride = layout.stride(format);
            let n_units_max = KvBlock::MAX_BLOCKS / format.blocks_per_unit();
            SpaceSize { format, stride, n_units: n_bytes.checked_div(stride).unwrap_or(0).min(n_units_max) }
        };
        let sizes: Vec<SpaceSize> = formats.iter().map(size).collect();
        BlockPool::with_sizes(layout, &sizes, n_bytes)
    }

    fn with_sizes(layout: &KvLayout, sizes: &[SpaceSize], bytes_max: usize) -> Result<BlockPool, KvError> {
        let exact = sizes[0].format;
        assert!(exact.is_exact(), "rows are written to f16 and f32 blocks, not to {exact}");
        let mut stores = [const { None }; KvFormat::COUNT];
        for &size in sizes {
            let store = Store::new(layout, size);
            let store = store.ok_or(KvError::no_memory(bytes_max))?;
            stores[size.format as usize] = Some(store);
        }
        let allocator = Arc::new(Allocator::new(sizes, PAGE_BYTES, bytes_max.div_ceil(PAGE_BYTES)));
        let n_bytes = sizes[0].n_units * layout.block_bytes(exact);
        Ok(BlockPool { stores, allocator, layout: layout.clone(), exact, n_bytes })
    }

    /// Returns the format that rows are written in.
    pub fn exact_format(&self) -> KvFormat {
        self.exact
    }

    /// Returns the number of attention layers.
    pub fn n_layers(&self) -> usize {
        self.layout.layers.len()
    }

    /// Returns the bytes of all blocks there would be if all were exact.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Returns the bytes of the blocks that have an owner.
    pub fn held_bytes(&self) -> usize {
        let n_owned = self.allocator.n_owned();
        KvFormat::ALL.iter().map(|&format| n_owned[format as usize] * self.block_bytes(format)).sum()
    }

    /// Returns the bytes that may be memory: pages that blocks lie or lay in, never more than the pool's limit.
    pub fn committed_bytes(&self) -> usize {
        self.allocator.n_pages() * PAGE_BYTES
    }

    /// Returns the bytes of one block of a format over all layers.
    pub fn block_bytes(&self, format: KvFormat) -> usize {
        self.layout.block_bytes(format)
    }

    /// Returns the bytes that [`BlockPool::read_block`] gives for a block of this format.
    pub fn unit_bytes(&self, format: KvFormat) -> usize {
        self.layout.unit_bytes(format)
    }

    /// Returns the counts, for another owner of blocks.
    pub(crate) fn allocator(&self) -> Arc<Allocator> {
        Arc::clone(&self.allocator)
    }

    /// Returns whether the pool has blocks of a format.
    pub fn has(&self, format: KvFormat) -> bool {
        self.stores[format as usize].is_some()
    }

    fn store(&self, format: KvFormat) -> &Store {
        self.stores[format as usize].as_ref().unwrap_or_else(|| panic!("the pool has no {format} blocks"))
    }

    fn store_mut(&mut self, format: KvFormat) -> &mut Store {
        self.stores[format as usize].as_mut().unwrap_or_else(|| panic!("the pool has no {format} blocks"))
    }

    /// Copies the unit that a block lies in to `bytes`: of each layer its keys, then its values, as they lie in memory.
    /// For F32, F16 and Q8 that is the block; four blocks of Q4 and Q2 share scales and are read and written together.
    ///
    /// # Panics
    /// If `bytes` are not [`BlockPool::unit_bytes`], or nobody owns the block.
    pub fn read_block(&self, block: KvBlock, bytes: &mut [u8]) {
        assert!(self.allocator.count(block) > 0, "block {block:?} has no owner");
        bytes.copy_from_slice(self.store(block.format()).unit(block.unit()));
    }

    /// Fills the unit that a block lies in with what [`BlockPool::read_block`] gave for one of the same layout and format.
    ///
    /// # Panics
    /// If `bytes` are not [`BlockPool::unit_bytes`], or the block does not have exactly one owner.
    pub fn write_block(&mut self, block: KvBlock, bytes: &[u8]) {
        assert_eq!(self.allocator.count(block), 1, "owners of the block that is written");
        self.store_mut(block.format()).unit_mut(block.unit()).copy_from_slice(bytes);
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
        let n_blocks = sequence.blocks.len();
        let n_more = needed.div_ceil(BLOCK_TOKENS).saturating_sub(n_blocks);
        let partial = sequence.len() / BLOCK_TOKENS;
        let shared = sequence.blocks.get(partial).copied().filter(|&block| self.allocator.count(block) > 1);
        // A copy goes through the table's spare place, so that nothing is allocated.
        self.take(self.exact, n_more + usize::from(shared.is_some()), &mut sequence.blocks)?;
        if let Some(shared) = shared {
            sequence.blocks[partial] = sequence.blocks.remove(n_blocks);
            self.copy(shared, sequence.blocks[partial]);
            self.allocator.release(&[shared]);
        }
        Ok(())
    }

    /// Takes units, for which idle pages of other formats give way.
    pub(crate) fn take(&mut self, format: KvFormat, n_units: usize, blocks: &mut Vec<KvBlock>) -> Result<(), KvError> {
        self.allocator.take(format, n_units, blocks).or_else(|_| {
            self.reclaim(0);
            self.allocator.take(format, n_units, blocks)
        })
    }

    /// Copies a block to an exact one.
    fn copy(&mut self, from: KvBlock, to: KvBlock) {
        assert_eq!(from.format(), self.exact, "the format of a block that is copied");
        let Store { range, stride, unit_bytes, .. } = self.store_mut(to.format());
        range.copy_within(from.unit() * *stride..from.unit() * *stride + *unit_bytes, to.unit() * *stride);
    }

    /// Gives pages in which no block has an owner back to the system, all but `bytes_kept` bytes of them.
    pub fn reclaim(&mut self, bytes_kept: usize) {
        let BlockPool { allocator, stores, .. } = self;
        allocator.reclaim(bytes_kept / PAGE_BYTES, &mut |format, page| {
            let store = stores[format as usize].as_mut().expect("a format with pages has a store");
            store.range.release(page..page + 1);
        });
    }

    /// Returns one layer for attention.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        let stores =
            KvFormat::ALL.iter().zip(&self.stores).filter_map(|(&format, store)| Some((format, store.as_ref()?)));
        stores.fold(KvLayer::default(), |all, (format, store)| all.with(format, store.units(layer)))
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
        let (shape, format) = (self.layout.layers[layer], self.exact);
        let store = self.store_mut(format);
        let ((k_at, v_at), stride) = (store.parts[layer], store.stride);
        let units = KvUnitsMut { format, bytes: &mut store.range[..store.n_bytes], stride, k_at, v_at };
        attention::store(team, shape, units, segments, k, v);
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
