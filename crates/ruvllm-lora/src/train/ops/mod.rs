//! Operations with derivatives of our own, in the graph that candle differentiates.
//!
//! candle's product of matrices computes the gradient of both sides, and its norms and activations are a dozen passes over
//! memory each. Here a frozen matrix has no gradient, a row operation is one pass forwards and one backwards, attention keeps no
//! scores, and the head keeps no logits. Everything stays f32. Rows are shared among threads, never a sum, so the results do not
//! depend on how many there are.

mod attend;
mod head;
mod linear;
mod rows;

#[cfg(test)]
mod tests;

pub(super) use attend::{Attend, Geometry};
pub(super) use head::{Head, LogProbs};
pub(super) use linear::{Apply, Linear};
pub(super) use rows::{Activate, Gate, Norm, NormWeights, Rotate};

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, Device, Layout, Result, Shape, Storage, Tensor, bail};

/// Values that make a piece of work worth handing to another thread.
const PIECE: usize = 1 << 14;

/// Returns the values of an argument, which must lie in order.
fn values<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&values[start..end]),
        (CpuStorage::F32(_), None) => bail!("rows do not lie in order"),
        _ => bail!("values are not f32"),
    }
}

/// Calls `f` with the values of a tensor, which must lie in order.
fn with_values<T>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> T) -> Result<T> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(f(values(storage, layout)?)),
        _ => bail!("values are not in the memory of the CPU"),
    }
}

/// Returns a tensor's values as a vector.
pub(super) fn to_vec(tensor: &Tensor) -> Result<Vec<f32>> {
    with_values(&tensor.contiguous()?, <[f32]>::to_vec)
}

/// Makes a tensor of values.
pub(super) fn tensor(values: Vec<f32>, shape: impl Into<Shape>) -> Result<Tensor> {
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// Multiplies rows `x`: `[n, k]` with `w`: `[k, m]`, giving `[n, m]`.
fn product(x: &CpuStorage, layout: &Layout, w: &Tensor) -> Result<Vec<f32>> {
    let ((n, k), (_, m)) = (layout.shape().dims2()?, w.dims2()?);
    let (storage, w_layout) = w.storage_and_layout();
    let Storage::Cpu(w) = &*storage else { bail!("weights are not in the memory of the CPU") };
    match x.matmul(w, (1, n, m, k), layout, w_layout)? {
        CpuStorage::F32(values) => Ok(values),
        _ => bail!("values are not f32"),
    }
}
