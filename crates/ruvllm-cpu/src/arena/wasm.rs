//! Memory of WebAssembly: one array that grows and never shrinks. The host makes a page of it real when it is touched.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// Bytes of a page of the module's memory.
const WASM_PAGE_BYTES: usize = 64 << 10;

/// The most pages that a module of 32-bit addresses has.
const N_PAGES_MAX: usize = 1 << 16;

/// Regions that were given back, by address and length: the memory does not shrink, so they are taken again.
static FREE: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Returns how many bytes the memory can still grow by.
pub(super) fn growable_bytes() -> usize {
    // The last page is left out, so that no end of a slice is beyond the last address.
    (N_PAGES_MAX - 1).saturating_sub(core::arch::wasm32::memory_size::<0>()) * WASM_PAGE_BYTES
}

/// A region that the memory grew by: zeros, of which nothing is touched before it is used.
pub(super) struct Grown {
    start: usize,
    len: usize,
}

impl Grown {
    /// Takes `len` bytes; `None` if the memory does not grow so far.
    pub(super) fn take(len: usize) -> Option<Grown> {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = free.iter().position(|&(_, n_bytes)| n_bytes >= len) {
            let (start, n_bytes) = free.swap_remove(at);
            if n_bytes > len {
                free.push((start + len, n_bytes - len));
            }
            let mut grown = Grown { start, len };
            grown.fill(0);
            return Some(grown);
        }
        drop(free);
        if len > growable_bytes() {
            return None;
        }
        let page = core::arch::wasm32::memory_grow::<0>(len.div_ceil(WASM_PAGE_BYTES));
        (page != usize::MAX).then(|| Grown { start: page * WASM_PAGE_BYTES, len })
    }
}

impl Deref for Grown {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory grew by these bytes for this value alone, and never shrinks.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.start), self.len) }
    }
}

impl DerefMut for Grown {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(self.start), self.len) }
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push((self.start, self.len));
    }
}
