//! A range of addresses whose large pages come and go one by one.

use super::pages::PAGE_BYTES;
#[cfg(not(any(unix, windows)))]
use super::wasm::Grown;
#[cfg(any(unix, windows))]
use memmap2::{MmapMut, MmapOptions};
use std::ops::{Deref, DerefMut, Range};
#[cfg(any(unix, windows))]
use std::ptr::NonNull;

/// Zeroed bytes in large pages that become memory when they are first touched and can be given back.
///
/// Reserving costs addresses only, so several ranges may together be far larger than what is ever used of them. Where
/// the system has no maps (WebAssembly), reserving promises only: bytes are there once the range has grown to them
/// ([`PageRange::grow_to`]), and giving pages back does nothing.
///
/// ```
/// use ruvllm_cpu::arena::PageRange;
/// let mut range = PageRange::reserve(64 << 30).expect("addresses are there");
/// range[5 << 30] = 1;
/// range.release(0..(64 << 30) / PageRange::PAGE_BYTES);
/// ```
pub struct PageRange {
    memory: Memory,
    len: usize,
}

/// What the system clears at once where it has no large pages.
const SMALL_PAGE_BYTES: usize = 4096;

enum Memory {
    /// The map, and its first large page.
    #[cfg(any(unix, windows))]
    Map {
        #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "it is held, and not given back in parts"))]
        map: MmapMut,
        start: NonNull<u8>,
    },
    /// Bytes that are there of the range, where there are no maps.
    #[cfg(not(any(unix, windows)))]
    Grown(Grown),
}

// SAFETY: the memory is owned, and its bytes may be read and written on any thread.
unsafe impl Send for PageRange {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for PageRange {}

impl PageRange {
    /// Bytes of a page.
    pub const PAGE_BYTES: usize = PAGE_BYTES;

    /// Reserves `n_bytes` zeros, rounded up to whole pages; `None` if the system has not so many addresses.
    pub fn reserve(n_bytes: usize) -> Option<PageRange> {
        let len = n_bytes.checked_next_multiple_of(PAGE_BYTES).filter(|&len| isize::try_from(len).is_ok())?;
        PageRange::take(len)
    }

    #[cfg(not(any(unix, windows)))]
    fn take(len: usize) -> Option<PageRange> {
        Some(PageRange { memory: Memory::Grown(Grown::default()), len })
    }

    #[cfg(any(unix, windows))]
    fn take(len: usize) -> Option<PageRange> {
        // A map begins at any small page: room to begin at a large one.
        let mapped = len.checked_add(PAGE_BYTES)?;
        let mut map = MmapOptions::new().len(mapped).no_reserve_swap().map_anon().ok()?;
        #[cfg(target_os = "linux")]
        // A kernel built without large pages refuses; the map is as good as any other then.
        let _ = map.advise(memmap2::Advice::HugePage);
        let base = NonNull::new(map.as_mut_ptr())?;
        // SAFETY: the map is `PAGE_BYTES` longer than `len`, and `align_offset` is less.
        let start = unsafe { base.add(base.align_offset(PAGE_BYTES)) };
        Some(PageRange { memory: Memory::Map { map, start }, len })
    }

    /// Makes the first `n_bytes` of the range usable, which they are anyway where the system has maps. What they held stays, perhaps
    /// at another address. Returns false if there is not so much memory.
    ///
    /// # Panics
    /// If the range is shorter.
    pub fn grow_to(&mut self, n_bytes: usize) -> bool {
        assert!(n_bytes <= self.len, "{n_bytes} of {} bytes", self.len);
        match &mut self.memory {
            #[cfg(any(unix, windows))]
            Memory::Map { .. } => true,
            #[cfg(not(any(unix, windows)))]
            Memory::Grown(bytes) if n_bytes <= bytes.len() => true,
            #[cfg(not(any(unix, windows)))]
            Memory::Grown(bytes) => bytes.grow_to(n_bytes.next_multiple_of(PAGE_BYTES), self.len),
        }
    }

    /// Gives pages back to the system (Linux: at once); their bytes are then unspecified until they are written.
    ///
    /// # Panics
    /// If there are not so many pages.
    pub fn release(&mut self, pages: Range<usize>) {
        assert!(
            pages.start <= pages.end && pages.end * PAGE_BYTES <= self.len,
            "pages {pages:?} of {} bytes",
            self.len
        );
        #[cfg(target_os = "linux")]
        {
            let Memory::Map { map, start } = &self.memory;
            let offset = start.as_ptr() as usize - map.as_ptr() as usize + pages.start * PAGE_BYTES;
            // SAFETY: the pages are private memory of this map, which `&mut self` alone may look at: they read as
            // zeros afterwards, as any bytes might.
            let _ = unsafe {
                map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, offset, pages.len() * PAGE_BYTES)
            };
        }
    }

    /// Makes pages memory that would become so when they are first written; their bytes stay.
    ///
    /// # Panics
    /// If there are not so many pages.
    pub fn touch(&mut self, pages: Range<usize>) {
        assert!(pages.end * PAGE_BYTES <= self.len, "pages {pages:?} of {} bytes", self.len);
        // Where ranges grow, pages that are not there yet are not made ahead.
        let bytes = self.get_mut(pages.start * PAGE_BYTES..pages.end * PAGE_BYTES).unwrap_or_default();
        for small in bytes.chunks_mut(SMALL_PAGE_BYTES) {
            // Opaque, so that writing back what was read is not left out.
            small[0] = std::hint::black_box(small[0]);
        }
    }
}

impl Deref for PageRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            #[cfg(any(unix, windows))]
            // SAFETY: `start` leads `len` bytes of the map, zeroed at first.
            Memory::Map { start, .. } => unsafe { std::slice::from_raw_parts(start.as_ptr(), self.len) },
            #[cfg(not(any(unix, windows)))]
            Memory::Grown(bytes) => bytes,
        }
    }
}

impl DerefMut for PageRange {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            #[cfg(any(unix, windows))]
            // SAFETY: as in `deref`, and `&mut self` is the only access.
            Memory::Map { start, .. } => unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.len) },
            #[cfg(not(any(unix, windows)))]
            Memory::Grown(bytes) => bytes,
        }
    }
}

impl std::fmt::Debug for PageRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageRange({} bytes)", self.len)
    }
}

const _: () = assert!(PAGE_BYTES.is_multiple_of(super::ALIGN));

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the process's resident bytes, where the system tells.
    fn resident() -> Option<usize> {
        let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
        Some(statm.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
    }

    #[test]
    fn pages_come_when_touched_and_go_when_released() {
        let n_pages = 64;
        let mut range = PageRange::reserve(n_pages * PAGE_BYTES - 5).expect("addresses are there");
        assert!(range.grow_to(5) && range.grow_to(n_pages * PAGE_BYTES));
        assert_eq!((range.len(), range.as_ptr() as usize % PAGE_BYTES), (n_pages * PAGE_BYTES, 0));
        range.fill(7);
        range.touch(0..n_pages);
        assert!(range.iter().all(|&byte| byte == 7), "bytes stay");
        let full = resident();
        range.release(1..n_pages);
        assert_eq!((range[0], range[PAGE_BYTES - 1]), (7, 7));
        if let (true, Some(full), Some(after)) = (cfg!(target_os = "linux"), full, resident()) {
            // Other tests take and give memory meanwhile.
            assert!(full > after + 32 * PAGE_BYTES, "{full} {after}");
            range.touch(1..n_pages);
            assert!(resident().is_none_or(|touched| touched > after + 32 * PAGE_BYTES), "touched pages are memory");
            assert_eq!(range[PAGE_BYTES], 0);
        }
        range[n_pages * PAGE_BYTES - 1] = 1;
        assert!(PageRange::reserve(usize::MAX).is_none());
        assert_eq!(format!("{range:?}"), "PageRange(134217728 bytes)");
    }

    #[test]
    #[should_panic(expected = "pages 0..2 of 2097152 bytes")]
    fn pages_past_the_end_are_refused() {
        PageRange::reserve(1).expect("a page").release(0..2);
    }
}
