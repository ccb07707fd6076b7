//! The IQ types: codebooks of 4 or 8 values (QuIP#-like grids), and the non-linear 4-bit ones.

use super::legacy::nibbles;
use crate::block::{
    BlockIQ1_M, BlockIQ1_S, BlockIQ2_S, BlockIQ2_XS, BlockIQ2_XXS, BlockIQ3_S, BlockIQ3_XXS, BlockIQ4_NL, BlockIQ4_XS,
    IQ1_GRID, IQ2_S_GRID, IQ2_XS_GRID, IQ2_XXS_GRID, IQ3_S_GRID, IQ3_XXS_GRID, IQ4_VALUES, signs_even,
};

/// `out[j] = ±d·grid[j]`, minus where bit `j` of `signs` is set. A negated product rounds like the product.
fn signed<const N: usize>(out: &mut [f32], d: f32, grid: &[i8; N], signs: u8) {
    for (j, (out, g)) in out.iter_mut().zip(grid).enumerate() {
        let x = d * f32::from(*g);
        *out = if signs >> j & 1 == 0 { x } else { -x };
    }
}

/// `out[j] = d·(grid[j] ± 1/8)`.
fn offset(out: &mut [f32], d: f32, grid: &[i8; 8], negative: bool) {
    let delta = if negative { -0.125 } else { 0.125 };
    for (out, g) in out.iter_mut().zip(grid) {
        *out = d * (f32::from(*g) + delta);
    }
}

/// Returns nibble `i` of packed scales.
#[inline]
pub(super) fn scale4(scales: &[u8], i: usize) -> f32 {
    f32::from(scales[i / 2] >> (4 * (i % 2)) & 15)
}

pub(super) fn iq2_xxs(block: &BlockIQ2_XXS, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (out, [indices @ .., s0, s1, s2, s3]) in out.as_chunks_mut::<32>().0.iter_mut().zip(&block.qs) {
        let signs = u32::from_le_bytes([*s0, *s1, *s2, *s3]);
        let db = d * (0.5 + (signs >> 28) as f32) * 0.25;
        for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let grid = &IQ2_XXS_GRID[usize::from(indices[l])];
            signed(out, db, grid, signs_even((signs >> (7 * l) & 127) as u8));
        }
    }
}

pub(super) fn iq2_xs(block: &BlockIQ2_XS, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (i, (out, q)) in out.as_chunks_mut::<8>().0.iter_mut().zip(block.qs).enumerate() {
        let q = u16::from_le_bytes(q);
        let db = d * (0.5 + scale4(&block.scales, i / 2)) * 0.25;
        signed(out, db, &IQ2_XS_GRID[usize::from(q & 511)], signs_even((q >> 9) as u8));
    }
}

pub(super) fn iq2_s(block: &BlockIQ2_S, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = block.qh[i / 4] >> (2 * (i % 4)) & 3;
        let db = d * (0.5 + scale4(&block.scales, i / 2)) * 0.25;
        let grid = &IQ2_S_GRID[usize::from(block.qs[i]) | usize::from(high) << 8];
        signed(out, db, grid, block.signs[i]);
    }
}

pub(super) fn iq3_xxs(block: &BlockIQ3_XXS, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let signs = u32::from_le_bytes(block.scales_signs[i / 8]);
        let db = d * (0.5 + (signs >> 28) as f32) * 0.5;
        let pattern = signs_even((signs >> (7 * (i / 2 % 4)) & 127) as u8);
        signed(out, db, &IQ3_XXS_GRID[usize::from(block.qs[i])], pattern >> (4 * (i % 2)));
    }
}

pub(super) fn iq3_s(block: &BlockIQ3_S, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let high = block.qh[i / 8] >> (i % 8) & 1;
        let db = d * (1.0 + 2.0 * scale4(&block.scales, i / 8));
        let grid = &IQ3_S_GRID[usize::from(block.qs[i]) | usize::from(high) << 8];
        signed(out, db, grid, block.signs[i / 2] >> (4 * (i % 2)));
    }
}

pub(super) fn iq1_s(block: &BlockIQ1_S, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let qh = u16::from_le_bytes(block.qh[i / 4]);
        let dl = d * f32::from(2 * (qh >> 12 & 7) + 1);
        let index = usize::from(block.qs[i]) | usize::from(qh >> (3 * (i % 4)) & 7) << 8;
        offset(out, dl, &IQ1_GRID[index], qh & 0x8000 != 0);
    }
}

pub(super) fn iq1_m(block: &BlockIQ1_M, out: &mut [f32; 256]) {
    let scales = block.scales.map(u16::from_le_bytes);
    let d = block.d().to_f32();
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = scales[i / 8] >> (3 * (i / 2 % 4)) & 7;
        let dl = d * f32::from(2 * scale + 1);
        let high = block.qh[i / 2] >> (4 * (i % 2));
        let index = usize::from(block.qs[i]) | usize::from(high & 7) << 8;
        offset(out, dl, &IQ1_GRID[index], high & 8 != 0);
    }
}

pub(super) fn iq4_nl(block: &BlockIQ4_NL, out: &mut [f32; 32]) {
    let d = block.d.to_f32();
    for (out, q) in out.iter_mut().zip(nibbles(&block.qs)) {
        *out = d * f32::from(IQ4_VALUES[usize::from(q)]);
    }
}

pub(super) fn iq4_xs(block: &BlockIQ4_XS, out: &mut [f32; 256]) {
    let d = block.d.to_f32();
    let groups = out.as_chunks_mut::<32>().0.iter_mut().zip(block.qs.as_chunks::<16>().0);
    for ((out, qs), scale) in groups.zip(block.scales()) {
        let dl = d * f32::from(scale);
        for (out, q) in out.iter_mut().zip(nibbles(qs)) {
            *out = dl * f32::from(IQ4_VALUES[usize::from(q)]);
        }
    }
}
