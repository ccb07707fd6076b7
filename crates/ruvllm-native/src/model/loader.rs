//! Takes tensors out of a GGUF file by name, with shapes checked and progress told.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use bytes::Bytes;
use ruvllm_gguf::{GgufFile, TensorInfo};
use ruvllm_kernels::arena::LargePages;
use ruvllm_kernels::matmul::{Matrix, Packing, PanelSink};
use ruvllm_kernels::{GgmlType, dequant};
use ruvllm_lora::Target;

use super::blocks::{Linear, Norm, NormKind};
use super::hparams::model_error;
use crate::kernels::Compute;
use ruvllm_backend::{BackendError, BackendErrorKind};

/// How far loading has come, in bytes of tensor data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes taken over so far.
    pub done_bytes: u64,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// The tensors of one file on their way into a model.
pub(crate) struct Loader<'a> {
    file: &'a GgufFile,
    compute: &'a Compute,
    /// Where repacked matrices go, in the order they are asked for: that of the forward pass.
    pages: RefCell<LargePages>,
    /// Matrices that an earlier process repacked, one after another in that order; what is left of them.
    packed: RefCell<Option<Bytes>>,
    /// Where matrices are repacked to, if not to `pages`.
    sink: Option<&'a dyn PanelSink>,
    /// Those that were repacked here, if there were none.
    made: RefCell<Vec<Bytes>>,
    /// Every linear layer so far; its place is its number.
    targets: RefCell<Vec<Target>>,
    progress: RefCell<&'a mut dyn FnMut(LoadProgress)>,
    done_bytes: Cell<u64>,
    total_bytes: u64,
}

impl<'a> Loader<'a> {
    /// Returns how many threads will multiply.
    pub(crate) fn n_threads(&self) -> usize {
        self.compute.team.n_threads()
    }

    pub(crate) fn new(
        file: &'a GgufFile,
        compute: &'a Compute,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Loader<'a> {
        let total_bytes = file.tensors().map(|tensor| tensor.n_bytes() as u64).sum();
        let pages = RefCell::new(LargePages::for_about(total_bytes as usize));
        let (targets, progress, done_bytes) = (RefCell::default(), RefCell::new(progress), Cell::new(0));
        let (packed, made) = (RefCell::default(), RefCell::default());
        Loader { file, compute, pages, packed, sink: None, made, targets, progress, done_bytes, total_bytes }
    }

    /// Checks that every layer that the file holds is among the `n_layers` that it claims.
    ///
    /// # Errors
    /// Names a tensor of another one.
    pub(crate) fn check_layers(&self, n_layers: usize) -> Result<(), BackendError> {
        let layer = |tensor: &TensorInfo| tensor.name.strip_prefix("blk.")?.split('.').next()?.parse::<usize>().ok();
        match self.file.tensors().find(|tensor| layer(tensor).is_some_and(|layer| layer >= n_layers)) {
            None => Ok(()),
            Some(tensor) => Err(model_error(format!(
                "tensor '{}' is of none of the {n_layers} layers that block_count claims; the file is damaged",
                tensor.name
            ))),
        }
    }

    /// Takes matrices from what [`Loader::take_made`] gave for the same file.
    pub(crate) fn with_packed(self, packed: Option<Bytes>) -> Loader<'a> {
        Loader { packed: RefCell::new(packed), ..self }
    }

    /// Returns how many bytes all matrices of a file may have when they are repacked: a head that is tied to the embeddings is
    /// one of them, and parts of a tensor may each have a panel that is not full.
    pub(crate) fn packed_bytes_max(file: &GgufFile) -> usize {
        let of = |tensor: &TensorInfo| {
            let n_cols = tensor.shape.first().copied().filter(|&n_cols| n_cols > 0)?;
            Matrix::packed_bytes(tensor.ty, tensor.n_elements() / n_cols, n_cols)
        };
        let n_bytes: usize = file.tensors().filter_map(of).fold(0, usize::saturating_add);
        n_bytes.saturating_add(n_bytes / 8)
    }

    /// Repacks matrices to a sink, as far as that has room.
    pub(crate) fn with_sink(self, sink: Option<&'a dyn PanelSink>) -> Loader<'a> {
        Loader { sink, ..self }
    }

    /// Returns the panels of the matrices that were repacked, in order.
    pub(crate) fn take_made(&self) -> Vec<Bytes> {
        self.made.take()
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    fn need(&self, name: &str) -> Result<&'a TensorInfo, BackendError> {
        self.file
            .tensor(name)
            .ok_or_else(|| model_error(format!("tensor '{name}' is missing; the file is not a complete model")))
    }

    /// Returns the linear layers that were taken, by number.
    pub(crate) fn take_targets(&self) -> Vec<Target> {
        self.targets.take()
    }

    /// Numbers a linear layer: `rows` of the tensor `name`, which other files may have as the tensor `alias`.
    fn number(&self, name: &str, rows: Range<usize>, alias: Option<&str>, n_in: usize) -> usize {
        // A head that is tied to the embeddings is a head all the same.
        let tensor = if name == "token_embd" { "output" } else { name }.to_owned();
        let mut targets = self.targets.borrow_mut();
        targets.push(Target { tensor, rows, alias: alias.map(str::to_owned), n_in });
        targets.len() - 1
    }

    fn take(&self, tensor: &TensorInfo) -> Bytes {
        let done_bytes = self.done_bytes.get() + tensor.n_bytes() as u64;
        self.done_bytes.set(done_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes: self.total_bytes });
        self.file.data(tensor)
    }

    /// Returns the number of rows of a matrix (its second dimension).
    pub(crate) fn n_rows(&self, name: &str) -> Result<usize, BackendError> {
        Ok(self.need(name)?.shape.get(1).copied().unwrap_or(1))
    }

    /// Takes `name` as a vector of `n` values in f32.
    pub(crate) fn vector(&self, name: &str, n: usize) -> Result<Vec<f32>, BackendError> {
        self.table(name, n, 1)
    }

    /// Takes `name` as a vector of `n` values, if the file has it.
    pub(crate) fn vector_if_any(&self, name: &str, n: usize) -> Result<Option<Vec<f32>>, BackendError> {
        self.has(name).then(|| self.vector(name, n)).transpose()
    }

    /// Takes `name` as a row-major table `[n_rows, n_cols]` in f32.
    pub(crate) fn table(&self, name: &str, n_cols: usize, n_rows: usize) -> Result<Vec<f32>, BackendError> {
        let tensor = self.need(name)?;
        if tensor.n_elements() != n_cols * n_rows {
            return Err(shape_error(tensor, &[n_cols, n_rows]));
        }
        check_float(tensor)?;
        let mut values = vec![0.0; n_cols * n_rows];
        dequant::dequantize(tensor.ty, &self.take(tensor), &mut values);
        Ok(values)
    }

    /// Takes a norm `{name}.weight` with its bias, where there is one.
    pub(crate) fn norm(&self, kind: NormKind, name: &str, n: usize, eps: f32) -> Result<Norm, BackendError> {
        let weight = self.vector(&format!("{name}.weight"), n)?;
        let bias = match kind {
            NormKind::Layer => self.vector_if_any(&format!("{name}.bias"), n)?,
            NormKind::Rms => None,
        };
        Ok(Norm { kind, weight, bias, eps })
    }

    pub(crate) fn norm_if_any(
        &self,
        kind: NormKind,
        name: &str,
        n: usize,
        eps: f32,
    ) -> Result<Option<Norm>, BackendError> {
        self.has(&format!("{name}.weight")).then(|| self.norm(kind, name, n, eps)).transpose()
    }

    /// Takes the matrix `{name}.weight` `[n_out, n_in]` with its bias, where there is one.
    pub(crate) fn linear(&self, name: &str, n_in: usize, n_out: usize) -> Result<Linear, BackendError> {
        let tensor = self.need(&format!("{name}.weight"))?;
        if tensor.shape.first() != Some(&n_in) || tensor.n_elements() != n_in * n_out {
            return Err(shape_error(tensor, &[n_in, n_out]));
        }
        self.rows((name, None), tensor, 0..n_out)
    }

    /// The same for some rows of a fused matrix (QKV, gate·up), which a file may have by themselves as `alias`.
    pub(crate) fn linear_rows(
        &self,
        (name, alias): (&str, Option<&str>),
        n_in: usize,
        n_out_all: usize,
        rows: Range<usize>,
    ) -> Result<Linear, BackendError> {
        let tensor = self.need(&format!("{name}.weight"))?;
        if tensor.shape.first() != Some(&n_in) || tensor.n_elements() != n_in * n_out_all {
            return Err(shape_error(tensor, &[n_in, n_out_all]));
        }
        self.rows((name, alias), tensor, rows)
    }

    fn rows(
        &self,
        (name, alias): (&str, Option<&str>),
        tensor: &TensorInfo,
        rows: Range<usize>,
    ) -> Result<Linear, BackendError> {
        let bias_name = format!("{name}.bias");
        let bias = match self.file.tensor(&bias_name) {
            Some(bias) => {
                let all = self.vector(&bias_name, bias.n_elements())?;
                let part = all.get(rows.clone()).ok_or_else(|| shape_error(bias, &[rows.end]))?;
                Some(part.to_vec())
            }
            None => None,
        };
        let matrix = self.matrix(tensor, rows.clone())?;
        Ok(Linear::new(self.number(name, rows, alias, matrix.n_cols()), matrix, bias))
    }

    /// Takes the experts of a 3-D tensor `{name}.weight` `[n_experts, n_out, n_in]`, or of one tensor an expert
    /// (`{prefix}.{expert}.weight`, as older Mixtral files have them).
    pub(crate) fn experts(
        &self,
        layer: usize,
        kind: &str,
        n_experts: usize,
        n_in: usize,
        n_out: usize,
    ) -> Result<Vec<Linear>, BackendError> {
        let fused = format!("blk.{layer}.{kind}_exps");
        if !self.has(&format!("{fused}.weight")) {
            let one = |e| self.expert(&format!("blk.{layer}.{kind}.{e}"), &format!("{fused}.{e}"), n_in, n_out);
            return (0..n_experts).map(one).collect();
        }
        let tensor = self.need(&format!("{fused}.weight"))?;
        if tensor.shape != [n_in, n_out, n_experts] {
            return Err(shape_error(tensor, &[n_in, n_out, n_experts]));
        }
        let biases = match self.has(&format!("{fused}.bias")) {
            true => Some(self.table(&format!("{fused}.bias"), n_out, n_experts)?),
            false => None,
        };
        (0..n_experts)
            .map(|e| {
                let matrix = self.matrix(tensor, e * n_out..(e + 1) * n_out)?;
                let bias = biases.as_ref().map(|all| all[e * n_out..(e + 1) * n_out].to_vec());
                let id = self.number(&format!("{fused}.{e}"), 0..n_out, None, n_in);
                Ok(Linear::new(id, matrix, bias))
            })
            .collect()
    }

    /// Takes an expert that is a tensor of its own.
    fn expert(&self, name: &str, alias: &str, n_in: usize, n_out: usize) -> Result<Linear, BackendError> {
        self.linear_rows((name, Some(alias)), n_in, n_out, 0..n_out)
    }

    fn matrix(&self, tensor: &TensorInfo, rows: Range<usize>) -> Result<Matrix, BackendError> {
        if !Matrix::supports(tensor.ty) {
            return Err(type_error(tensor));
        }
        let n_cols = tensor.shape[0];
        let row_bytes = tensor.ty.row_bytes(n_cols).ok_or_else(|| shape_error(tensor, &[n_cols]))?;
        let start = rows.start * row_bytes;
        let bytes = self.take_rows(tensor, start..rows.end * row_bytes);
        let (table, team, pages) = (self.compute.kernels.matmul, &self.compute.team, &mut *self.pages.borrow_mut());
        let packed_bytes = Matrix::packed_bytes(tensor.ty, rows.len(), n_cols);
        if let Some(panels) = packed_bytes.and_then(|n_bytes| self.take_packed(n_bytes)) {
            return Ok(Matrix::from_packed(table, tensor.ty, rows.len(), n_cols, panels));
        }
        // What is repacked need not stay beside its copy.
        let done = &mut |part: Range<usize>| self.file.release(tensor, start + part.start..start + part.end);
        let packing = &mut Packing { table, team, pages, sink: self.sink, done };
        let matrix = Matrix::pack(packing, tensor.ty, rows.len(), n_cols, bytes);
        if packed_bytes.is_some() && self.packed.borrow().is_none() {
            self.made.borrow_mut().push(matrix.bytes().clone());
        }
        Ok(matrix)
    }

    fn take_packed(&self, n_bytes: usize) -> Option<Bytes> {
        let mut packed = self.packed.borrow_mut();
        let left = packed.as_mut().filter(|left| left.len() >= n_bytes)?;
        Some(left.split_to(n_bytes))
    }

    fn take_rows(&self, tensor: &TensorInfo, range: Range<usize>) -> Bytes {
        let done_bytes = (self.done_bytes.get() + range.len() as u64).min(self.total_bytes);
        self.done_bytes.set(done_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes: self.total_bytes });
        self.file.data(tensor).slice(range)
    }

    /// Takes `name` for row look-ups (token, position and type embeddings).
    pub(crate) fn embedding(&self, name: &str, n_embd: usize) -> Result<Embedding, BackendError> {
        let tensor = self.need(name)?;
        check_float(tensor)?;
        let n_rows = tensor.shape.get(1).copied().unwrap_or(1);
        if tensor.shape.first() != Some(&n_embd) || tensor.n_elements() != n_embd * n_rows {
            return Err(shape_error(tensor, &[n_embd, n_rows]));
        }
        let row_bytes = tensor.ty.row_bytes(n_embd).ok_or_else(|| shape_error(tensor, &[n_embd]))?;
        Ok(Embedding { ty: tensor.ty, n_rows, n_embd, row_bytes, bytes: self.take(tensor) })
    }
}

/// A table of rows that stays in the file and is dequantised a row at a time.
pub(crate) struct Embedding {
    ty: GgmlType,
    pub n_rows: usize,
    n_embd: usize,
    row_bytes: usize,
    bytes: Bytes,
}

impl Embedding {
    /// Writes row `idx` to `out`: `[n_embd]`. Panics if `idx` is out of range.
    pub(crate) fn row(&self, kernels: &crate::kernels::Kernels, idx: usize, out: &mut [f32]) {
        assert!(idx < self.n_rows && out.len() == self.n_embd, "embedding row {idx} of {}", self.n_rows);
        kernels.dequant.dequantize(self.ty, &self.bytes[idx * self.row_bytes..(idx + 1) * self.row_bytes], out);
    }
}

fn check_float(tensor: &TensorInfo) -> Result<(), BackendError> {
    if Matrix::supports(tensor.ty) { Ok(()) } else { Err(type_error(tensor)) }
}

fn type_error(tensor: &TensorInfo) -> BackendError {
    let line = format!("tensor '{}' has type {}, which is not a weight format", tensor.name, tensor.ty);
    BackendError::new(BackendErrorKind::Unsupported, line)
}

fn shape_error(tensor: &TensorInfo, expected: &[usize]) -> BackendError {
    model_error(format!("tensor '{}' has shape {:?}, the model needs {expected:?}", tensor.name, tensor.shape))
}
