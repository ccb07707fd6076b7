//! 16 floats at a time: what the kernels that are written once for all instruction sets are made of.
//!
//! Each instruction set says in a file of its own what its 16 floats are ([`Lanes`]). A kernel is a generic function over
//! them, `#[inline(always)]` throughout, which a function for each instruction set calls with the features enabled. What is called
//! for every vector is a trait's function ([`Map`], [`Fold`]) instead of a closure, since a closure may stay a function of its own, in
//! which no instruction set is enabled.
//!
//! Tails go through the same code in a padded vector: an element's result never depends on where in the slice it lies.

use half::f16;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
mod math;
#[cfg(target_arch = "aarch64")]
pub mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub mod simd128;

pub use math::{exp, exps, polynomial, softcap};

/// 16 floats in registers: one AVX-512 vector, two of AVX2, four of NEON and of simd128.
///
/// All functions are `#[inline(always)]`, so that they become part of the caller, which enables the instruction set.
///
/// # Safety
/// Callers enable the instruction set; pointers lead to 16 elements, if nothing else is said, at any alignment.
#[allow(clippy::missing_safety_doc, reason = "the trait says it for all of its functions")]
pub unsafe trait Lanes {
    /// 16 floats.
    type V: Copy;
    /// 16 integers of 32 bits.
    type U: Copy;
    /// Registers that 16 floats take.
    const REGISTERS: usize;

    /// `x` in every lane.
    unsafe fn splat(x: f32) -> Self::V;
    /// 16 floats.
    unsafe fn load_f32(from: *const f32) -> Self::V;
    /// 16 floats of 16 bits, widened.
    unsafe fn load_f16(from: *const f16) -> Self::V;
    /// 8 floats, each in two neighbouring lanes.
    unsafe fn load_twice(from: *const f32) -> Self::V;
    /// 16 floats, to any address.
    unsafe fn store(to: *mut f32, x: Self::V);
    /// Neighbouring lanes `2i` and `2i + 1` in each other's place.
    unsafe fn swap_pairs(x: Self::V) -> Self::V;
    /// 16 signed bytes.
    unsafe fn load_i8(from: *const u8) -> Self::V;
    /// 16 integers of 16 bits without a sign, at any address.
    unsafe fn load_u16(from: *const u8) -> Self::U;
    /// 16 bytes without a sign.
    unsafe fn load_u8(from: *const u8) -> Self::U;
    /// The lower 16 bits of each lane.
    unsafe fn store_u16(to: *mut u8, x: Self::U);
    /// The lower 8 bits of each lane.
    unsafe fn store_u8(to: *mut u8, x: Self::U);
    /// Each lane, shifted by `n` bits.
    unsafe fn shift_right(x: Self::U, n: u32) -> Self::U;
    /// `BITS` (2 or 4) bits of each lane from bit `BITS·at` on, as floats.
    unsafe fn code<const BITS: u32>(x: Self::U, at: u32) -> Self::V;
    /// `x | code << shift`
    unsafe fn insert(x: Self::U, code: Self::U, shift: u32) -> Self::U;
    /// To the nearest integers, ties to even.
    unsafe fn round(a: Self::V) -> Self::U;
    /// `a·b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a·b - c`, rounded once.
    unsafe fn fms(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a·b - c` in even lanes, `a·b + c` in odd ones, rounded once.
    unsafe fn fma_alternating(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a + b`
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// `a·b`
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `|a|`
    unsafe fn abs(a: Self::V) -> Self::V;
    /// The larger; `b` where one of both is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The smaller; `b` where one of both is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// The nearest whole numbers, ties to even.
    unsafe fn whole(a: Self::V) -> Self::V;
    /// `x·2^n` for whole `n` from -151 to 129.
    unsafe fn times_power(x: Self::V, n: Self::V) -> Self::V;
    /// The largest lane.
    unsafe fn reduce_max(a: Self::V) -> f32;
    /// The sum of all lanes, in an order that is always the same.
    unsafe fn reduce_add(a: Self::V) -> f32;
    /// Lane by lane, `x` where `a < b`, else `y`.
    unsafe fn select_lt(a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
}

/// A function of each of the lanes.
pub trait Map: Copy {
    /// Returns the function of 16 floats.
    ///
    /// # Safety
    /// The instruction set of `L` is enabled.
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V;
}

/// A sum over a row, in each of the lanes.
pub trait Fold: Copy {
    /// The element that adds nothing.
    fn nothing(self) -> f32;

    /// Returns the sums with what 16 more floats add.
    ///
    /// # Safety
    /// The instruction set of `L` is enabled.
    unsafe fn add<L: Lanes>(self, sum: L::V, x: L::V) -> L::V;
}

/// Loads fewer than 16 floats, with `pad` for the rest.
///
/// # Panics
/// If there are more.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn load_tail<L: Lanes>(tail: &[f32], pad: f32) -> L::V {
    let mut padded = [pad; 16];
    padded[..tail.len()].copy_from_slice(tail);
    // SAFETY: the caller enabled the instruction set; 16 floats.
    unsafe { L::load_f32(padded.as_ptr()) }
}

/// Stores as many lanes as `tail` has room for.
///
/// # Panics
/// If there is room for more than 16.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn store_tail<L: Lanes>(tail: &mut [f32], x: L::V) {
    let mut padded = [0.0; 16];
    // SAFETY: the caller enabled the instruction set; 16 places.
    unsafe { L::store(padded.as_mut_ptr(), x) };
    tail.copy_from_slice(&padded[..tail.len()]);
}

/// Replaces every element by `f` of it.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn map<L: Lanes>(f: impl Map, x: &mut [f32]) {
    let (chunks, tail) = x.as_chunks_mut::<16>();
    // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
    unsafe {
        for chunk in chunks {
            L::store(chunk.as_mut_ptr(), f.of::<L>(L::load_f32(chunk.as_ptr())));
        }
        if !tail.is_empty() {
            store_tail::<L>(tail, f.of::<L>(load_tail::<L>(tail, 0.0)));
        }
    }
}

/// Adds up a row: four sums of 16 lanes, since one would wait for itself, which are added in the end.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn fold<L: Lanes>(f: impl Fold, x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<64>();
    let (vectors, tail) = rest.as_chunks::<16>();
    // SAFETY: the caller enabled the instruction set; loads are of chunks of 16.
    unsafe {
        let mut sums = [L::splat(0.0); 4];
        for chunk in chunks {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = f.add::<L>(*sum, L::load_f32(chunk.as_ptr().add(16 * i)));
            }
        }
        for vector in vectors {
            sums[0] = f.add::<L>(sums[0], L::load_f32(vector.as_ptr()));
        }
        if !tail.is_empty() {
            sums[1] = f.add::<L>(sums[1], load_tail::<L>(tail, f.nothing()));
        }
        L::reduce_add(L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3])))
    }
}

/// The elements themselves.
#[derive(Clone, Copy)]
struct Itself;

impl Fold for Itself {
    fn nothing(self) -> f32 {
        0.0
    }

    #[inline(always)]
    unsafe fn add<L: Lanes>(self, sum: L::V, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe { L::add(sum, x) }
    }
}

/// `Σ x`
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub unsafe fn sum<L: Lanes>(x: &[f32]) -> f32 {
    // SAFETY: the caller's.
    unsafe { fold::<L>(Itself, x) }
}
