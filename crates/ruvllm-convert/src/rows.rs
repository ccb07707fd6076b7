//! Rows of a tensor, quantised by all threads.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use ruvllm_ggml::{GgmlType, is_finite, quantize_row, quantize_row_closest};
use ruvllm_kernels::Isa;
use ruvllm_kernels::dequant::{self, DequantKernels};

use crate::error::{ConvertError, ConvertErrorKind};
use crate::options::RowQuantizer;
use crate::plan::PlannedTensor;

/// Values that a thread takes at once.
const VALUES_AT_ONCE: usize = 1 << 15;

/// Values of a tensor that are quantised to estimate its error in a type.
const SAMPLE_VALUES: usize = 1 << 17;

/// Rows that are taken for that however long they are, if the tensor has them; a thread takes as many at once.
const SAMPLE_ROWS: usize = 32;

/// The weighted squares of a row's errors, and those of its values.
#[derive(Clone, Copy, Debug, Default)]
struct RowError {
    error: f64,
    square: f64,
}

/// The rows of a tensor, experts behind each other.
pub(crate) struct Rows<'a> {
    from: GgmlType,
    to: GgmlType,
    source: Bytes,
    n_columns: usize,
    n_rows: usize,
    n_rows_per_expert: usize,
    weights: Option<&'a [f32]>,
    /// Blocks have the least error that is found, in place of the reference's.
    is_closest: bool,
    dequant: &'static DequantKernels,
    other: Option<&'a dyn RowQuantizer>,
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
            is_closest: false,
            dequant: dequant::pick(Isa::best()),
            other: None,
        }
    }

    /// Makes blocks of the least error that is found, which are not the reference's.
    pub(crate) fn closest(self, is_closest: bool) -> Rows<'a> {
        Rows { is_closest, ..self }
    }

    /// Lets somebody else quantise rows without importance.
    pub(crate) fn quantized_by(self, other: Option<&'a dyn RowQuantizer>) -> Rows<'a> {
        Rows { other, ..self }
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
        for_each_part(parts, n_threads, |(out, first)| {
            let mut values = vec![0.0; self.n_columns];
            out.chunks_mut(size).enumerate().try_for_each(|(i, out)| self.row(first + i, &mut values, out))
        })
    }

    /// Returns the weighted squared error of the rows over their weighted squares, estimated on some of them: rows at equal
    /// distances. Without importance every column weighs the same. The result does not depend on the number of threads.
    ///
    /// # Errors
    /// A value is not finite, or too large for the type.
    pub(crate) fn relative_error(&self, n_threads: usize) -> Result<f64, ConvertError> {
        let n = (SAMPLE_VALUES / self.n_columns).max(SAMPLE_ROWS).min(self.n_rows);
        let mut errors = vec![RowError::default(); n];
        for_each_part(errors.chunks_mut(SAMPLE_ROWS).enumerate(), n_threads, |(part, errors)| {
            let first = part * SAMPLE_ROWS;
            let rows = (first..first + errors.len()).map(|i| (i as u128 * self.n_rows as u128 / n as u128) as usize);
            self.weighted_errors(rows, errors)
        })?;
        let (error, square) =
            errors.iter().fold((0.0, 0.0), |(error, square), row| (error + row.error, square + row.square));
        // Columns that were always zero weigh nothing.
        Ok(if square > 0.0 { error / square } else { 0.0 })
    }

    /// Quantises rows and writes how far they are from what they were.
    fn weighted_errors(&self, rows: impl Iterator<Item = usize>, errors: &mut [RowError]) -> Result<(), ConvertError> {
        let mut values = vec![0.0; self.n_columns];
        let (mut back, mut out) = (values.clone(), vec![0; row_bytes(self.to, self.n_columns)]);
        for (row, error) in rows.zip(errors) {
            self.row(row, &mut values, &mut out)?;
            self.dequant.dequantize(self.to, &out, &mut back);
            let weights = self.weights_of(row);
            for (i, (&x, &y)) in values.iter().zip(&back).enumerate() {
                let (weight, x, y) = (weights.map_or(1.0, |weights| f64::from(weights[i])), f64::from(x), f64::from(y));
                error.error += weight * (x - y) * (x - y);
                error.square += weight * x * x;
            }
        }
        Ok(())
    }

    /// Returns the importance of a row's columns.
    fn weights_of(&self, row: usize) -> Option<&'a [f32]> {
        let start = row / self.n_rows_per_expert * self.n_columns;
        self.weights.map(|weights| &weights[start..][..self.n_columns])
    }

    /// Lets somebody else quantise a row without importance, and returns whether that happened.
    fn quantize_by_other(&self, values: &[f32], weights: Option<&[f32]>, out: &mut [u8]) -> Result<bool, ConvertError> {
        let Some(other) = self.other.filter(|_| weights.is_none()) else { return Ok(false) };
        other.quantize(self.to, values, out).map_err(|line| ConvertError::new(ConvertErrorKind::Value, line))
    }

    fn row(&self, row: usize, values: &mut [f32], out: &mut [u8]) -> Result<(), ConvertError> {
        self.dequant.dequantize(self.from, &self.source[self.source_range(&(row..row + 1))], values);
        if !values.iter().all(|x| x.is_finite()) {
            let line = format!("row {row} has a value that is not finite; the model is damaged");
            return Err(ConvertError::new(ConvertErrorKind::Value, line));
        }
        let weights = self.weights_of(row);
        if self.is_closest {
            quantize_row_closest(self.to, values, weights, out);
        } else if !self.quantize_by_other(values, weights, out)? {
            quantize_row(self.to, values, weights, out);
        }
        match is_finite(self.to, out) {
            true => Ok(()),
            false => {
                let line = format!("row {row} has values too large for {}; keep it in BF16 (--keep)", self.to);
                Err(ConvertError::new(ConvertErrorKind::Value, line))
            }
        }
    }
}

/// Works on parts, on several threads, until one fails.
fn for_each_part<P: Send>(
    parts: impl ExactSizeIterator<Item = P> + Send,
    n_threads: usize,
    work: impl Fn(P) -> Result<(), ConvertError> + Sync,
) -> Result<(), ConvertError> {
    let n_parts = parts.len();
    let (parts, failed) = (Mutex::new(parts), Mutex::new(None));
    let work = || {
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        while let Some(part) = next() {
            if let Err(error) = work(part) {
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

/// Bytes of a row, whose blocks were checked.
fn row_bytes(ty: GgmlType, n_columns: usize) -> usize {
    ty.row_bytes(n_columns).expect("rows were checked to be whole blocks")
}
