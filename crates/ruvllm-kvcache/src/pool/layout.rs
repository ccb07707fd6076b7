//! The bytes of a position, a block and a unit, and how far apart units lie.

use ruvllm_kernels::attention::{BLOCK_TOKENS, KvFormat, KvShape};

use crate::block::LEFT_TO_EACH;
use crate::budget::PAGE_BYTES;

/// Bytes of an address that the first-level cache sees.
const SMALL_PAGE: usize = 4096;
/// Distance of neighbouring units within such a page: half of it and a line.
const SPREAD: usize = 2112;
/// Units from this size on are spread.
const PADDED_BYTES: usize = 64 << 10;

/// Layout of a position: one entry per *attention* layer; layers without attention have none.
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

    /// Returns the bytes of memory that a pool of `formats` needs to hold `n_blocks` blocks as they are written: somewhat
    /// more than the blocks have, because units do not lie side by side and pages are left to the other formats.
    pub fn memory_for(&self, formats: &[KvFormat], n_blocks: usize) -> usize {
        let left_over = (formats.len() - 1) * LEFT_TO_EACH * PAGE_BYTES;
        let blocks = self.stride(formats[0]).saturating_mul(n_blocks.div_ceil(formats[0].blocks_per_unit()));
        blocks.checked_next_multiple_of(PAGE_BYTES).map_or(usize::MAX, |bytes| bytes.saturating_add(left_over))
    }

    /// Returns the distance between units in memory.
    ///
    /// A head of every block at the same place of a 4 KiB page would crowd few sets of the first-level cache; large
    /// units, for which half a page is nothing, begin at places that change.
    pub(super) fn stride(&self, format: KvFormat) -> usize {
        let n_bytes = self.unit_bytes(format).max(1);
        if n_bytes < PADDED_BYTES { n_bytes } else { (n_bytes - SPREAD).next_multiple_of(SMALL_PAGE) + SPREAD }
    }
}
