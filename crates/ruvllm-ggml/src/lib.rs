//! The GGML tensor types: names, type ids and block sizes, and the layout of their on-disk blocks.
//!
//! [`GgmlType`] is the table of types, which needs nothing. The feature `blocks` adds the blocks as structs of bytes that a
//! slice of a file can be viewed as, and the codebooks of the types that have some. The feature `quantize` makes blocks of rows of f32.
//!
//! ```
//! use ruvllm_ggml::GgmlType;
//!
//! let ty = GgmlType::from_id(12).expect("Q4_K has this number");
//! assert_eq!((ty.name(), ty.block_len(), ty.block_bytes()), ("Q4_K", 256, 144));
//! assert_eq!(ty.row_bytes(4096), Some(2304));
//! assert_eq!(ty.row_bytes(100), None); // no whole number of blocks
//! ```

use std::fmt;

#[cfg(feature = "blocks")]
mod grids;
#[cfg(feature = "quantize")]
mod quantize;
#[cfg(feature = "blocks")]
mod structs;

#[cfg(feature = "blocks")]
pub use grids::*;
#[cfg(feature = "quantize")]
pub use quantize::{can_quantize, is_finite, needs_importance, quantize_row, quantize_row_closest};
#[cfg(feature = "blocks")]
pub use structs::*;

macro_rules! ggml_types {
    ($($(#[$doc:meta])* $variant:ident = $id:literal, $name:literal, $len:literal, $bytes:literal;)*) => {
        /// A GGML tensor type as GGUF files number it (`ggml.h`, `enum ggml_type`). Matches are exhaustive, so that a new type is a
        /// line in every kernel.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(non_camel_case_types, reason = "these are the names the field uses")]
        pub enum GgmlType { $($(#[$doc])* $variant,)* }

        impl GgmlType {
            /// Every type, in order of its id.
            pub const ALL: &[GgmlType] = &[$(GgmlType::$variant,)*];

            /// Returns the type with this id, or `None` if the id is unknown (or of a type removed from GGML).
            pub fn from_id(id: u32) -> Option<GgmlType> {
                match id { $($id => Some(GgmlType::$variant),)* _ => None }
            }

            /// Returns the id GGUF files use.
            pub fn id(self) -> u32 { match self { $(GgmlType::$variant => $id,)* } }

            /// Returns the GGML name, e.g. `Q4_K`.
            pub fn name(self) -> &'static str { match self { $(GgmlType::$variant => $name,)* } }

            /// Returns how many values one block holds.
            pub fn block_len(self) -> usize { match self { $(GgmlType::$variant => $len,)* } }

            /// Returns how many bytes one block takes.
            pub fn block_bytes(self) -> usize { match self { $(GgmlType::$variant => $bytes,)* } }
        }
    };
}

ggml_types! {
    /// 32-bit float.
    F32 = 0, "F32", 1, 4;
    /// IEEE half.
    F16 = 1, "F16", 1, 2;
    /// 4 bits, scale per 32.
    Q4_0 = 2, "Q4_0", 32, 18;
    /// 4 bits, scale and minimum per 32.
    Q4_1 = 3, "Q4_1", 32, 20;
    /// 5 bits, scale per 32.
    Q5_0 = 6, "Q5_0", 32, 22;
    /// 5 bits, scale and minimum per 32.
    Q5_1 = 7, "Q5_1", 32, 24;
    /// 8 bits, scale per 32.
    Q8_0 = 8, "Q8_0", 32, 34;
    /// 8 bits, scale and sum per 32 (an activation format).
    Q8_1 = 9, "Q8_1", 32, 36;
    /// 2 bits, 4-bit scale and minimum per 16, super-block of 256.
    Q2_K = 10, "Q2_K", 256, 84;
    /// 3 bits, 6-bit scale per 16, super-block of 256.
    Q3_K = 11, "Q3_K", 256, 110;
    /// 4 bits, 6-bit scale and minimum per 32, super-block of 256.
    Q4_K = 12, "Q4_K", 256, 144;
    /// 5 bits, 6-bit scale and minimum per 32, super-block of 256.
    Q5_K = 13, "Q5_K", 256, 176;
    /// 6 bits, 8-bit scale per 16, super-block of 256.
    Q6_K = 14, "Q6_K", 256, 210;
    /// 8 bits, f32 scale per 256 (an activation format).
    Q8_K = 15, "Q8_K", 256, 292;
    /// 2.06 bits, 8-wide grid of 256 entries.
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    /// 2.31 bits, 8-wide grid of 512 entries.
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    /// 3.06 bits, 4-wide grid of 256 entries.
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    /// 1.56 bits, 8-wide ternary grid of 2048 entries.
    IQ1_S = 19, "IQ1_S", 256, 50;
    /// 4 bits, non-linear codebook, scale per 32.
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    /// 3.44 bits, 4-wide grid of 512 entries.
    IQ3_S = 21, "IQ3_S", 256, 110;
    /// 2.5 bits, 8-wide grid of 1024 entries.
    IQ2_S = 22, "IQ2_S", 256, 82;
    /// 4.25 bits, non-linear codebook, super-block of 256.
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    /// 8-bit integer.
    I8 = 24, "I8", 1, 1;
    /// 16-bit integer.
    I16 = 25, "I16", 1, 2;
    /// 32-bit integer.
    I32 = 26, "I32", 1, 4;
    /// 64-bit integer.
    I64 = 27, "I64", 1, 8;
    /// 64-bit float.
    F64 = 28, "F64", 1, 8;
    /// 1.75 bits, 8-wide ternary grid, scale per 16.
    IQ1_M = 29, "IQ1_M", 256, 56;
    /// bfloat16.
    BF16 = 30, "BF16", 1, 2;
    /// Ternary, 1.69 bits, base-3 packed.
    TQ1_0 = 34, "TQ1_0", 256, 54;
    /// Ternary, 2.06 bits.
    TQ2_0 = 35, "TQ2_0", 256, 66;
    /// OCP microscaling FP4 (E2M1), shared E8M0 scale per 32.
    MXFP4 = 39, "MXFP4", 32, 17;
}

impl GgmlType {
    /// Returns the bytes of `n` values, or `None` if `n` is not whole blocks or the product overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
