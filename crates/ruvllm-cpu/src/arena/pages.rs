//! Large pages: buffers one after another in big maps of the system.

use super::{ALIGN, AlignedVec};
use crate::ThreadPool;
use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A large page of x86-64 and of most ARM systems, in bytes.
pub(super) const PAGE_BYTES: usize = 2 << 20;

/// What is mapped at once. Only the pages that are touched become memory.
const CHUNK_BYTES: usize = 128 << 20;

/// Bytes that the pool touches ahead at once: enough pages to share out.
const AHEAD_BYTES: usize = 16 << 20;

/// A store of buffers that are filled at load and read whole ever after: a model's weights.
///
/// Buffers lie one after another in the order they were taken, so weights taken in the order of the forward pass are
/// one straight stream, and the system is asked for 2 MiB pages (Linux: `madvise(MADV_HUGEPAGE)`): a 4 KiB page ends
/// the prefetchers' stream and costs a table walk every 64 cache lines. Where the system has no such pages, or no maps
/// at all, the buffers are ordinary memory.
///
/// It is the wrong place for buffers of which little may be used: touching one byte takes 2 MiB.
///
/// ```
/// let mut pages = ruvllm_cpu::arena::LargePages::default();
/// let (a, b) = (pages.take::<u8>(100), pages.take::<f32>(1000));
/// assert_eq!(b.as_ptr() as usize - a.as_ptr() as usize, 128);
/// assert_eq!(b.iter().sum::<f32>(), 0.0);
/// ```
#[derive(Default)]
pub struct LargePages {
    /// The last chunk and how much of it is taken.
    last: Option<(Arc<Chunk>, usize)>,
    /// How much of the last chunk is memory already, in whole pages.
    touched: usize,
    /// Bytes that are still expected to be taken.
    expected: usize,
}

impl LargePages {
    /// Makes a store from which about `n_bytes` will be taken: so much may become memory ahead of its use.
    pub fn for_about(n_bytes: usize) -> LargePages {
        LargePages { expected: n_bytes, ..LargePages::default() }
    }

    /// [`LargePages::take`] with the pages made memory by all threads.
    ///
    /// The system clears a page on its first touch, which for a model's weights takes as long as repacking them, and
    /// workers that touch the same page at once clear it twice.
    ///
    /// # Panics
    /// As [`AlignedVec::new`].
    pub fn take_with<T: Pod>(&mut self, threads: &ThreadPool, len: usize) -> AlignedVec<T> {
        let n_bytes = n_bytes::<T>(len);
        self.expected = self.expected.saturating_sub(n_bytes);
        let Some((chunk, offset)) = self.place(n_bytes) else { return AlignedVec::new(len) };
        // Pages that begin before the buffer may be in use by others.
        let first = offset.next_multiple_of(PAGE_BYTES).max(self.touched);
        let end = (offset + n_bytes + self.expected.min(AHEAD_BYTES)).next_multiple_of(PAGE_BYTES).min(chunk.len);
        if offset + n_bytes > first {
            let n_pages = (end - first) / PAGE_BYTES;
            threads.for_each(n_pages, 1, &|pages, _| pages.for_each(|page| chunk.touch(first + page * PAGE_BYTES)));
            self.touched = end;
        }
        // SAFETY: as `place` says.
        unsafe { AlignedVec::within(chunk, offset, len) }
    }

    /// Returns a buffer of `len` zeros. It lives on its own: the store may go before it.
    ///
    /// # Panics
    /// As [`AlignedVec::new`].
    pub fn take<T: Pod>(&mut self, len: usize) -> AlignedVec<T> {
        let Some((chunk, offset)) = self.place(n_bytes::<T>(len)) else { return AlignedVec::new(len) };
        // SAFETY: as `place` says.
        unsafe { AlignedVec::within(chunk, offset, len) }
    }

    /// Takes `n_bytes` and returns where they begin: zeros inside the chunk at a multiple of [`ALIGN`], which were
    /// never handed out before and never will be. `None` for no bytes, and if the system maps no more.
    fn place(&mut self, n_bytes: usize) -> Option<(Arc<Chunk>, usize)> {
        if n_bytes == 0 {
            return None;
        }
        let room = |(chunk, used): &(Arc<Chunk>, usize)| chunk.len - used >= n_bytes;
        if !self.last.as_ref().is_some_and(room) {
            self.last = Some((Arc::new(Chunk::map(n_bytes.max(CHUNK_BYTES))?), 0));
            self.touched = 0;
        }
        let (chunk, used) = self.last.as_mut()?;
        let offset = *used;
        // A chunk is whole pages, so this is a multiple of `ALIGN` even where it is cut.
        *used = (offset + n_bytes).next_multiple_of(ALIGN).min(chunk.len);
        Some((Arc::clone(chunk), offset))
    }
}

fn n_bytes<T>(len: usize) -> usize {
    len.checked_mul(size_of::<T>()).expect("a buffer's size in bytes fits usize")
}

impl std::fmt::Debug for LargePages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (used, len) = self.last.as_ref().map_or((0, 0), |(chunk, used)| (*used, chunk.len));
        write!(f, "LargePages({used} of {len} bytes of the last chunk)")
    }
}

/// A map of fresh zeros, for which large pages were asked.
pub(super) struct Chunk {
    /// Never read or written through: `start` is, by the buffers.
    _map: MmapMut,
    /// The first large page of the map.
    start: NonNull<u8>,
    /// Bytes from `start` on.
    len: usize,
}

// SAFETY: the map is owned, and `start` is used only by buffers, which have disjoint parts of it.
unsafe impl Send for Chunk {}
// SAFETY: as above; the chunk itself gives nothing but the address.
unsafe impl Sync for Chunk {}

impl Chunk {
    /// Maps at least `n_bytes`, in whole large pages; `None` if the system will not.
    fn map(n_bytes: usize) -> Option<Chunk> {
        let len = n_bytes.checked_next_multiple_of(PAGE_BYTES)?;
        // A map begins at any small page: room to begin at a large one.
        let mut map = MmapOptions::new().len(len.checked_add(PAGE_BYTES)?).map_anon().ok()?;
        #[cfg(target_os = "linux")]
        // A kernel built without large pages refuses; the map is as good as any other then.
        let _ = map.advise(memmap2::Advice::HugePage);
        let base = NonNull::new(map.as_mut_ptr())?;
        // SAFETY: the map is `PAGE_BYTES` longer than `len`, and `align_offset` is less.
        let start = unsafe { base.add(base.align_offset(PAGE_BYTES)) };
        Some(Chunk { _map: map, start, len })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Makes the page at `offset` memory.
    ///
    /// # Panics
    /// If `offset` is outside the chunk.
    fn touch(&self, offset: usize) {
        assert!(offset < self.len, "page at {offset} of {} bytes", self.len);
        // SAFETY: the byte is inside the map, and no buffer has it yet: pages are touched from the buffer in the making
        // on, before it is made.
        unsafe { AtomicU8::from_ptr(self.start.add(offset).as_ptr()) }.fetch_add(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_follow_each_other_and_outlive_the_store() {
        let mut pages = LargePages::default();
        let mut buffers: Vec<_> = [1, 64, 65, 4096].map(|len| pages.take::<u8>(len)).into();
        let starts: Vec<_> = buffers.iter().map(|b| b.as_ptr() as usize - buffers[0].as_ptr() as usize).collect();
        assert_eq!((starts, buffers[0].as_ptr() as usize % PAGE_BYTES), (vec![0, 64, 128, 256], 0));
        drop(pages);
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.iter().all(|&b| b == 0));
            buffer.fill(i as u8 + 1);
        }
        buffers.remove(0);
        assert!(buffers.iter().zip(2..).all(|(buffer, v)| buffer.iter().all(|&b| b == v)));
    }

    #[test]
    fn the_pool_touches_pages_ahead_and_no_further_than_expected() {
        let (threads, mut pages) = (ThreadPool::new(2), LargePages::for_about(3 * PAGE_BYTES));
        let mut first = pages.take_with::<u8>(&threads, 64);
        assert_eq!(pages.touched, 3 * PAGE_BYTES);
        first.fill(7);
        let second = pages.take_with::<u32>(&threads, PAGE_BYTES);
        assert_eq!((pages.touched, pages.expected), (5 * PAGE_BYTES, 0));
        assert!(first.iter().all(|&b| b == 7) && second.iter().all(|&v| v == 0));
        let third = pages.take_with::<u8>(&threads, CHUNK_BYTES);
        assert_eq!((third[CHUNK_BYTES - 1], pages.touched), (0, CHUNK_BYTES));
    }

    #[test]
    fn buffers_larger_than_a_chunk_get_one_of_their_own() {
        let mut pages = LargePages::default();
        let small = pages.take::<f32>(3);
        let large = pages.take::<u8>(CHUNK_BYTES + 1);
        let next = pages.take::<u8>(PAGE_BYTES - 64);
        assert_eq!((large.len(), large[CHUNK_BYTES], small[2], next[0]), (CHUNK_BYTES + 1, 0, 0.0, 0));
        assert_eq!(pages.take::<u32>(0).len(), 0);
        assert!(format!("{pages:?}").starts_with("LargePages("));
    }
}
