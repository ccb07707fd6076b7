//! Plain loops over pairs.

/// Rotates neighbours of every head.
pub(super) fn norm(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(head_dim) {
        norm_pairs(head, cos, sin);
    }
}

/// Rotates halves of every head.
pub(super) fn neox(heads: &mut [f32], head_dim: usize, cos: &[f32], sin: &[f32]) {
    for head in heads.chunks_exact_mut(head_dim) {
        let (a, b) = head.split_at_mut(cos.len());
        neox_pairs(a, b, cos, sin);
    }
}

#[inline(always)]
pub(super) fn norm_pairs(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (([a, b], c), s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
    }
}

#[inline(always)]
pub(super) fn neox_pairs(a: &mut [f32], b: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (((a, b), c), s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
        (*a, *b) = (*a * c - *b * s, *a * s + *b * c);
    }
}
