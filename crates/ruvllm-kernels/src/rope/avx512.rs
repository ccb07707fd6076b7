//! AVX-512: eight or sixteen pairs at a time.

use super::scalar;
use crate::softmax::avx512::{load, store};
use std::arch::x86_64::*;

/// Loads eight floats into the lower half.
#[inline]
#[target_feature(enable = "avx512f")]
fn load_half(x: &[f32; 8]) -> __m512 {
    // SAFETY: eight floats lie behind the reference; loadu needs no alignment.
    _mm512_castps256_ps512(unsafe { _mm256_loadu_ps(x.as_ptr()) })
}

#[target_feature(enable = "avx512f")]
pub(super) fn norm(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cos8, cos_tail), (sin8, sin_tail)) = (cos.as_chunks::<8>(), sin.as_chunks::<8>());
    let twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    for head in heads.chunks_exact_mut(head_dim) {
        let (chunks, _) = head.as_chunks_mut::<16>();
        for ((chunk, c), s) in chunks.iter_mut().zip(cos8).zip(sin8) {
            // a0 b0 a1 b1 …; each cosine and sine twice.
            let (v, c, s) =
                (load(chunk), _mm512_permutexvar_ps(twice, load_half(c)), _mm512_permutexvar_ps(twice, load_half(s)));
            // Even lanes a·c - b·s, odd lanes b·c + a·s.
            store(chunk, _mm512_fmaddsub_ps(v, c, _mm512_mul_ps(_mm512_permute_ps::<0b10_11_00_01>(v), s)));
        }
        scalar::norm_pairs(&mut head[2 * 8 * cos8.len()..], cos_tail, sin_tail);
    }
}

#[target_feature(enable = "avx512f")]
pub(super) fn neox(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    let ((cos16, cos_tail), (sin16, sin_tail)) = (cos.as_chunks::<16>(), sin.as_chunks::<16>());
    for head in heads.chunks_exact_mut(head_dim) {
        let (a, b) = head[..2 * cos.len()].split_at_mut(cos.len());
        let ((a16, a_tail), (b16, b_tail)) = (a.as_chunks_mut::<16>(), b.as_chunks_mut::<16>());
        for (((a, b), c), s) in a16.iter_mut().zip(b16).zip(cos16).zip(sin16) {
            let (x, y, c, s) = (load(a), load(b), load(c), load(s));
            store(a, _mm512_fmsub_ps(x, c, _mm512_mul_ps(y, s)));
            store(b, _mm512_fmadd_ps(x, s, _mm512_mul_ps(y, c)));
        }
        scalar::neox_pairs(a_tail, b_tail, cos_tail, sin_tail);
    }
}
