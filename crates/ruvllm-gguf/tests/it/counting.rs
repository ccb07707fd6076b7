//! An allocator that counts, for each thread, the bytes in use and their peak.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

fn count(n_bytes: isize) {
    // A thread that is ending has no counters any more; nobody measures there.
    let _ = IN_USE.try_with(|in_use| {
        in_use.set(in_use.get() + n_bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(in_use.get())));
    });
}

// SAFETY: every call goes to the system's allocator unchanged; the counters neither allocate nor touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps the promises of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps the promises of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `f` and returns the most bytes this thread had allocated during it, beyond what it had before.
pub(crate) fn peak_bytes<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = IN_USE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let out = f();
    (out, PEAK.with(Cell::get).saturating_sub(before).max(0) as usize)
}

#[test]
fn the_peak_is_counted() {
    let (_, peak) = peak_bytes(|| drop(std::hint::black_box(vec![0u8; 1 << 20])));
    assert!((1 << 20..(1 << 20) + 4096).contains(&peak), "{peak}");
}
