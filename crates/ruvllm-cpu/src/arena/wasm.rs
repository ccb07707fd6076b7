//! Memory of WebAssembly: one array that grows and never shrinks.

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

/// Grows the memory by whole pages, and returns where they begin; `None` if it does not grow so far.
fn grow(n_bytes: usize) -> Option<usize> {
    if n_bytes > growable_bytes() {
        return None;
    }
    let page = core::arch::wasm32::memory_grow::<0>(n_bytes.div_ceil(WASM_PAGE_BYTES));
    (page != usize::MAX).then(|| page * WASM_PAGE_BYTES)
}

/// A region that the memory grew by: zeros, of which nothing is touched before it is used. At first it has none.
#[derive(Default)]
pub(super) struct Grown {
    start: usize,
    len: usize,
}

impl Grown {
    /// Takes `len` bytes, in whole pages; `None` if the memory does not grow so far.
    fn take(len: usize) -> Option<Grown> {
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
        Some(Grown { start: grow(len)?, len })
    }

    /// Grows to `len` bytes, in whole pages, of which there will be `len_max` at most; those that are there stay. At the end of the
    /// memory the region grows where it is. Else it moves, and takes half as much again, so that it seldom does. Returns false, and
    /// nothing changes, if the memory does not grow so far.
    pub(super) fn grow_to(&mut self, len: usize, len_max: usize) -> bool {
        let (end, n_more) = (self.start + self.len, len.saturating_sub(self.len));
        if self.len > 0 && end == core::arch::wasm32::memory_size::<0>() * WASM_PAGE_BYTES {
            match grow(n_more) {
                None => return false,
                Some(start) if start == end => {
                    self.len = len;
                    return true;
                }
                // Another thread was as fast.
                Some(start) => drop(Grown { start, len: n_more }),
            }
        }
        let ample = (self.len + self.len / 2).next_multiple_of(WASM_PAGE_BYTES).clamp(len, len_max);
        let Some(mut other) = Grown::take(ample).or_else(|| Grown::take(len)) else { return false };
        other[..self.len].copy_from_slice(self);
        *self = other;
        true
    }
}

impl Deref for Grown {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the memory grew by these bytes for this value alone, and never shrinks.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.start), self.len) }
    }
}

impl DerefMut for Grown {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(self.start), self.len) }
    }
}

impl Drop for Grown {
    fn drop(&mut self) {
        if self.len > 0 {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push((self.start, self.len));
        }
    }
}
