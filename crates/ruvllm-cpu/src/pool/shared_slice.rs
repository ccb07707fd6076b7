//! One slice, written by all workers.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice that workers may write in disjoint ranges.
#[derive(Debug)]
pub struct SharedSlice<'a, T> {
    ptr: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: a `SharedSlice` is a `&mut [T]` whose ranges go to other threads by the contract of `slice`; that needs `T: Send`.
unsafe impl<T: Send> Send for SharedSlice<'_, T> {}
// SAFETY: as above; no `&T` is ever shared between threads through it.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    /// Wraps `slice` for the time of a parallel region.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedSlice { ptr: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the elements of `range`.
    ///
    /// # Safety
    /// No two slices that overlap may be alive at one time, on this thread or another.
    ///
    /// # Panics
    /// If `range` reaches past the end.
    #[allow(clippy::mut_from_ref, reason = "handing out disjoint mutable ranges is what this type is for")]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range {range:?} of a shared slice of {}", self.len);
        // SAFETY: the range lies inside the borrowed slice, and the caller keeps ranges disjoint.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}
