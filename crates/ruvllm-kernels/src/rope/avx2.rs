//! AVX2: four or eight pairs at a time.

use super::scalar;
use crate::softmax::avx2::{load, store};
use std::arch::x86_64::*;

/// Loads four floats into the lower half.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_half(x: &[f32; 4]) -> __m256 {
    // SAFETY: four floats lie behind the reference; loadu needs no alignment.
    _mm256_castps128_ps256(unsafe { _mm_loadu_ps(x.as_ptr()) })
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn norm(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cos4, cos_tail), (sin4, sin_tail)) = (cos.as_chunks::<4>(), sin.as_chunks::<4>());
    let twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    for head in heads.chunks_exact_mut(head_dim) {
        let (chunks, _) = head.as_chunks_mut::<8>();
        for ((chunk, c), s) in chunks.iter_mut().zip(cos4).zip(sin4) {
            // a0 b0 a1 b1 …; each cosine and sine twice.
            let (v, c, s) = (
                load(chunk),
                _mm256_permutevar8x32_ps(load_half(c), twice),
                _mm256_permutevar8x32_ps(load_half(s), twice),
            );
            // Even lanes a·c - b·s, odd lanes b·c + a·s.
            store(chunk, _mm256_fmaddsub_ps(v, c, _mm256_mul_ps(_mm256_permute_ps::<0b10_11_00_01>(v), s)));
        }
        scalar::norm_pairs(&mut head[2 * 4 * cos4.len()..], cos_tail, sin_tail);
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn neox(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cos8, cos_tail), (sin8, sin_tail)) = (cos.as_chunks::<8>(), sin.as_chunks::<8>());
    for head in heads.chunks_exact_mut(head_dim) {
        let (a, b) = head[..2 * cos.len()].split_at_mut(cos.len());
        let ((a8, a_tail), (b8, b_tail)) = (a.as_chunks_mut::<8>(), b.as_chunks_mut::<8>());
        for (((a, b), c), s) in a8.iter_mut().zip(b8).zip(cos8).zip(sin8) {
            let (x, y, c, s) = (load(a), load(b), load(c), load(s));
            store(a, _mm256_fmsub_ps(x, c, _mm256_mul_ps(y, s)));
            store(b, _mm256_fmadd_ps(x, s, _mm256_mul_ps(y, c)));
        }
        scalar::neox_pairs(a_tail, b_tail, cos_tail, sin_tail);
    }
}
