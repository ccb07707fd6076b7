//! Comparison of a pack's results with native ones, on random inputs.
//!
//! `embed` and `quantize` are defined by the formats, so every bit must be native's. Products and attention have sums, whose order is
//! free: they must be near, relative to the size of the results.

use std::fmt;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use ruvllm_ggml::GgmlType;
use ruvllm_kernels::Isa;
use ruvllm_kernels::matmul::Matrix;
use ruvllm_pack_kernels::{AttentionInputs, AttentionShape, MatrixShape, Weights, can_quantize};

use crate::error::{PackError, PackErrorKind};
use crate::manifest::{Op, PackKernel};
use crate::pack::Pack;

/// Largest difference of a product, in units of the results' root mean square: native rounds its inputs to 8 bits.
const PRODUCT_TOLERANCE: f32 = 0.05;
/// Largest difference of attention, in the same units.
const ATTENTION_TOLERANCE: f32 = 1e-4;
/// Rows that `embed` and `quantize` are compared on: a block, zeros, then enough values that one in a thousand that comes out wrong is met.
/// Values of 12 and of 9 bits lie half way between two of F16 and of BF16 as often as not.
const ROWS: [RowShape; 7] = [
    RowShape { n_min: 1, scale: 1.0, n_bits: 24 },
    RowShape { n_min: 256, scale: 0.0, n_bits: 24 },
    RowShape { n_min: 16384, scale: 1.0, n_bits: 24 },
    RowShape { n_min: 16384, scale: 1e-3, n_bits: 24 },
    RowShape { n_min: 16384, scale: 30.0, n_bits: 24 },
    RowShape { n_min: 4096, scale: 30.0, n_bits: 12 },
    RowShape { n_min: 4096, scale: 30.0, n_bits: 9 },
];

/// What a random row holds.
struct RowShape {
    /// Least number of values; whole blocks are taken.
    n_min: usize,
    /// Largest size of a value.
    scale: f32,
    /// Bits of a value's significand, up to 24.
    n_bits: u32,
}

impl RowShape {
    /// Returns the number of values in rows of a type.
    fn n(&self, ty: GgmlType) -> usize {
        self.n_min.next_multiple_of(ty.block_len())
    }

    /// Returns values of a row.
    fn values(&self, n: usize, inputs: &mut Inputs) -> Vec<f32> {
        let mask = u32::MAX << (24 - self.n_bits);
        inputs.values(n, self.scale).into_iter().map(|x| f32::from_bits(x.to_bits() & mask)).collect()
    }
}

/// Outcome of the comparison of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The kernel with its type: `quantize Q4_K`.
    pub kernel: String,
    /// Largest difference from native, in units of the results' root mean square; 0 where all bits are native's.
    pub difference: f32,
}

impl Finding {
    /// Returns whether all bits are native's.
    pub fn is_equal(&self) -> bool {
        self.difference == 0.0
    }
}

/// Compares every kernel of a pack with native, on inputs that `seed` gives.
///
/// # Errors
/// With kind `Result` for a kernel that computes something else, with `Sandbox` for one that fails, with `Unknown` for a type that native
/// does not compute.
pub fn check(pack: &mut Pack, seed: u64) -> Result<Vec<Finding>, PackError> {
    let (kernels, mut inputs) = (pack.manifest().each(), Inputs(ChaCha8Rng::seed_from_u64(seed)));
    let compare = |kernel: PackKernel| {
        let compared = match (kernel.op, kernel.ty) {
            (Op::Embed, Some(ty)) => embed(pack, ty, &mut inputs),
            (Op::Quantize, Some(ty)) => quantize(pack, ty, &mut inputs),
            (Op::Matmul, Some(ty)) => matmul(pack, ty, &mut inputs),
            _ => attention(pack, &mut inputs),
        };
        let difference = compared.map_err(|error| error.within(kernel))?;
        Ok(Finding { kernel: kernel.to_string(), difference })
    };
    kernels.into_iter().map(compare).collect()
}

/// Random inputs.
pub(crate) struct Inputs(ChaCha8Rng);

impl Inputs {
    /// Returns inputs that are always the same.
    pub(crate) fn fixed() -> Inputs {
        Inputs(ChaCha8Rng::seed_from_u64(0))
    }

    /// Returns values between `-scale` and `scale`.
    pub(crate) fn values(&mut self, n: usize, scale: f32) -> Vec<f32> {
        let unit = |bits: u32| (bits >> 8) as f32 / (1 << 23) as f32 - 1.0;
        (0..n).map(|_| scale * unit(self.0.next_u32())).collect()
    }

    /// Returns rows of a type: quantised values where something is quantised to it, else any bytes.
    ///
    /// # Errors
    /// The rows are not whole blocks.
    pub(crate) fn rows(&mut self, ty: GgmlType, n_rows: usize, n: usize, scale: f32) -> Result<Vec<u8>, PackError> {
        let odd = || PackError::new(PackErrorKind::Unknown, format_args!("rows of {n} values are no blocks of {ty}"));
        let n_bytes = ty.row_bytes(n).ok_or_else(odd)?;
        let mut bytes = vec![0; n_rows * n_bytes];
        match can_quantize(ty) {
            true => bytes.chunks_mut(n_bytes).for_each(|row| {
                ruvllm_pack_kernels::quantize(ty, &self.values(n, scale), row);
            }),
            false => self.fill(&mut bytes),
        }
        Ok(bytes)
    }

    /// Writes any bytes.
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

fn embed(pack: &mut Pack, ty: GgmlType, inputs: &mut Inputs) -> Result<f32, PackError> {
    for shape in &ROWS {
        let n = shape.n(ty);
        let mut row = inputs.rows(ty, 1, n, shape.scale)?;
        // Quantised values first, then bytes that no quantiser writes: scales that are subnormal, infinite or NaN.
        for _ in 0..2 {
            let (mut native, mut out) = (vec![0.0; n], vec![0.0; n]);
            ruvllm_pack_kernels::embed(Isa::Scalar, ty, &row, &mut native);
            pack.embed(ty, &row, &mut out)?;
            compare(&native, &out, 0.0)?;
            inputs.fill(&mut row);
        }
    }
    Ok(0.0)
}

fn quantize(pack: &mut Pack, ty: GgmlType, inputs: &mut Inputs) -> Result<f32, PackError> {
    if !can_quantize(ty) {
        return Err(PackError::new(
            PackErrorKind::Unknown,
            "native quantises nothing to this type without importance, so it cannot be checked",
        ));
    }
    for shape in &ROWS {
        let row = shape.values(shape.n(ty), inputs);
        let n_bytes = ty.row_bytes(row.len()).expect("whole blocks have a size");
        let (mut native, mut out) = (vec![0; n_bytes], vec![0; n_bytes]);
        ruvllm_pack_kernels::quantize(ty, &row, &mut native);
        pack.quantize(ty, &row, &mut out)?;
        if let Some(i) = (0..n_bytes).find(|&i| native[i] != out[i]) {
            return Err(differs(format_args!("byte {i} is {:#04x}, and native's is {:#04x}", out[i], native[i])));
        }
    }
    Ok(0.0)
}

fn matmul(pack: &mut Pack, ty: GgmlType, inputs: &mut Inputs) -> Result<f32, PackError> {
    if !Matrix::supports(ty) || !can_quantize(ty) {
        return Err(PackError::new(PackErrorKind::Unknown, "native has no such product to check it with"));
    }
    let mut largest = 0.0_f32;
    for (n_out, n_rows, scale) in [(1, 1, 1.0), (48, 1, 1.0), (33, 5, 0.1), (16, 2, 30.0)] {
        let shape = MatrixShape { n_out, n_in: ty.block_len().max(64) * 4 };
        let weights = inputs.rows(ty, n_out, shape.n_in, 1.0)?;
        let x = inputs.values(n_rows * shape.n_in, scale);
        let (mut native, mut out) = (vec![0.0; n_rows * n_out], vec![0.0; n_rows * n_out]);
        Weights::new(Isa::Scalar, ty, shape, &weights).multiply(&x, n_rows, &mut native);
        let matrix = pack.load(ty, shape, &weights)?;
        pack.matmul(&matrix, &x, n_rows, &mut out)?;
        pack.unload(matrix)?;
        largest = largest.max(compare(&native, &out, PRODUCT_TOLERANCE)?);
    }
    Ok(largest)
}

fn attention(pack: &mut Pack, inputs: &mut Inputs) -> Result<f32, PackError> {
    let mut largest = 0.0_f32;
    for (n_heads, n_kv_heads, dim, n_kv) in [(1, 1, 16, 1), (4, 2, 64, 17), (6, 2, 32, 300)] {
        let shape = AttentionShape { n_heads, n_kv_heads, dim, n_kv };
        let n_keys = shape.n_keys().expect("the shape is sound");
        let [q, k, v] = [n_heads * dim, n_keys, n_keys].map(|n| inputs.values(n, 1.0));
        let inputs = AttentionInputs { q: &q, k: &k, v: &v };
        let (mut native, mut out) = (vec![0.0; q.len()], vec![0.0; q.len()]);
        ruvllm_pack_kernels::attention(Isa::Scalar, shape, inputs, &mut native);
        pack.attention(shape, inputs, &mut out)?;
        largest = largest.max(compare(&native, &out, ATTENTION_TOLERANCE)?);
    }
    Ok(largest)
}

/// Returns the largest difference in units of native's root mean square.
///
/// # Errors
/// It is above the tolerance, or a value is not finite where native's is.
fn compare(native: &[f32], out: &[f32], tolerance: f32) -> Result<f32, PackError> {
    let rms = (native.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / native.len() as f64).sqrt() as f32;
    let mut largest = 0.0_f32;
    for (i, (&native, &out)) in native.iter().zip(out).enumerate() {
        if native.to_bits() == out.to_bits() || native.is_nan() && out.is_nan() {
            continue;
        }
        let difference = (native - out).abs() / rms.max(f32::MIN_POSITIVE);
        // A NaN is on no side of the tolerance.
        if !(difference <= tolerance && tolerance > 0.0) {
            return Err(differs(format_args!("value {i} is {out}, and native's is {native}")));
        }
        largest = largest.max(difference);
    }
    Ok(largest)
}

fn differs(line: fmt::Arguments<'_>) -> PackError {
    PackError::new(PackErrorKind::Result, line)
}
