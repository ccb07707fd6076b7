//! Dequantisation of every [`GgmlType`] to f32, and the conversions between f32, f16 and bf16 rows.
//!
//! ```text
//! for each block of `ty` in bytes:
//!     d, m = the block's f16 scale and minimum (times the group's integer scale, where there is one)
//!     for each value i:  out[i] = d * q[i] - m        (two roundings: never a fused multiply-add)
//! ```
//! The scalar row is bit for bit what `gguf-py` computes; the others are bit for bit the scalar row (a NaN may differ
//! in payload only). Vector rows cover all block types in which weights are stored but TQ1_0; the rest go through the
//! scalar row, which the compiler vectorises well enough.
//!
//! | file | types |
//! |---|---|
//! | `scalar.rs` | F32 F16 BF16 F64 I8 I16 I32 I64, and which file a type is in |
//! | `legacy.rs` | Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q8_1 |
//! | `k_quants.rs` | Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K |
//! | `iq.rs` | IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS |
//! | `ternary_fp4.rs` | TQ1_0 TQ2_0 MXFP4 |
//! | `vector.rs` | the block types worth vectors, written once over a few primitives on 16 bytes |
//! | `x86.rs` | the primitives that `avx2.rs` and `avx512.rs` share; `neon.rs` and `simd128.rs` have their own |

use crate::block::GgmlType;
use crate::isa::{self, Dispatch};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod iq;
mod k_quants;
mod legacy;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
mod ternary_fp4;
#[cfg(test)]
mod tests;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64", target_feature = "simd128"))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Dequantises whole blocks with plain loops: the truth the rows of [`DequantKernels`] are tested against.
///
/// Shapes: `bytes`: `[n / ty.block_len()]` blocks; `out`: `[n]`. Integers and f64 become the nearest f32.
///
/// ```
/// use ruvllm_kernels::{GgmlType, dequant};
/// let mut block = [0x80u8; 18]; // scale, then 32 values of 4 bits: all 0 and 8, that is -8 and 0
/// block[..2].copy_from_slice(&0x3c00u16.to_le_bytes()); // 1.0
/// let mut out = [0.0; 32];
/// dequant::dequantize(GgmlType::Q4_0, &block, &mut out);
/// assert_eq!((out[0], out[16]), (-8.0, 0.0));
/// ```
///
/// # Panics
/// If `out` is not whole blocks or `bytes` is not their size.
pub fn dequantize(ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
    check_blocks(ty, bytes, out);
    scalar::dequantize(ty, bytes, out);
}

fn check_blocks(ty: GgmlType, bytes: &[u8], out: &[f32]) {
    let need = ty.row_bytes(out.len());
    assert!(
        need == Some(bytes.len()),
        "dequantize {ty}: {} values need {need:?} bytes, got {}",
        out.len(),
        bytes.len()
    );
}

/// Dequantisation kernels of one instruction set.
pub type DequantKernels = Dispatch<DequantOps>;

/// Function pointers of [`DequantKernels`].
#[derive(Clone, Copy, Debug)]
pub struct DequantOps {
    dequantize: unsafe fn(GgmlType, &[u8], &mut [f32]),
    to_f16: unsafe fn(&[f32], &mut [u16]),
    from_f16: unsafe fn(&[u16], &mut [f32]),
    to_bf16: unsafe fn(&[f32], &mut [u16]),
    from_bf16: unsafe fn(&[u16], &mut [f32]),
}

isa::table! { DequantOps by isa { dequantize, to_f16, from_f16, to_bf16, from_bf16 } }

impl DequantKernels {
    /// Dequantises whole blocks: the same bits as [`dequantize`], faster.
    ///
    /// # Panics
    /// If `out` is not whole blocks or `bytes` is not their size.
    pub fn dequantize(&self, ty: GgmlType, bytes: &[u8], out: &mut [f32]) {
        check_blocks(ty, bytes, out);
        // SAFETY: a row is reached only through `available` and `pick`, which asked the CPU; lengths were checked.
        unsafe { (self.ops.dequantize)(ty, bytes, out) }
    }

    /// Converts f32 to the bits of f16, rounding to nearest even; beyond ±65519.99 becomes infinity.
    /// Shapes: both `[n]`, any `n`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn to_f16(&self, x: &[f32], out: &mut [u16]) {
        assert!(x.len() == out.len(), "to_f16: {} values into {}", x.len(), out.len());
        // SAFETY: as in `dequantize`.
        unsafe { (self.ops.to_f16)(x, out) }
    }

    /// Converts the bits of f16 to f32, exactly. Shapes: both `[n]`, any `n`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn from_f16(&self, x: &[u16], out: &mut [f32]) {
        assert!(x.len() == out.len(), "from_f16: {} values into {}", x.len(), out.len());
        // SAFETY: as in `dequantize`.
        unsafe { (self.ops.from_f16)(x, out) }
    }

    /// Converts f32 to the bits of bf16, rounding to nearest even; a NaN stays a (quiet) NaN.
    /// Shapes: both `[n]`, any `n`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn to_bf16(&self, x: &[f32], out: &mut [u16]) {
        assert!(x.len() == out.len(), "to_bf16: {} values into {}", x.len(), out.len());
        // SAFETY: as in `dequantize`.
        unsafe { (self.ops.to_bf16)(x, out) }
    }

    /// Converts the bits of bf16 to f32, exactly. Shapes: both `[n]`, any `n`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn from_bf16(&self, x: &[u16], out: &mut [f32]) {
        assert!(x.len() == out.len(), "from_bf16: {} values into {}", x.len(), out.len());
        // SAFETY: as in `dequantize`.
        unsafe { (self.ops.from_bf16)(x, out) }
    }
}
