//! MXFP4: a power of two per 32 values of E2M1.

use super::legacy::nibbles;
use crate::grids::MXFP4_VALUES;
use crate::structs::BlockMXFP4;

pub(super) fn row(row: &[f32], out: &mut [BlockMXFP4]) {
    for (x, block) in row.as_chunks::<32>().0.iter().zip(out) {
        let max = x.iter().fold(0.0f32, |max, x| if max < x.abs() { x.abs() } else { max });
        let mut new = BlockMXFP4 { e: exponent(max), qs: [0; 16] };
        let d = new.half_scale();
        new.qs = nibbles(&indexes(x, d));
        *block = new;
    }
}

/// Exponent that brings the largest value to 4 to 8, of which 6 is the largest there is.
///
/// The reference takes the logarithm in f32, which rounds up just below a power of two; so does this. Values below 2^-125 have
/// the lowest exponent (in the reference it wraps around, and they become huge).
fn exponent(max: f32) -> u8 {
    if max > 0.0 { (f64::from(max).log2() as f32).floor() as i32 + 125 } else { 0 }.clamp(0, 255) as u8
}

/// Indexes of the values that are nearest, of several the first.
#[inline(always)]
fn indexes(x: &[f32; 32], d: f32) -> [u8; 32] {
    let (mut best, mut least) = ([0u32; 32], x.map(f32::abs));
    for (i, &value) in MXFP4_VALUES[..8].iter().enumerate() {
        for j in 0..32 {
            let error = (f32::from(value) * d - x[j].abs()).abs();
            let is_better = error < least[j];
            best[j] = if is_better { i as u32 } else { best[j] };
            least[j] = if is_better { error } else { least[j] };
        }
    }
    // Values 8 to 15 are those of 0 to 7 below zero, but zero itself has index 0.
    std::array::from_fn(|j| (best[j] | u32::from(x[j] < 0.0 && best[j] > 0) << 3) as u8)
}
