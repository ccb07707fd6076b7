//! Memory that kernels like: 64-byte aligned, zeroed, allocated once; in large pages where all of it is read.

mod pages;
mod range;
#[cfg(target_family = "wasm")]
mod wasm;

pub use pages::LargePages;
pub use range::PageRange;

use bytemuck::{Pod, Zeroable};
use pages::Chunk;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer and region, in bytes: a cache line and an AVX-512 register.
pub const ALIGN: usize = 64;

/// Returns how many bytes this process can still take: what WebAssembly's memory can grow by. `None` where the system would have
/// to be asked.
pub fn growable_bytes() -> Option<usize> {
    #[cfg(target_family = "wasm")]
    return Some(wasm::growable_bytes());
    #[cfg(not(target_family = "wasm"))]
    None
}

/// Returns whether so much memory could be taken now. Nothing of it is.
pub fn could_take(n_bytes: usize) -> bool {
    match growable_bytes() {
        Some(most) => n_bytes <= most,
        None => Vec::<u8>::new().try_reserve_exact(n_bytes).is_ok(),
    }
}

/// A zeroed slice of fixed length that starts at a multiple of [`ALIGN`] bytes.
///
/// Large buffers are fresh pages of the system, which become real memory only when first touched: a buffer sized for
/// the longest context costs what is used of it, and the worker that writes first gets the page near itself. Buffers
/// that are read as a whole, again and again, are better in large pages ([`LargePages`]).
///
/// ```
/// let mut row = ruvllm_cpu::arena::AlignedVec::<f32>::new(100);
/// row[99] = 1.0;
/// assert_eq!(row.as_ptr() as usize % 64, 0);
/// assert_eq!(row.iter().sum::<f32>(), 1.0);
/// ```
pub struct AlignedVec<T: Pod> {
    /// The first element, `ALIGN`-aligned, inside `memory`.
    ptr: NonNull<T>,
    len: usize,
    memory: Memory,
    owned: PhantomData<T>,
}

/// What a buffer's elements lie in.
enum Memory {
    /// `len` or `T` has no bytes.
    None,
    /// What the allocator returned.
    Heap(NonNull<u8>),
    /// A part of a chunk that no other buffer has; the chunk goes with its last buffer.
    Chunk { _chunk: Arc<Chunk> },
}

// SAFETY: the buffer is owned like a `Vec`'s, and `Pod` values may move and be read on any thread.
unsafe impl<T: Pod + Send> Send for AlignedVec<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Pod + Sync> Sync for AlignedVec<T> {}

impl<T: Pod> AlignedVec<T> {
    const TYPE_FITS: () = assert!(align_of::<T>() <= ALIGN, "element types need an alignment of at most 64");

    /// Allocates `len` zeros.
    ///
    /// # Panics
    /// If the size overflows `isize`; aborts like `Vec` when the system has no memory.
    pub fn new(len: usize) -> Self {
        let () = Self::TYPE_FITS;
        let Some(layout) = Self::layout(len) else {
            return AlignedVec { ptr: Self::dangling(), len, memory: Memory::None, owned: PhantomData };
        };
        // SAFETY: the layout has more than zero bytes.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: the allocation has `ALIGN` spare bytes, and `align_offset` is less.
        let ptr = unsafe { base.add(base.align_offset(ALIGN)) }.cast();
        AlignedVec { ptr, len, memory: Memory::Heap(base), owned: PhantomData }
    }

    /// Makes the buffer of `len` elements that begins `offset` bytes into `chunk`.
    ///
    /// # Safety
    /// The bytes are zeros inside the chunk, aligned to [`ALIGN`], and no other buffer has them, now or later.
    unsafe fn within(chunk: Arc<Chunk>, offset: usize, len: usize) -> Self {
        let () = Self::TYPE_FITS;
        // SAFETY: the caller's promise.
        let ptr = unsafe { chunk.start().add(offset) }.cast();
        AlignedVec { ptr, len, memory: Memory::Chunk { _chunk: chunk }, owned: PhantomData }
    }

    /// Copies `values` into a new buffer.
    pub fn from_slice(values: &[T]) -> Self {
        let mut copy = Self::new(values.len());
        copy.copy_from_slice(values);
        copy
    }

    /// What to ask the allocator for, or `None` for no bytes. The alignment stays at the allocator's own and room
    /// to align is added instead: `alloc_zeroed` turns to `calloc` (lazy pages) only for small alignments.
    fn layout(len: usize) -> Option<Layout> {
        let n_bytes = len.checked_mul(size_of::<T>()).expect("a buffer's size in bytes fits usize");
        let padded = n_bytes.checked_add(ALIGN).expect("a buffer's size in bytes fits usize");
        (n_bytes > 0).then(|| Layout::from_size_align(padded, 8).expect("a buffer's size in bytes fits isize"))
    }

    fn dangling() -> NonNull<T> {
        // An address that is `ALIGN`-aligned and never read: the slice has no bytes.
        NonNull::without_provenance(const { std::num::NonZeroUsize::new(ALIGN).unwrap() })
    }
}

impl<T: Pod> Drop for AlignedVec<T> {
    fn drop(&mut self) {
        if let (Memory::Heap(base), Some(layout)) = (&self.memory, Self::layout(self.len)) {
            // SAFETY: `base` came from `alloc_zeroed` with this layout.
            unsafe { dealloc(base.as_ptr(), layout) };
        }
    }
}

impl<T: Pod> Deref for AlignedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is aligned and leads `len` elements that were zeroed, and all-zero bytes are a `Pod` value.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for AlignedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` is the only access.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Pod> AsRef<[T]> for AlignedVec<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: Pod> Default for AlignedVec<T> {
    fn default() -> Self {
        Self::new(0)
    }
}

impl<T: Pod> Clone for AlignedVec<T> {
    fn clone(&self) -> Self {
        Self::from_slice(self)
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for AlignedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Scratch memory sized once, from which each step takes its buffers anew.
///
/// ```
/// use ruvllm_cpu::arena::Arena;
/// let mut arena = Arena::new(Arena::bytes_of::<f32>(100) + Arena::bytes_of::<u8>(10));
/// for _step in 0..3 {
///     let mut frame = arena.frame();
///     let hidden = frame.take::<f32>(100);
///     let codes = frame.take::<u8>(10);
///     hidden[0] = 1.0;
///     codes[0] = 1;
/// }
/// ```
#[derive(Debug)]
pub struct Arena {
    bytes: AlignedVec<Line>,
}

/// 64 bytes at a 64-byte address.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; ALIGN]);

// SAFETY: 64 plain bytes; all zeros are a value.
unsafe impl Zeroable for Line {}
// SAFETY: `repr(C)` around a byte array whose size equals its alignment, so no padding; any bit pattern is a value.
unsafe impl Pod for Line {}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Arena {
    /// Allocates an arena of `n_bytes`: the sum of [`Arena::bytes_of`] over the buffers of the largest step.
    pub fn new(n_bytes: usize) -> Arena {
        Arena { bytes: AlignedVec::new(n_bytes.div_ceil(ALIGN)) }
    }

    /// Returns what a region of `len` elements takes: its bytes, rounded up to [`ALIGN`].
    pub const fn bytes_of<T: Pod>(len: usize) -> usize {
        (len * size_of::<T>()).next_multiple_of(ALIGN)
    }

    /// Returns the arena's size in bytes.
    pub fn n_bytes(&self) -> usize {
        self.bytes.len() * ALIGN
    }

    /// Starts a step: everything is free again. What regions hold at first is what earlier steps left.
    pub fn frame(&mut self) -> Frame<'_> {
        Frame { free: &mut self.bytes }
    }
}

/// The part of an [`Arena`] that this step has not taken yet.
#[derive(Debug)]
pub struct Frame<'a> {
    free: &'a mut [Line],
}

impl<'a> Frame<'a> {
    /// Takes `len` elements, 64-byte aligned, with unspecified contents.
    ///
    /// # Panics
    /// If the arena is too small.
    pub fn take<T: Pod>(&mut self, len: usize) -> &'a mut [T] {
        const { assert!(align_of::<T>() <= ALIGN && size_of::<T>() > 0) };
        let n_lines = Arena::bytes_of::<T>(len) / ALIGN;
        let n_free = self.free.len();
        assert!(n_lines <= n_free, "arena: need {} bytes, have {}", n_lines * ALIGN, n_free * ALIGN);
        let (region, free) = std::mem::take(&mut self.free).split_at_mut(n_lines);
        self.free = free;
        let bytes = bytemuck::cast_slice_mut::<Line, [u8; ALIGN]>(region).as_flattened_mut();
        bytemuck::try_cast_slice_mut(&mut bytes[..len * size_of::<T>()]).expect("a region is aligned and whole")
    }

    /// Returns the bytes not taken yet.
    pub fn n_free_bytes(&self) -> usize {
        self.free.len() * ALIGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_zeroed_and_aligned() {
        for len in [0, 1, 7, 64, 1000, 1 << 22] {
            let mut floats = AlignedVec::<f32>::new(len);
            assert_eq!((floats.len(), floats.as_ptr() as usize % ALIGN), (len, 0));
            assert!(floats.iter().all(|&v| v == 0.0));
            floats.fill(1.5);
            let copy = floats.clone();
            drop(floats);
            assert!(copy.iter().all(|&v| v == 1.5));
            assert_eq!(AlignedVec::<u8>::new(len).as_ptr() as usize % ALIGN, 0);
        }
        assert!(AlignedVec::<f32>::default().is_empty());
        assert_eq!(format!("{:?}", AlignedVec::from_slice(&[1u8, 2])), "[1, 2]");
    }

    #[test]
    fn large_buffers_cost_nothing_until_touched() {
        // 4 GiB, of which 16 pages are read: it would take a second to fill and be felt on a small machine.
        let many: Vec<_> = (0..16).map(|_| AlignedVec::<u8>::new(1 << 28)).collect();
        assert!(many.iter().all(|buffer| buffer[buffer.len() - 1] == 0));
    }

    #[test]
    fn frames_hand_out_disjoint_regions_again_and_again() {
        let n_bytes = Arena::bytes_of::<f32>(100) + Arena::bytes_of::<u8>(3) + Arena::bytes_of::<f32>(0);
        assert_eq!(n_bytes, 448 + 64);
        let mut arena = Arena::new(n_bytes);
        assert_eq!(arena.n_bytes(), n_bytes);
        for _ in 0..2 {
            let mut frame = arena.frame();
            let (floats, none, bytes) = (frame.take::<f32>(100), frame.take::<f32>(0), frame.take::<u8>(3));
            floats.fill(1.0);
            bytes.fill(2);
            assert!(floats.iter().all(|&v| v == 1.0) && none.is_empty() && frame.n_free_bytes() == 0);
            assert_eq!((floats.as_ptr() as usize % ALIGN, bytes.as_ptr() as usize % ALIGN), (0, 0));
        }
    }

    #[test]
    #[should_panic(expected = "arena: need 128 bytes, have 64")]
    fn frames_say_what_is_missing() {
        Arena::new(64).frame().take::<f32>(17);
    }
}
