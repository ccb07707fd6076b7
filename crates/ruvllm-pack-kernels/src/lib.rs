//! Kernels in the form that kernel packs have them: safe functions over `ruvllm-kernels`, for one thread.
//!
//! Built for WebAssembly, the crate is a pack itself: its `exports` give the functions the names of the packs' interface.
//!
//! ```
//! use ruvllm_kernels::{GgmlType, Isa};
//! use ruvllm_pack_kernels::{MatrixShape, Weights, embed, quantize};
//!
//! let (row, mut block, mut back) = ([1.0; 32], [0; 34], [0.0; 32]);
//! quantize(GgmlType::Q8_0, &row, &mut block);
//! embed(Isa::Scalar, GgmlType::Q8_0, &block, &mut back);
//! assert!((back[0] - 1.0).abs() < 1e-3);
//!
//! let weights = Weights::new(Isa::Scalar, GgmlType::Q8_0, MatrixShape { n_out: 1, n_in: 32 }, &block);
//! let mut product = [0.0];
//! weights.multiply(&row, 1, &mut product);
//! // The products round rows to 8 bits.
//! assert!((product[0] - 32.0).abs() < 0.2);
//! ```

mod attention;
#[cfg(target_family = "wasm")]
mod exports;
mod matmul;

pub use attention::{AttentionInputs, AttentionShape, attention};
pub use matmul::{MatrixShape, Weights};

use ruvllm_ggml::GgmlType;
use ruvllm_kernels::{Isa, dequant};

/// Writes a row of quantised values as floats. Shapes: `row`: whole blocks of `ty`; `out`: `[n]`.
///
/// # Panics
/// If `out` is not whole blocks or `row` is not their size.
pub fn embed(isa: Isa, ty: GgmlType, row: &[u8], out: &mut [f32]) {
    dequant::pick(isa).dequantize(ty, row, out);
}

/// Returns whether [`quantize`] quantises to a type: one that needs no importance weights.
pub fn can_quantize(ty: GgmlType) -> bool {
    ruvllm_ggml::can_quantize(ty) && !ruvllm_ggml::needs_importance(ty)
}

/// Quantises a row without importance weights. Shapes: `row`: `[n]`, whole blocks; `out`: `ty.row_bytes(n)`.
///
/// # Panics
/// If nothing is quantised to the type ([`can_quantize`]), or a length is another.
pub fn quantize(ty: GgmlType, row: &[f32], out: &mut [u8]) {
    ruvllm_ggml::quantize_row(ty, row, None, out);
}
