//! The rotation, written once over 16 floats; what is left of a head goes through the plain loops.

use super::scalar;
use crate::lanes::Lanes;

/// Rotates neighbours of every head.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn norm<L: Lanes>(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cosines, cos_tail), (sines, sin_tail)) = (cos.as_chunks::<8>(), sin.as_chunks::<8>());
    for head in heads.chunks_exact_mut(head_dim) {
        let (pairs, _) = head.as_chunks_mut::<16>();
        for ((pairs, cos), sin) in pairs.iter_mut().zip(cosines).zip(sines) {
            // SAFETY: the caller enabled the instruction set; loads and stores are of 16 floats, of 8 cosines and sines.
            unsafe {
                // a0 b0 a1 b1 …: even lanes a·cos - b·sin, odd lanes b·cos + a·sin.
                let (x, cos, sin) =
                    (L::load_f32(pairs.as_ptr()), L::load_twice(cos.as_ptr()), L::load_twice(sin.as_ptr()));
                L::store(pairs.as_mut_ptr(), L::fma_alternating(x, cos, L::mul(L::swap_pairs(x), sin)));
            }
        }
        scalar::norm_pairs(&mut head[16 * cosines.len()..], cos_tail, sin_tail);
    }
}

/// Rotates halves of every head.
///
/// # Safety
/// The instruction set of `L` is enabled.
#[inline(always)]
pub(super) unsafe fn neox<L: Lanes>(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cosines, cos_tail), (sines, sin_tail)) = (cos.as_chunks::<16>(), sin.as_chunks::<16>());
    for head in heads.chunks_exact_mut(head_dim) {
        let (a, b) = head[..2 * cos.len()].split_at_mut(cos.len());
        let ((firsts, a_tail), (seconds, b_tail)) = (a.as_chunks_mut::<16>(), b.as_chunks_mut::<16>());
        for (((a, b), cos), sin) in firsts.iter_mut().zip(seconds).zip(cosines).zip(sines) {
            // SAFETY: the caller enabled the instruction set; loads and stores are of chunks of 16.
            unsafe {
                let (x, y) = (L::load_f32(a.as_ptr()), L::load_f32(b.as_ptr()));
                let (cos, sin) = (L::load_f32(cos.as_ptr()), L::load_f32(sin.as_ptr()));
                L::store(a.as_mut_ptr(), L::fms(x, cos, L::mul(y, sin)));
                L::store(b.as_mut_ptr(), L::fma(x, sin, L::mul(y, cos)));
            }
        }
        scalar::neox_pairs(a_tail, b_tail, cos_tail, sin_tail);
    }
}
