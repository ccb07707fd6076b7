//! Pages of a pool that somebody else uses for a while.

use std::sync::Arc;

use crate::block::Allocator;

/// Lender of a pool's pages: its blocks have as many fewer until they are back, so both together never take more than the
/// pool was made with. Clones lend from the same pool.
#[derive(Clone, Debug)]
pub struct PageLender(pub(super) Arc<Allocator>);

impl PageLender {
    /// Lends pages of [`PAGE_BYTES`](crate::PAGE_BYTES) that the pool has no memory in, and returns whether it had as many:
    /// [`BlockPool::reclaim`](crate::BlockPool::reclaim) makes idle ones such.
    pub fn lend(&self, n_pages: usize) -> bool {
        self.0.lend(n_pages)
    }

    /// Takes pages back.
    ///
    /// # Panics
    /// If fewer are lent.
    pub fn take_back(&self, n_pages: usize) {
        self.0.take_back(n_pages);
    }

    /// Returns how many are lent.
    pub fn n_lent(&self) -> usize {
        self.0.n_lent()
    }
}
