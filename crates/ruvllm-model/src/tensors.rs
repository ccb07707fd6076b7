//! Looking tensors up by name, with their shapes checked; no byte of them is read.

use std::ops::Range;

use ruvllm_gguf::{GgufFile, TensorInfo};

use crate::ModelError;
use crate::spec::{NormKind, NormSpec};

/// Rows of a tensor, which is seen as a matrix of rows of `n_cols` values each. A vector is one row, and part of a vector some
/// rows of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRows {
    /// The tensor's name in the file.
    pub tensor: String,
    /// Its rows that are meant.
    pub rows: Range<usize>,
    /// Values of a row.
    pub n_cols: usize,
}

impl TensorRows {
    /// Makes the rows `0..n_rows` of a tensor.
    pub fn whole(tensor: impl Into<String>, n_rows: usize, n_cols: usize) -> TensorRows {
        TensorRows { tensor: tensor.into(), rows: 0..n_rows, n_cols }
    }

    /// Returns one of the rows.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> TensorRows {
        assert!(row < self.n_rows(), "row {row} of {} of '{}'", self.n_rows(), self.tensor);
        let at = self.rows.start + row;
        TensorRows { tensor: self.tensor.clone(), rows: at..at + 1, n_cols: self.n_cols }
    }

    /// Returns how many rows there are.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// Returns how many values there are.
    pub fn n_values(&self) -> usize {
        self.rows.len() * self.n_cols
    }

    /// Returns which values of the tensor they are.
    pub fn values(&self) -> Range<usize> {
        self.rows.start * self.n_cols..self.rows.end * self.n_cols
    }
}

/// The tensors of a file by name.
#[derive(Clone, Copy)]
pub(crate) struct Tensors<'a> {
    file: &'a GgufFile,
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(file: &'a GgufFile) -> Tensors<'a> {
        Tensors { file }
    }

    /// Checks that every layer that the file holds is among the `n_layers` that it claims.
    ///
    /// # Errors
    /// Names a tensor of another one.
    pub(crate) fn check_layers(self, n_layers: usize) -> Result<(), ModelError> {
        let layer = |tensor: &TensorInfo| tensor.name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
        match self.file.tensors().find(|tensor| layer(tensor).is_some_and(|layer| layer >= n_layers)) {
            None => Ok(()),
            Some(tensor) => Err(ModelError::damaged(format!(
                "tensor '{}' is of none of the {n_layers} layers that block_count claims; the file is damaged",
                tensor.name
            ))),
        }
    }

    pub(crate) fn get(self, name: &str) -> Option<&'a TensorInfo> {
        self.file.tensor(name)
    }

    pub(crate) fn has(self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub(crate) fn need(self, name: &str) -> Result<&'a TensorInfo, ModelError> {
        let missing = || ModelError::damaged(format!("tensor '{name}' is missing; the file is not a complete model"));
        self.get(name).ok_or_else(missing)
    }

    /// Returns the number of rows of a matrix (its second dimension).
    pub(crate) fn n_rows(self, name: &str) -> Result<usize, ModelError> {
        Ok(self.need(name)?.shape.get(1).copied().unwrap_or(1))
    }

    /// Returns `name` as a vector of `n` values.
    pub(crate) fn vector(self, name: &str, n: usize) -> Result<TensorRows, ModelError> {
        self.table(name, n, 1)
    }

    /// Returns `name` as a vector of `n` values, if the file has it.
    pub(crate) fn vector_if_any(self, name: &str, n: usize) -> Result<Option<TensorRows>, ModelError> {
        self.has(name).then(|| self.vector(name, n)).transpose()
    }

    /// Returns `name` as a table `[n_rows, n_cols]`.
    pub(crate) fn table(self, name: &str, n_cols: usize, n_rows: usize) -> Result<TensorRows, ModelError> {
        let tensor = self.need(name)?;
        if Some(tensor.n_elements()) != n_cols.checked_mul(n_rows) {
            return Err(shape_error(tensor, &[n_cols, n_rows]));
        }
        Ok(TensorRows::whole(name, n_rows, n_cols))
    }

    /// Returns `name` as a table for look-ups of rows of `n_embd` values.
    pub(crate) fn embedding(self, name: &str, n_embd: usize) -> Result<TensorRows, ModelError> {
        self.matrix(name, n_embd, self.n_rows(name)?)
    }

    /// Returns `name` as a matrix `[n_out, n_in]`.
    pub(crate) fn matrix(self, name: &str, n_in: usize, n_out: usize) -> Result<TensorRows, ModelError> {
        let tensor = self.need(name)?;
        if tensor.shape.first() != Some(&n_in) || Some(tensor.n_elements()) != n_in.checked_mul(n_out) {
            return Err(shape_error(tensor, &[n_in, n_out]));
        }
        Ok(TensorRows::whole(name, n_out, n_in))
    }

    /// Returns the part of the bias `name` that belongs to some rows of its matrix, if the file has it.
    pub(crate) fn bias(self, name: &str, rows: Range<usize>) -> Result<Option<TensorRows>, ModelError> {
        match self.get(name) {
            None => Ok(None),
            Some(tensor) if tensor.n_elements() < rows.end => Err(shape_error(tensor, &[rows.end])),
            Some(_) => Ok(Some(TensorRows { tensor: name.to_owned(), rows, n_cols: 1 })),
        }
    }

    /// Returns a norm `{name}.weight` over `n` values with its bias, where there is one.
    pub(crate) fn norm(self, kind: NormKind, name: &str, n: usize, eps: f32) -> Result<NormSpec, ModelError> {
        let weight = self.vector(&format!("{name}.weight"), n)?;
        let bias = match kind {
            NormKind::Layer => self.vector_if_any(&format!("{name}.bias"), n)?,
            NormKind::Rms => None,
        };
        Ok(NormSpec { kind, weight, bias, eps })
    }

    pub(crate) fn norm_if_any(
        self,
        kind: NormKind,
        name: &str,
        n: usize,
        eps: f32,
    ) -> Result<Option<NormSpec>, ModelError> {
        self.has(&format!("{name}.weight")).then(|| self.norm(kind, name, n, eps)).transpose()
    }
}

pub(crate) fn shape_error(tensor: &TensorInfo, expected: &[usize]) -> ModelError {
    ModelError::damaged(format!("tensor '{}' has shape {:?}, the model needs {expected:?}", tensor.name, tensor.shape))
}
