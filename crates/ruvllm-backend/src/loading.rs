//! Shared steps of backends that load a GGUF file: progress, bounds of what is asked for, and weights as floats.

use std::ops::Range;

use ruvllm_gguf::{GgufFile, TensorInfo};
use ruvllm_kernels::dequant;
use ruvllm_kernels::matmul::Matrix;
use ruvllm_model::TensorRows;

use crate::{BackendError, BackendErrorKind};

/// Tokens of context beyond this are taken for a slip.
const CONTEXT_MAX: usize = 1 << 24;

/// Sequences beyond this are taken for a slip.
const SEQUENCES_MAX: usize = 4096;

/// Progress of loading, in bytes of tensor data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes taken over so far.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// Checks the context and the number of sequences that a model is to be opened with.
///
/// # Errors
/// [`BackendErrorKind::Options`]: one is 0 or beyond any use.
pub fn check_sizes(n_ctx: Option<usize>, n_seq_max: usize) -> Result<(), BackendError> {
    let options = |line: String| Err(BackendError::new(BackendErrorKind::Options, line));
    if n_seq_max == 0 || n_seq_max > SEQUENCES_MAX {
        return options(format!("{n_seq_max} sequences; choose 1 to {SEQUENCES_MAX}"));
    }
    match n_ctx {
        Some(0) => options("a context of 0 tokens holds no prompt; choose at least 1".to_owned()),
        Some(n) if n > CONTEXT_MAX => options(format!("a context of {n} tokens; choose up to {CONTEXT_MAX}")),
        _ => Ok(()),
    }
}

/// Finds a tensor that the description of a file names.
///
/// # Errors
/// [`BackendErrorKind::Unsupported`]: its type is no weight format.
///
/// # Panics
/// If the description is of another file.
pub fn weight_tensor<'a>(file: &'a GgufFile, rows: &TensorRows) -> Result<&'a TensorInfo, BackendError> {
    let tensor = file.tensor(&rows.tensor).expect("the description names tensors of its file");
    match Matrix::supports(tensor.ty) {
        true => Ok(tensor),
        false => {
            let line = format!("tensor '{}' has type {}, which is not a weight format", tensor.name, tensor.ty);
            Err(BackendError::unsupported(line))
        }
    }
}

/// Reads weights as floats: `[n_rows, n_cols]`.
///
/// # Errors
/// As [`weight_tensor`]; the file cannot be read.
///
/// # Panics
/// If the description is of another file.
pub fn weight_values(file: &GgufFile, rows: &TensorRows) -> Result<Vec<f32>, BackendError> {
    let (tensor, range) = (weight_tensor(file, rows)?, rows.values());
    let read = |bytes: Range<usize>, n_values: usize| {
        let mut values = vec![0.0; n_values];
        dequant::dequantize(tensor.ty, &file.read(tensor, bytes)?, &mut values);
        Ok(values)
    };
    match (tensor.ty.row_bytes(range.start), tensor.ty.row_bytes(range.end)) {
        (Some(start), Some(end)) => read(start..end, range.len()),
        // Part of a block.
        _ => read(0..tensor.n_bytes(), tensor.n_elements()).map(|values| values[range].to_vec()),
    }
}
