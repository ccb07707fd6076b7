//! IQ3_XXS and IQ3_S: magnitudes are points of 4 levels.

use std::sync::LazyLock;

use super::codebook;
use super::grid::{Found, GridType, Part, Refit, by_largest};
use super::iq2::{pairs, signs_and_scale};
use super::{SUPER, part};
use crate::structs::{BlockIQ3_S, BlockIQ3_XXS, F16Le};

/// The largest level.
const TOP: u8 = 7;

static XXS: LazyLock<GridType<4, 32>> = LazyLock::new(|| GridType {
    codebook: &codebook::IQ3_XXS,
    top: TOP,
    n_steps: 15,
    step: 0.2,
    refit: Refit::Others,
    is_even: true,
    sigma: 2.0,
    plain_sigma: 0.0,
    start: |x, _| by_largest(x, TOP, 1e-8),
    factor: 1.0125,
});

static S: LazyLock<GridType<4, 32>> = LazyLock::new(|| GridType {
    codebook: &codebook::IQ3_S,
    top: TOP,
    n_steps: 9,
    step: 0.2,
    refit: Refit::AllIfOne,
    is_even: false,
    sigma: 2.0,
    plain_sigma: 0.0,
    // Only zeros count as zeros.
    start: |x, _| by_largest(x, TOP, f32::from_bits(1)),
    factor: 1.033,
});

pub(super) fn xxs(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ3_XXS]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = BlockIQ3_XXS { d: F16Le::from_f32(0.0), qs: [0; 64], scales_signs: [[0; 4]; 8] };
        let Some(Found { d, scales, parts }) = XXS.search::<8>(x, part(weights, i)) else { continue };
        block.d = F16Le::from_f32(d);
        let groups = block.qs.as_chunks_mut::<8>().0.iter_mut().zip(&mut block.scales_signs);
        for (((points, word), Part { points: found, signs }), scale) in groups.zip(parts).zip(scales) {
            *points = found.map(|point| point as u8);
            *word = signs_and_scale(signs, scale);
        }
    }
}

/// The reference writes the parts after one of zeros to the place of the one before; here each has its own.
pub(super) fn s(row: &[f32], weights: Option<&[f32]>, out: &mut [BlockIQ3_S]) {
    for (i, (x, block)) in row.as_chunks::<SUPER>().0.iter().zip(out).enumerate() {
        *block = BlockIQ3_S { d: F16Le::from_f32(0.0), qs: [0; 64], qh: [0; 8], signs: [0; 32], scales: [0; 4] };
        let Some(Found { d, scales, parts }) = S.search::<8>(x, part(weights, i)) else { continue };
        (block.d, block.scales) = (F16Le::from_f32(d), pairs(&scales));
        for (j, Part { points, signs }) in parts.iter().enumerate() {
            block.qs.as_chunks_mut::<8>().0[j] = points.map(|point| point as u8);
            block.qh[j] = (0..8).fold(0, |bits, k| bits | ((points[k] >> 8) as u8) << k);
            block.signs.as_chunks_mut::<4>().0[j] = *signs;
        }
    }
}
