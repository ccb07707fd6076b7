//! Softmax's parts, written once over 16 floats.

use crate::lanes::{self, Lanes, load_tail, store_tail};

pub(super) use crate::lanes::sum;

/// `e^x`
#[derive(Clone, Copy)]
struct Exp;

impl lanes::Map for Exp {
    #[inline(always)]
    unsafe fn of<L: Lanes>(self, x: L::V) -> L::V {
        // SAFETY: the caller's.
        unsafe { lanes::exp::<L>(x) }
    }
}

/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn exp<L: Lanes>(x: &mut [f32]) {
    // SAFETY: the caller's.
    unsafe { lanes::map::<L>(Exp, x) }
}

/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn max<L: Lanes>(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks::<64>();
    let (vectors, tail) = rest.as_chunks::<16>();
    // SAFETY: the caller enabled the instruction set; loads are of chunks of 16.
    unsafe {
        let mut largest = [L::splat(f32::NEG_INFINITY); 4];
        for chunk in chunks {
            for (i, largest) in largest.iter_mut().enumerate() {
                *largest = L::max(L::load_f32(chunk.as_ptr().add(16 * i)), *largest); // a NaN yields the second
            }
        }
        for vector in vectors {
            largest[0] = L::max(L::load_f32(vector.as_ptr()), largest[0]);
        }
        largest[1] = L::max(load_tail::<L>(tail, f32::NEG_INFINITY), largest[1]);
        L::reduce_max(L::max(L::max(largest[0], largest[1]), L::max(largest[2], largest[3])))
    }
}

/// Replaces each element by `e^(x - max)`; returns their sum, 16 partial sums by position modulo 16, then added.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(crate) unsafe fn exp_sum<L: Lanes>(x: &mut [f32], max: f32) -> f32 {
    let (chunks, rest) = x.as_chunks_mut::<64>();
    let (vectors, tail) = rest.as_chunks_mut::<16>();
    // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
    unsafe {
        let (max, mut sum) = (L::splat(max), L::splat(0.0));
        for chunk in chunks {
            let terms = exps::<L, 4>(chunk.as_ptr(), max);
            for (i, term) in terms.into_iter().enumerate() {
                L::store(chunk.as_mut_ptr().add(16 * i), term);
                sum = L::add(sum, term);
            }
        }
        for vector in vectors {
            let [term] = exps::<L, 1>(vector.as_ptr(), max);
            L::store(vector.as_mut_ptr(), term);
            sum = L::add(sum, term);
        }
        if !tail.is_empty() {
            let term = lanes::exp::<L>(L::sub(load_tail::<L>(tail, f32::NEG_INFINITY), max));
            store_tail::<L>(tail, term);
            sum = L::add(sum, term);
        }
        L::reduce_add(sum)
    }
}

/// The sum that [`exp_sum`] returns.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn sum_exp<L: Lanes>(x: &[f32], max: f32) -> f32 {
    let (chunks, rest) = x.as_chunks::<64>();
    let (vectors, tail) = rest.as_chunks::<16>();
    // SAFETY: the caller enabled the instruction set; loads are of chunks of 16.
    unsafe {
        let (max, mut sum) = (L::splat(max), L::splat(0.0));
        for chunk in chunks {
            for term in exps::<L, 4>(chunk.as_ptr(), max) {
                sum = L::add(sum, term);
            }
        }
        for vector in vectors {
            sum = L::add(sum, exps::<L, 1>(vector.as_ptr(), max)[0]);
        }
        if !tail.is_empty() {
            sum = L::add(sum, lanes::exp::<L>(L::sub(load_tail::<L>(tail, f32::NEG_INFINITY), max)));
        }
        L::reduce_add(sum)
    }
}

/// `e^(x - max)` of `16 N` floats.
///
/// # Safety
/// The instruction set of `L` is enabled; the floats are there.
#[inline(always)]
unsafe fn exps<L: Lanes, const N: usize>(x: *const f32, max: L::V) -> [L::V; N] {
    let mut shifted = [max; N];
    // SAFETY: the caller's.
    unsafe {
        for (i, shifted) in shifted.iter_mut().enumerate() {
            *shifted = L::sub(L::load_f32(x.add(16 * i)), max);
        }
        lanes::exps::<L, N>(shifted)
    }
}
