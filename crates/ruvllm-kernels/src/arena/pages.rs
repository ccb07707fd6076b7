//! Large pages: buffers one after another in big maps of the system.

use super::{ALIGN, AlignedVec};
use bytemuck::Pod;
use memmap2::{MmapMut, MmapOptions};
use std::ptr::NonNull;
use std::sync::Arc;

/// A large page of x86-64 and of most ARM systems, in bytes.
const PAGE_BYTES: usize = 2 << 20;

/// What is mapped at once. Only the pages that are touched become memory.
const CHUNK_BYTES: usize = 128 << 20;

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
/// let mut pages = ruvllm_kernels::arena::LargePages::default();
/// let (a, b) = (pages.take::<u8>(100), pages.take::<f32>(1000));
/// assert_eq!(b.as_ptr() as usize - a.as_ptr() as usize, 128);
/// assert_eq!(b.iter().sum::<f32>(), 0.0);
/// ```
#[derive(Default)]
pub struct LargePages {
    /// The last chunk and how much of it is taken.
    last: Option<(Arc<Chunk>, usize)>,
}

impl LargePages {
    /// Returns a buffer of `len` zeros. It lives on its own: the store may go before it.
    ///
    /// # Panics
    /// As [`AlignedVec::new`].
    pub fn take<T: Pod>(&mut self, len: usize) -> AlignedVec<T> {
        let n_bytes = len.checked_mul(size_of::<T>()).expect("a buffer's size in bytes fits usize");
        if n_bytes == 0 {
            return AlignedVec::new(len);
        }
        let room = |(chunk, used): &(Arc<Chunk>, usize)| chunk.len - used >= n_bytes;
        if !self.last.as_ref().is_some_and(room) {
            let Some(chunk) = Chunk::map(n_bytes.max(CHUNK_BYTES)) else { return AlignedVec::new(len) };
            self.last = Some((Arc::new(chunk), 0));
        }
        let (chunk, used) = self.last.as_mut().expect("there is a chunk with room");
        let offset = *used;
        *used = (offset + n_bytes).next_multiple_of(ALIGN).min(chunk.len);
        // SAFETY: `offset` is a multiple of `ALIGN` (a chunk that is full to the last byte has no room, as `n_bytes`
        // is not 0), `n_bytes` from there are inside the chunk, were never handed out before and never will be, and
        // fresh anonymous pages are zeros.
        unsafe { AlignedVec::within(Arc::clone(chunk), offset, len) }
    }
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
