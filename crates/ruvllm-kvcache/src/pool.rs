//! The pool of blocks: a range of addresses per format, cut in units that hold every layer's part of some positions.

mod layout;
mod lender;
mod quantize;
mod store;

use crate::block::{Allocator, PoolStats, SpaceSize};
use crate::budget::PAGE_BYTES;
use crate::error::{KvError, KvErrorKind};
use crate::stats::Usage;
use crate::table::Sequence;
use ruvllm_cpu::ThreadPool;
use ruvllm_kernels::attention::{self, BLOCK_TOKENS, KvBlock, KvFormat, KvLayer, KvUnitsMut, Segment, UNIT_BLOCKS};
use std::sync::Arc;

pub use layout::KvLayout;
pub use lender::PageLender;
pub use quantize::Quantizer;
use store::Store;

/// Blocks of 16 positions, each with room for K and V of every attention layer, in one or more formats that
/// share a limit of memory.
#[derive(Debug)]
pub struct BlockPool {
    /// By format; `None` for those not used.
    stores: [Option<Store>; KvFormat::COUNT],
    allocator: Arc<Allocator>,
    layout: KvLayout,
    exact: KvFormat,
    n_bytes: usize,
    /// The blocks of a migration, kept so that it allocates nothing.
    made: Vec<KvBlock>,
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
        Ok(BlockPool {
            stores,
            allocator,
            layout: layout.clone(),
            exact,
            n_bytes,
            made: Vec::with_capacity(UNIT_BLOCKS),
        })
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
        self.held_bytes_by_format().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the same of every format that the pool has.
    pub fn held_bytes_by_format(&self) -> impl Iterator<Item = (KvFormat, usize)> + '_ {
        let n_owned = self.allocator.n_owned();
        let has = KvFormat::ALL.into_iter().filter(|&format| self.has(format));
        has.map(move |format| (format, n_owned[format as usize] * self.block_bytes(format)))
    }

    /// Returns the bytes that may be memory: pages that blocks lie or lay in, never more than the pool's limit.
    pub fn committed_bytes(&self) -> usize {
        self.allocator.n_pages() * PAGE_BYTES
    }

    /// Returns the bytes of memory that `n_blocks` blocks as they are written need: see [`KvLayout::memory_for`].
    pub fn memory_for(&self, n_blocks: usize) -> usize {
        let formats: Vec<KvFormat> = KvFormat::ALL.into_iter().filter(|&format| self.has(format)).collect();
        let exact = formats.iter().position(|&format| format == self.exact).unwrap_or(0);
        self.layout.memory_for(&formats[exact..], n_blocks)
    }

    /// Returns what lends the pool's pages to others, from any thread.
    pub fn lender(&self) -> PageLender {
        PageLender(Arc::clone(&self.allocator))
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

    /// Returns who holds the blocks where there is no prefix cache (else [`PrefixCache::usage`](crate::PrefixCache::usage)).
    pub fn usage(&self) -> Usage {
        self.usage_with([0; KvFormat::COUNT])
    }

    /// Returns the bytes of the blocks that a sequence holds, reserved ones too.
    pub fn sequence_bytes(&self, sequence: &Sequence) -> usize {
        sequence.blocks().map(|block| self.block_bytes(block.format())).sum()
    }

    /// Returns who holds the blocks, if `cached_only` of each format are the prefix cache's alone.
    pub(crate) fn usage_with(&self, cached_only: [usize; KvFormat::COUNT]) -> Usage {
        let stats = self.stats();
        let bytes = KvFormat::ALL.iter().map(|&format| cached_only[format as usize] * self.block_bytes(format));
        let (n_cached, cached_only_bytes) = (cached_only.iter().sum::<usize>(), bytes.sum::<usize>());
        Usage {
            total: stats.total,
            free: stats.free,
            cached_only: n_cached,
            in_use: stats.in_use - n_cached,
            cached_only_bytes,
            in_use_bytes: self.held_bytes() - cached_only_bytes,
            committed_bytes: self.committed_bytes(),
        }
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
        let (exact, allocator) = (self.exact, &self.allocator);
        let is_own = |block: KvBlock| block.format() == exact && allocator.count(block) == 1;
        let last = sequence.blocks.get(partial).copied();
        let copied = last.filter(|&block| !is_own(block));
        // A copy goes through the table's spare place, so that nothing is allocated.
        self.take(exact, n_more + usize::from(copied.is_some()), &mut sequence.blocks)?;
        if let Some(copied) = copied {
            sequence.blocks[partial] = sequence.blocks.remove(n_blocks);
            self.copy(copied, sequence.blocks[partial]);
            self.allocator.release(&[copied]);
        } else if let Some(last) = last {
            // Others it was once shared with may hold what was made of it.
            self.allocator.forget_quantised(last);
        }
        Ok(())
    }

    /// Takes units, for which idle pages of other formats are evicted.
    pub(crate) fn take(&mut self, format: KvFormat, n_units: usize, blocks: &mut Vec<KvBlock>) -> Result<(), KvError> {
        let before = blocks.len();
        self.allocator.take(format, n_units, blocks).or_else(|_| {
            self.reclaim(0);
            self.allocator.take(format, n_units, blocks)
        })?;
        let last = blocks[before..].iter().map(|block| block.unit()).max();
        if last.is_none_or(|unit| self.store_mut(format).grow_to(unit)) {
            return Ok(());
        }
        self.allocator.release(&blocks[before..]);
        blocks.truncate(before);
        let (needed, in_use) = (n_units * format.blocks_per_unit(), self.stats().in_use);
        Err(KvError::new(KvErrorKind::PoolFull { needed, free: 0, total: in_use }))
    }

    /// Copies a block to an exact one.
    fn copy(&mut self, from: KvBlock, to: KvBlock) {
        if from.format() != self.exact {
            return self.restore(from, to);
        }
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

    /// Makes memory of the pages of one more block unless blocks of `n_bytes` are ready to be taken, if there is room; returns whether
    /// it did. The system clears a page when it is first written, for which nobody needs to wait who computes a prompt.
    pub fn make_ready(&mut self, n_bytes: usize) -> bool {
        let BlockPool { allocator, stores, exact, .. } = self;
        let stride = stores[*exact as usize].as_ref().map_or(1, |store| store.stride);
        allocator.make_ready(n_bytes.div_ceil(stride), &mut |format, page| {
            let store = stores[format as usize].as_mut().expect("a format with pages has a store");
            store.range.touch(page..page + 1);
        })
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

    /// Writes a step's K and V rows of one layer, all segments on all threads. `k`: `[n_rows, n_kv_heads * k_dim]`,
    /// `v`: `[n_rows, n_kv_heads * v_dim]`. Halves are rounded to nearest even.
    ///
    /// Segments come from [`Sequence::segment`] after [`BlockPool::reserve`], which makes their positions their own.
    ///
    /// # Panics
    /// If there is no such layer, or a segment reaches past its blocks or past `k` and `v`.
    pub fn write_rows(&mut self, threads: &ThreadPool, layer: usize, segments: &[Segment<'_>], k: &[f32], v: &[f32]) {
        debug_assert!(
            segments.iter().flat_map(written).all(|block| self.allocator.count(block) == 1),
            "a shared block is written"
        );
        let (shape, format) = (self.layout.layers[layer], self.exact);
        let store = self.store_mut(format);
        let ((k_at, v_at), stride) = (store.parts[layer], store.stride);
        let units = KvUnitsMut { format, bytes: store.bytes_mut(), stride, k_at, v_at };
        attention::store(threads, shape, units, segments, k, v);
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
