//! NEON: four pairs at a time.

use super::scalar;
use crate::softmax::neon::{load, store};
use std::arch::aarch64::*;

#[target_feature(enable = "neon")]
pub(super) fn norm(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cos4, cos_tail), (sin4, sin_tail)) = (cos.as_chunks::<4>(), sin.as_chunks::<4>());
    for head in heads.chunks_exact_mut(head_dim) {
        let (chunks, _) = head.as_chunks_mut::<8>();
        for ((chunk, c), s) in chunks.iter_mut().zip(cos4).zip(sin4) {
            let (c, s) = (load(c), load(s));
            // SAFETY: eight floats lie behind the reference; the load, which parts the pairs, needs no alignment.
            let float32x4x2_t(x, y) = unsafe { vld2q_f32(chunk.as_ptr()) };
            let rotated = float32x4x2_t(vfmsq_f32(vmulq_f32(x, c), y, s), vfmaq_f32(vmulq_f32(y, c), x, s));
            // SAFETY: as above; the store joins the pairs again.
            unsafe { vst2q_f32(chunk.as_mut_ptr(), rotated) };
        }
        scalar::norm_pairs(&mut head[2 * 4 * cos4.len()..], cos_tail, sin_tail);
    }
}

#[target_feature(enable = "neon")]
pub(super) fn neox(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cos4, cos_tail), (sin4, sin_tail)) = (cos.as_chunks::<4>(), sin.as_chunks::<4>());
    for head in heads.chunks_exact_mut(head_dim) {
        let (a, b) = head[..2 * cos.len()].split_at_mut(cos.len());
        let ((a4, a_tail), (b4, b_tail)) = (a.as_chunks_mut::<4>(), b.as_chunks_mut::<4>());
        for (((a, b), c), s) in a4.iter_mut().zip(b4).zip(cos4).zip(sin4) {
            let (x, y, c, s) = (load(a), load(b), load(c), load(s));
            store(a, vfmsq_f32(vmulq_f32(x, c), y, s));
            store(b, vfmaq_f32(vmulq_f32(y, c), x, s));
        }
        scalar::neox_pairs(a_tail, b_tail, cos_tail, sin_tail);
    }
}
