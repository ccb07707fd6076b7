//! Rows of a tensor, quantised by all threads.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use ruvllm_ggml::{GgmlType, is_finite, quantize_row};
use ruvllm_kernels::Isa;
use ruvllm_kernels::dequant::{self, DequantKernels};

use crate::error::{ConvertError, ConvertErrorKind};
use crate::plan::PlannedTensor;

/// Values that a thread takes at once.
const VALUES_AT_ONCE: usize = 1 << 15;

/// The rows of a tensor, experts behind each other.
pub(crate) struct Rows<'a> {
    from: GgmlType,
    to: GgmlType,
    source: Bytes,
    n_columns: usize,
    n_rows: usize,
    n_rows_per_expert: usize,
    weights: Option<&'a [f32]>,
    dequant: &'static DequantKernels,
}

impl<'a> Rows<'a> {
    /// Takes the rows of a tensor with its bytes.
    pub(crate) fn new(tensor: &PlannedTensor<'a>, source: Bytes) -> Rows<'a> {
        let shape = &tensor.info.shape;
        Rows {
            from: tensor.info.ty,
            to: tensor.ty,
            source,
            n_columns: shape[0],
            n_rows: shape[1..].iter().product(),
            n_rows_per_expert: shape[1],
            weights: tensor.weights,
            dequant: dequant::pick(Isa::best()),
        }
    }

    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    pub(crate) fn n_columns(&self) -> usize {
        self.n_columns
    }

    /// Returns the bytes of some rows of the source.
    pub(crate) fn source_range(&self, rows: &Range<usize>) -> Range<usize> {
        let size = row_bytes(self.from, self.n_columns);
        rows.start * size..rows.end * size
    }

    /// Quantises some rows behind each other into `out`, which takes their size. Threads take them in parts; the result does not
    /// depend on how many there are.
    ///
    /// # Errors
    /// A value is not finite, or too large for the type.
    pub(crate) fn quantize(&self, rows: Range<usize>, out: &mut Vec<u8>, n_threads: usize) -> Result<(), ConvertError> {
        let size = row_bytes(self.to, self.n_columns);
        out.resize(rows.len() * size, 0);
        let n_at_once = (VALUES_AT_ONCE / self.n_columns).max(1);
        let parts = out.chunks_mut(n_at_once * size).zip(rows.step_by(n_at_once));
        let n_parts = parts.len();
        let (parts, failed) = (Mutex::new(parts), Mutex::new(None));
        let work = || {
            let mut values = vec![0.0; self.n_columns];
            let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some((out, first)) = next() {
                let result =
                    out.chunks_mut(size).enumerate().try_for_each(|(i, out)| self.row(first + i, &mut values, out));
                if let Err(error) = result {
                    *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    return;
                }
            }
        };
        thread::scope(|scope| {
            (1..n_threads.min(n_parts)).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn row(&self, row: usize, values: &mut [f32], out: &mut [u8]) -> Result<(), ConvertError> {
        self.dequant.dequantize(self.from, &self.source[self.source_range(&(row..row + 1))], values);
        if !values.iter().all(|x| x.is_finite()) {
            let line = format!("row {row} has a value that is not finite; the model is damaged");
            return Err(ConvertError::new(ConvertErrorKind::Value, line));
        }
        let of_expert =
            |weights: &'a [f32]| &weights[row / self.n_rows_per_expert * self.n_columns..][..self.n_columns];
        quantize_row(self.to, values, self.weights.map(of_expert), out);
        match is_finite(self.to, out) {
            true => Ok(()),
            false => {
                let line = format!("row {row} has values too large for {}; keep it in BF16 (--keep)", self.to);
                Err(ConvertError::new(ConvertErrorKind::Value, line))
            }
        }
    }
}

/// Bytes of a row, whose blocks were checked.
fn row_bytes(ty: GgmlType, n_columns: usize) -> usize {
    ty.row_bytes(n_columns).expect("rows were checked to be whole blocks")
}
