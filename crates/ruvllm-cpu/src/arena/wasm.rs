//! Memory of WebAssembly: one array that grows and never shrinks.

/// Bytes of a page of the module's memory.
const WASM_PAGE_BYTES: usize = 64 << 10;

/// The most pages that a module of 32-bit addresses has.
const N_PAGES_MAX: usize = 1 << 16;

/// Returns how many bytes the memory can still grow by.
pub(super) fn growable_bytes() -> usize {
    // The last page is left out, so that no end of a slice is beyond the last address.
    (N_PAGES_MAX - 1).saturating_sub(core::arch::wasm32::memory_size::<0>()) * WASM_PAGE_BYTES
}
