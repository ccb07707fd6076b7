//! Quantising rows of f32 to the block formats, with or without importance weights.
//!
//! ```text
//! of each block:  search scale (and minimum) that bring the weighted squared error down  ->  round the scales themselves to
//!                 their few bits  ->  round the values by the rounded scales  ->  pack the bits
//! ```
//! Blocks are byte for byte those of ggml's reference quantisers (`quantize_row_*_ref`, and with importance weights
//! `quantize_q*`): every sum is taken in the same order and nothing is contracted to fused multiply-adds. Speed comes from
//! lanes: a search runs on eight blocks (or parts of a block) at once, one a lane, each lane in the reference's order, which
//! compilers turn into vectors of whatever the target has.
//!
//! | file | what is in it |
//! |---|---|
//! | `lanes.rs` | rounding, and blocks as lanes |
//! | `symmetric.rs` | the searches for a scale |
//! | `offset.rs` | the search for a scale and a minimum |
//! | `positive.rs` | the search for the scale of scales |
//! | `legacy.rs` | Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 |
//! | `q2_k.rs` `q3_k.rs` `q45_k.rs` `q6_k.rs` | Q2_K Q3_K Q4_K Q5_K Q6_K |
//! | `iq4.rs` | IQ4_NL IQ4_XS |
//! | `closest.rs` `closest_super.rs` | scales with less error than the reference's |
//! | `codebook.rs` | points of grids, and those near levels that are none |
//! | `grid.rs` | the search for scales of points of a grid |
//! | `iq2.rs` `iq3.rs` | IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S |
//! | `iq1.rs` | IQ1_S IQ1_M |
//! | `mxfp4.rs` | MXFP4 |

mod closest;
mod closest_super;
mod codebook;
mod grid;
mod iq1;
mod iq2;
mod iq3;
mod iq4;
mod lanes;
mod legacy;
mod mxfp4;
mod offset;
mod positive;
mod q2_k;
mod q3_k;
mod q45_k;
mod q6_k;
mod symmetric;
#[cfg(test)]
mod tests;

use bytemuck::cast_slice_mut;
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use crate::GgmlType;
use crate::structs::{
    BlockIQ1_M, BlockIQ1_S, BlockIQ2_S, BlockIQ2_XS, BlockIQ2_XXS, BlockIQ3_S, BlockIQ3_XXS, BlockIQ4_NL, BlockIQ4_XS,
    BlockMXFP4, BlockQ2_K, BlockQ3_K, BlockQ4_0, BlockQ4_1, BlockQ4_K, BlockQ5_0, BlockQ5_1, BlockQ5_K, BlockQ6_K,
    BlockQ8_0, F16Le, cast,
};

/// Values of a super-block.
const SUPER: usize = 256;

/// Scales below this count as zero (`GROUP_MAX_EPS`).
const EPSILON: f32 = 1e-15;

/// Returns whether rows can be quantised to this type: F32, F16, BF16, the legacy types but Q8_1, Q2_K to Q6_K, the IQ types and
/// MXFP4.
pub fn can_quantize(ty: GgmlType) -> bool {
    use GgmlType::*;
    matches!(ty, F32 | F16 | BF16 | Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K)
        || matches!(ty, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S | IQ4_NL | IQ4_XS | MXFP4)
}

/// Returns whether rows are quantised to this type only with the importance of their columns: IQ1_S, IQ2_XXS and IQ2_XS.
pub fn needs_importance(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::IQ1_S | GgmlType::IQ2_XXS | GgmlType::IQ2_XS)
}

/// Quantises a row. Shapes: `row`: `[n]`, whole blocks; `weights`: `[n]`, the importance of each column, not negative; `out`:
/// `ty.row_bytes(n)`.
///
/// F32, F16, BF16, Q8_0 and MXFP4 do not look at the weights. A row that is beyond the range of the type's scales gives
/// blocks that are not finite: see [`is_finite`].
///
/// ```
/// use ruvllm_ggml::{GgmlType, quantize_row};
/// let mut block = [0; 34];
/// quantize_row(GgmlType::Q8_0, &[1.0; 32], None, &mut block);
/// assert_eq!(block[2..], [127; 32]);
/// ```
///
/// # Panics
/// If the type is none of [`can_quantize`], a length is another, or there are no weights and the type [needs](needs_importance) some.
pub fn quantize_row(ty: GgmlType, row: &[f32], weights: Option<&[f32]>, out: &mut [u8]) {
    assert!(ty.row_bytes(row.len()) == Some(out.len()), "quantize {ty}: {} values into {} bytes", row.len(), out.len());
    assert!(weights.is_none_or(|w| w.len() == row.len()), "quantize {ty}: weights differ from the row in length");
    assert!(weights.is_some() || !needs_importance(ty), "quantize {ty}: the importance of its columns is missing");
    match ty {
        GgmlType::F32 => out.as_chunks_mut().0.iter_mut().zip(row).for_each(|(to, x)| *to = x.to_le_bytes()),
        GgmlType::F16 => f16s(row, out),
        GgmlType::BF16 => {
            out.as_chunks_mut().0.iter_mut().zip(row).for_each(|(to, &x)| *to = bf16::from_f32(x).to_le_bytes());
        }
        GgmlType::Q4_0 => legacy::q4_0(row, weights, cast_slice_mut(out)),
        GgmlType::Q4_1 => legacy::q4_1(row, weights, cast_slice_mut(out)),
        GgmlType::Q5_0 => legacy::q5_0(row, weights, cast_slice_mut(out)),
        GgmlType::Q5_1 => legacy::q5_1(row, weights, cast_slice_mut(out)),
        GgmlType::Q8_0 => legacy::q8_0(row, cast_slice_mut(out)),
        GgmlType::Q2_K => q2_k::row(row, weights, cast_slice_mut(out)),
        GgmlType::Q3_K => q3_k::row(row, weights, cast_slice_mut(out)),
        GgmlType::Q4_K => q45_k::q4_k(row, weights, cast_slice_mut(out)),
        GgmlType::Q5_K => q45_k::q5_k(row, weights, cast_slice_mut(out)),
        GgmlType::Q6_K => q6_k::row(row, weights, cast_slice_mut(out)),
        GgmlType::IQ1_S => iq1::s(row, weights, cast_slice_mut(out)),
        GgmlType::IQ1_M => iq1::m(row, weights, cast_slice_mut(out)),
        GgmlType::IQ2_XXS => iq2::xxs(row, weights, cast_slice_mut(out)),
        GgmlType::IQ2_XS => iq2::xs(row, weights, cast_slice_mut(out)),
        GgmlType::IQ2_S => iq2::s(row, weights, cast_slice_mut(out)),
        GgmlType::IQ3_XXS => iq3::xxs(row, weights, cast_slice_mut(out)),
        GgmlType::IQ3_S => iq3::s(row, weights, cast_slice_mut(out)),
        GgmlType::IQ4_NL => iq4::nl(row, weights, cast_slice_mut(out)),
        GgmlType::IQ4_XS => iq4::xs(row, weights, cast_slice_mut(out)),
        GgmlType::MXFP4 => mxfp4::row(row, cast_slice_mut(out)),
        other => panic!("no rows are quantised to {other}"),
    }
}

/// Quantises a row as [`quantize_row`], and then searches for scales with less weighted squared error: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL,
/// Q3_K to Q6_K and IQ4_XS. They are not the reference's blocks, and never worse by that measure. Without weights every
/// column counts the same. Other types are those of [`quantize_row`].
///
/// # Panics
/// As [`quantize_row`].
pub fn quantize_row_closest(ty: GgmlType, row: &[f32], weights: Option<&[f32]>, out: &mut [u8]) {
    quantize_row(ty, row, weights, out);
    match ty {
        GgmlType::Q4_0 => closest::q4_0(row, weights, cast_slice_mut(out)),
        GgmlType::Q4_1 => closest::q4_1(row, weights, cast_slice_mut(out)),
        GgmlType::Q5_0 => closest::q5_0(row, weights, cast_slice_mut(out)),
        GgmlType::Q5_1 => closest::q5_1(row, weights, cast_slice_mut(out)),
        GgmlType::Q8_0 => closest::q8_0(row, weights, cast_slice_mut(out)),
        GgmlType::IQ4_NL => closest::iq4_nl(row, weights, cast_slice_mut(out)),
        GgmlType::Q3_K => closest_super::q3_k(row, weights, cast_slice_mut(out)),
        GgmlType::Q4_K => closest_super::q4_k(row, weights, cast_slice_mut(out)),
        GgmlType::Q5_K => closest_super::q5_k(row, weights, cast_slice_mut(out)),
        GgmlType::Q6_K => closest_super::q6_k(row, weights, cast_slice_mut(out)),
        GgmlType::IQ4_XS => closest_super::iq4_xs(row, weights, cast_slice_mut(out)),
        _ => {}
    }
}

/// Values of 16 bits; vectors convert some at once where the machine can.
fn f16s(row: &[f32], out: &mut [u8]) {
    let mut buffer = [f16::ZERO; 64];
    for (row, out) in row.chunks(64).zip(out.chunks_mut(128)) {
        let values = &mut buffer[..row.len()];
        values.convert_from_f32_slice(row);
        out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(to, x)| *to = x.to_le_bytes());
    }
}

/// Returns whether the scales of quantised blocks are finite, and the values of F32, F16 and BF16 are. Types that
/// [`quantize_row`] does not write are not looked at.
///
/// # Panics
/// If `bytes` are no whole blocks.
pub fn is_finite(ty: GgmlType, bytes: &[u8]) -> bool {
    let is_half = |d: F16Le| d.0[1] & 0x7c != 0x7c;
    macro_rules! scales {
        ($block:ty, $($field:ident)+) => { cast::<$block>(bytes).iter().all(|block| true $(&& is_half(block.$field))+) };
    }
    match ty {
        GgmlType::F32 => bytes.as_chunks().0.iter().all(|&x| f32::from_le_bytes(x).is_finite()),
        GgmlType::F16 => bytes.as_chunks().0.iter().all(|&x| is_half(F16Le(x))),
        GgmlType::BF16 => bytes.as_chunks().0.iter().all(|&x| bf16::from_le_bytes(x).is_finite()),
        GgmlType::Q4_0 => scales!(BlockQ4_0, d),
        GgmlType::Q4_1 => scales!(BlockQ4_1, d m),
        GgmlType::Q5_0 => scales!(BlockQ5_0, d),
        GgmlType::Q5_1 => scales!(BlockQ5_1, d m),
        GgmlType::Q8_0 => scales!(BlockQ8_0, d),
        GgmlType::Q2_K => scales!(BlockQ2_K, d dmin),
        GgmlType::Q3_K => scales!(BlockQ3_K, d),
        GgmlType::Q4_K => scales!(BlockQ4_K, d dmin),
        GgmlType::Q5_K => scales!(BlockQ5_K, d dmin),
        GgmlType::Q6_K => scales!(BlockQ6_K, d),
        GgmlType::IQ1_S => scales!(BlockIQ1_S, d),
        GgmlType::IQ1_M => cast::<BlockIQ1_M>(bytes).iter().all(|block| is_half(block.d())),
        GgmlType::IQ2_XXS => scales!(BlockIQ2_XXS, d),
        GgmlType::IQ2_XS => scales!(BlockIQ2_XS, d),
        GgmlType::IQ2_S => scales!(BlockIQ2_S, d),
        GgmlType::IQ3_XXS => scales!(BlockIQ3_XXS, d),
        GgmlType::IQ3_S => scales!(BlockIQ3_S, d),
        GgmlType::IQ4_NL => scales!(BlockIQ4_NL, d),
        GgmlType::IQ4_XS => scales!(BlockIQ4_XS, d),
        GgmlType::MXFP4 => cast::<BlockMXFP4>(bytes).iter().all(|block| block.e != 0xff),
        _ => true,
    }
}

/// Importance weights of a block of a row that has some.
fn part<const N: usize>(weights: Option<&[f32]>, block: usize) -> Option<&[f32; N]> {
    weights.map(|weights| &weights.as_chunks().0[block])
}

/// Returns the sum of the squares of values, in order.
fn sum_of_squares(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |sum, x| sum + x * x)
}
