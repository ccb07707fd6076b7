//! IQ2_XXS, IQ2_XS and IQ2_S: magnitudes are points of 8 levels.

use std::sync::LazyLock;

use super::codebook;
use super::grid::{Found, GridType, Part, Refit, Start, by_largest, largest};
use super::{EPSILON, SUPER, part, positive};
use crate::structs::{BlockIQ2_S, BlockIQ2_XS, BlockIQ2_XXS, F16Le};

/// The largest level.
const TOP: u8 = 2;

static XXS: LazyLock<GridType<8, 32>> = LazyLock::new(|| GridType {
    codebook: &codebook::IQ2_XXS,
    top: TOP,
    n_steps: 6,
    step: 0.1,
    refit: Refit::All,
    is_even: true,
    sigma: 1.0,
    plain_sigma: 0.0,
    start: by_positive,
    factor: 1.0,
});

static XS: LazyLock<GridType<8, 16>> = LazyLock::new(|| GridType {
    codebook: &codebook::IQ2_XS,
    top: TOP,
    n_steps: 9,
    step: 0.1,
    refit: Refit::Others,
    is_even: true,
    sigma: 1.0,
    plain_sigma: 0.0,
    start: |x, _| by_largest(x, TOP, EPSILON),
    factor: 1.0,
});

static S: LazyLock<GridType<8, 16>> = LazyLock::new(|| GridType {
    codebook: &codebook::IQ2_S,
    is_even: false,
    sigma: 2.0,
    plain_sigma: 0.25,
    start: |x, _| by_largest(x, TOP, 1e-8),
    factor: 0.9875,
    top: TOP,
    n_steps: 9,
    step: 0.1,
    refit: Refit::Others,
});

/// The search for levels that need not be points says where to begin.
fn by_positive(x: &[f32; 32], weights: &[f32; 32]) -> Option<Start> {
    if largest(x) < EPSILON {
        return None;
    }
    let scale = positive::search(4, x, weights, &mut [0; 32]);
    let extent = scale * 3.0;
    let is_zero = extent <= 0.0;
    (!is_zero).then_some(Start { scale, extent })
}

pub(super) fn xxs(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ2_XXS]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = BlockIQ2_XXS { d: F16Le::from_f32(0.0), qs: [[0; 8]; 8] };
        let Some(Found { d, scales, parts }) = XXS.search::<8>(x, part(weights, i)) else { continue };
        block.d = F16Le::from_f32(d);
        for ((to, Part { points, signs }), scale) in block.qs.iter_mut().zip(parts).zip(scales) {
            to[..4].copy_from_slice(&std::array::from_fn::<u8, 4, _>(|k| points[k] as u8));
            to[4..].copy_from_slice(&signs_and_scale(signs, scale));
        }
    }
}

pub(super) fn xs(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ2_XS]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = BlockIQ2_XS { d: F16Le::from_f32(0.0), qs: [[0; 2]; 32], scales: [0; 8] };
        let Some(Found { d, scales, parts }) = XS.search::<16>(x, part(weights, i)) else { continue };
        (block.d, block.scales) = (F16Le::from_f32(d), pairs(&scales));
        for (to, Part { points, signs }) in block.qs.as_chunks_mut::<2>().0.iter_mut().zip(parts) {
            *to = std::array::from_fn(|k| (points[k] | u16::from(signs[k]) << 9).to_le_bytes());
        }
    }
}

pub(super) fn s(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ2_S]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = BlockIQ2_S { d: F16Le::from_f32(0.0), qs: [0; 32], signs: [0; 32], qh: [0; 8], scales: [0; 8] };
        let Some(Found { d, scales, parts }) = S.search::<16>(x, part(weights, i)) else { continue };
        (block.d, block.scales) = (F16Le::from_f32(d), pairs(&scales));
        for (j, Part { points, signs }) in parts.iter().enumerate() {
            for k in 0..2 {
                let at = 2 * j + k;
                (block.qs[at], block.signs[at]) = (points[k] as u8, signs[k]);
                block.qh[at / 4] |= ((points[k] >> 8) as u8) << (2 * (at % 4));
            }
        }
    }
}

/// Puts two scales into a byte.
pub(super) fn pairs<const N: usize, const BYTES: usize>(scales: &[u8; N]) -> [u8; BYTES] {
    std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4)
}

/// Puts the signs of 32 values, 7 bits an eight, and a scale of 4 bits into a word.
pub(super) fn signs_and_scale(signs: [u8; 4], scale: u8) -> [u8; 4] {
    let word = (0..4).fold(u32::from(scale) << 28, |word, k| word | u32::from(signs[k]) << (7 * k));
    word.to_le_bytes()
}
