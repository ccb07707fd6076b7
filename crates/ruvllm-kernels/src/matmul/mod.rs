//! Matrix products: `y[n, rows] = X[n, k] · W[rows, k]ᵀ`.
//!
//! Two paths, chosen by the weights' type ([`Matrix::act_format`] says which):
//!
//! - **integer** (Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4): the matrix is repacked into panels of 16 rows, and rows lie
//!   in lanes: a 64-byte vector is 16 rows by 4 consecutive values, multiplied with 4 activations broadcast to every
//!   lane. A lane is a result, so nothing is summed across. Activations have a scale per 32, and of eight groups of four
//!   the two largest have 16 bits and the others 8: high bytes go through the same byte products as low ones.
//! - **float** (every other type): blocks stay where they are, usually in the file's mapping; tiles of rows are
//!   dequantised and multiplied with f32 activations.
//!
//! Where only the largest results of a row are wanted, a [`HeadShortlist`] finds them without reading all of a matrix.
//!
//! ```text
//! panel of 16 rows, block of 32 values:
//!   2 bits   2 vectors; bits 2jj of byte (row, i) of vector h are value 4(4h+jj)+i
//!   3 bits   + 1 vector;  bit j of byte (row, i) is the high bit of value 4j+i
//!   nibbles  4 vectors; byte (row, i) of vector j holds value 4j+i (low) and 16+4j+i (high)
//!   5 bits   + 1 vector;  bit j of byte (row, i) is the high bit of value 4j+i
//!   6 bits   + 2 vectors; bits 2jj of byte (row, i) of vector h are the high bits of value 4(4h+jj)+i
//!   8 bits   8 vectors of value + 128
//! ```
//!
//! The kernels are specialised by constants of the format and by the tile's shape, not cloned. Weights are unsigned,
//! their offset goes into the accumulator's start, exactly. Each result is computed in one fixed order of operations
//! within an instruction set, so its bits depend neither on the other rows of a batch nor on the threads.
//!
//! ```
//! use ruvllm_kernels::{GgmlType, Isa, matmul, matmul::{Acts, Matrix}};
//! use ruvllm_cpu::ThreadPool;
//! let (table, threads) = (matmul::pick(Isa::best()), ThreadPool::new(1));
//! let identity: Vec<u8> = [1f32, 0.0, 0.0, 1.0].iter().flat_map(|w| w.to_le_bytes()).collect();
//! let w = Matrix::new(table, &threads, GgmlType::F32, 2, 2, identity.into());
//! let mut x = Acts::new(2, 1);
//! x.set(table, &threads, &[3.0, 4.0], 1, 2, w.act_format());
//! let mut y = [0.0; 2];
//! matmul::matmul(&threads, &w, &x, &mut y);
//! assert_eq!(y, [3.0, 4.0]);
//! ```

mod acts;
mod float;
mod format;
mod head_shortlist;
mod int;
mod matrix;
mod pack;
mod region;
mod stream;

pub use acts::{ActBlock, ActFormat, Acts, Chunking, MadeRows, MakeChunk};
pub use head_shortlist::{HeadShortlist, ShortlistOut, TopK};
pub use matrix::{Matrix, Packing, PanelSink};

use crate::isa::{self, Dispatch, Isa};
use crate::prefetch::PrefetchPlan;
use format::{BLOCK, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4K, Q5K, Q6K, Q40, Q41, Q50, Q51, Q80};
#[cfg(target_arch = "x86_64")]
use int::amx::Hardware;
use ruvllm_cpu::ThreadPool;
pub use stream::next_shares;

/// Matrix product kernels of one instruction set.
pub type MatmulKernels = Dispatch<MatmulOps>;

/// Function pointers of [`MatmulKernels`].
#[derive(Clone, Copy, Debug)]
pub struct MatmulOps {
    quantize: unsafe fn(&[f32], &mut [ActBlock]),
    /// In the order of [`INT_TYPES`].
    int: [int::Kernel; INT_TYPES.len()],
    /// What `int` takes at once.
    chunk: int::Chunk,
    float: float::Kernel,
}

/// The types of the integer path.
const INT_TYPES: [crate::GgmlType; 13] = {
    use crate::GgmlType::{IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
    [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4]
};

/// Returns where a type is among [`INT_TYPES`].
fn int_index(ty: crate::GgmlType) -> Option<usize> {
    INT_TYPES.iter().position(|known| *known == ty)
}

/// The kernels of one file, in the order of [`INT_TYPES`].
macro_rules! int_kernels {
    ($isa:ident $(, $flag:tt)?) => {[
        int::$isa::run::<Q40 $(, $flag)?>, int::$isa::run::<Q41 $(, $flag)?>,
        int::$isa::run::<Q50 $(, $flag)?>, int::$isa::run::<Q51 $(, $flag)?>,
        int::$isa::run::<Q80 $(, $flag)?>, int::$isa::run::<Q4K $(, $flag)?>,
        int::$isa::run::<Q5K $(, $flag)?>, int::$isa::run::<Q6K $(, $flag)?>,
        int::$isa::run::<Q2K $(, $flag)?>, int::$isa::run::<Q3K $(, $flag)?>,
        int::$isa::run::<Iq4Nl $(, $flag)?>, int::$isa::run::<Iq4Xs $(, $flag)?>,
        int::$isa::run::<Mxfp4 $(, $flag)?>,
    ]};
}

#[cfg(test)]
mod tests;

isa::table! { MatmulOps {
    #[cfg(target_arch = "x86_64")]
    Dispatch::new(Isa::Amx, MatmulOps {
        quantize: int::avx512::quantize,
        int: int_kernels!(amx, Hardware),
        chunk: int::CHUNK,
        float: float::avx512::run,
    }).only_if(int::amx::works),
    #[cfg(target_arch = "x86_64")]
    Dispatch::new(Isa::Avx512, MatmulOps {
        quantize: int::avx512::quantize,
        int: int_kernels!(avx512),
        chunk: int::avx512::CHUNK,
        float: float::avx512::run,
    }),
    #[cfg(target_arch = "x86_64")]
    Dispatch::new(Isa::AvxVnni, MatmulOps {
        quantize: int::avx2::quantize,
        int: int_kernels!(avx2, true),
        chunk: int::CHUNK,
        float: float::avx2::run,
    }),
    #[cfg(target_arch = "x86_64")]
    Dispatch::new(Isa::Avx2, MatmulOps {
        quantize: int::avx2::quantize,
        int: int_kernels!(avx2, false),
        chunk: int::CHUNK,
        float: float::avx2::run,
    }),
    #[cfg(target_arch = "aarch64")]
    Dispatch::new(Isa::Neon, MatmulOps {
        quantize: int::neon::quantize,
        int: int_kernels!(neon, { int::neon::MMLA }),
        chunk: int::CHUNK,
        float: float::neon::run,
    }).only_if(|| std::arch::is_aarch64_feature_detected!("i8mm")).named("neon+i8mm"),
    #[cfg(target_arch = "aarch64")]
    Dispatch::new(Isa::Neon, MatmulOps {
        quantize: int::neon::quantize,
        int: int_kernels!(neon, { int::neon::DOT }),
        chunk: int::CHUNK,
        float: float::neon::run,
    }).only_if(|| std::arch::is_aarch64_feature_detected!("dotprod")).named("neon+dotprod"),
    #[cfg(target_arch = "aarch64")]
    Dispatch::new(Isa::Neon, MatmulOps {
        quantize: int::neon::quantize,
        int: int_kernels!(neon, { int::neon::PAIRS }),
        chunk: int::CHUNK,
        float: float::neon::run,
    }),
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Dispatch::new(Isa::Simd128, MatmulOps {
        quantize: int::scalar::quantize,
        int: int_kernels!(simd128),
        chunk: int::CHUNK,
        float: float::simd128::run,
    }),
    Dispatch::new(Isa::Scalar, MatmulOps {
        quantize: int::scalar::quantize,
        int: int_kernels!(scalar),
        chunk: int::CHUNK,
        float: float::scalar::run,
    }),
} }

impl MatmulKernels {
    /// Quantises activations: block `b` of `out` from `x[32b..32b + 32]`. Every row of the table gives the same bits.
    ///
    /// # Panics
    /// If `x` is not 32 values per block.
    pub fn quantize(&self, x: &[f32], out: &mut [ActBlock]) {
        assert_eq!(x.len(), out.len() * BLOCK, "quantize: {} values for {} blocks of 32", x.len(), out.len());
        // SAFETY: rows escape only through `available` and `pick`, which asked the CPU first.
        unsafe { (self.ops.quantize)(x, out) };
    }
}

/// `out[n, rows] = X · Wᵀ` for all rows that `x` holds; `out` is row-major.
///
/// # Panics
/// If the row lengths differ, `x` does not hold [`Matrix::act_format`], or `out` has another size.
pub fn matmul(threads: &ThreadPool, w: &Matrix, x: &Acts, out: &mut [f32]) {
    region::multiply::<1>(threads, x, [GroupedProduct { matrix: w, rows: x.all_rows(), out }], None);
}

/// Several products of the same activations (Q, K and V; gate and up) as one parallel region.
///
/// # Panics
/// As [`matmul`] does, and with more than eight matrices.
pub fn matmul_many(threads: &ThreadPool, x: &Acts, products: &mut [(&Matrix, &mut [f32])]) {
    region::multiply::<MAX_PRODUCTS>(threads, x, of_all_rows(x, products), None);
}

/// [`matmul_many`] whose workers prefetch other memory meanwhile: that of `plan`, which is read right after.
///
/// # Panics
/// As [`matmul_many`] does.
pub fn matmul_many_prefetching(
    threads: &ThreadPool,
    x: &Acts,
    products: &mut [(&Matrix, &mut [f32])],
    plan: &PrefetchPlan,
) {
    region::multiply::<MAX_PRODUCTS>(threads, x, of_all_rows(x, products), Some(plan));
}

/// Most matrices of one call.
const MAX_PRODUCTS: usize = 8;

/// Returns the products of some matrices with all activation rows.
fn of_all_rows<'a>(
    x: &'a Acts,
    products: &'a mut [(&Matrix, &mut [f32])],
) -> impl IntoIterator<Item = GroupedProduct<'a>> {
    products.iter_mut().map(|(matrix, out)| GroupedProduct { matrix, rows: x.all_rows(), out })
}

/// A matrix, and the activation rows that it is multiplied with.
#[derive(Debug)]
pub struct GroupedProduct<'a> {
    /// The matrix.
    pub matrix: &'a Matrix,
    /// Numbers of the activation rows, in any order; repeats are allowed.
    pub rows: &'a [u32],
    /// Results: `[rows.len(), matrix.n_rows()]`, row-major.
    pub out: &'a mut [f32],
}

/// Most products of one [`matmul_grouped`].
pub const MAX_GROUPED: usize = 64;

/// Several products, each of its own rows of `x` (the experts of a mixture), as one parallel region: row `i` of a result is
/// `X[rows[i]] · Wᵀ`, with the same bits as [`matmul`].
///
/// # Panics
/// As [`matmul`] does, if a row does not exist, and with more than [`MAX_GROUPED`] products.
pub fn matmul_grouped<'a>(threads: &ThreadPool, x: &Acts, products: impl IntoIterator<Item = GroupedProduct<'a>>) {
    region::multiply::<MAX_GROUPED>(threads, x, products, None);
}
