//! Takes tensors out of a GGUF file by name, with shapes checked and progress told.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use bytes::Bytes;
use ruvllm_cpu::arena::LargePages;
use ruvllm_gguf::{GgufFile, TensorInfo};
use ruvllm_kernels::GgmlType;
use ruvllm_kernels::matmul::{Matrix, Packing, PanelSink};
use ruvllm_lora::Target;
use ruvllm_model::{LinearSpec, NormSpec, TensorRows};

use super::blocks::{Linear, Norm};
use crate::kernels::Compute;
use ruvllm_backend::loading::{LoadProgress, weight_tensor, weight_values};
use ruvllm_backend::{BackendError, BackendErrorKind};

/// Bytes behind a tensor that the disk reads while the tensor is repacked.
const READ_AHEAD: usize = 64 << 20;

/// Bytes of a mapped tensor that are repacked before their pages are let go.
const PART_BYTES: usize = 16 << 20;

/// The same of a tensor that is read piece by piece: a copy of them lies in memory meanwhile.
const COPIED_BYTES: usize = 1 << 20;

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
    /// The part of the file that the disk was asked to read last, and where in the part's tensors that ends.
    asked: Cell<(usize, u64)>,
    progress: RefCell<&'a mut dyn FnMut(LoadProgress)>,
    done_bytes: Cell<u64>,
    total_bytes: u64,
}

impl<'a> Loader<'a> {
    /// Returns how many threads will multiply.
    pub(crate) fn n_threads(&self) -> usize {
        self.compute.threads.n_threads()
    }

    pub(crate) fn new(
        file: &'a GgufFile,
        compute: &'a Compute,
        progress: &'a mut dyn FnMut(LoadProgress),
    ) -> Loader<'a> {
        let total_bytes = file.tensors().map(|tensor| tensor.n_bytes() as u64).sum();
        let pages = RefCell::new(LargePages::for_about(total_bytes as usize));
        let (targets, progress, done_bytes) = (RefCell::default(), RefCell::new(progress), Cell::new(0));
        let (packed, made, asked) = (RefCell::default(), RefCell::default(), Cell::default());
        Loader { file, compute, pages, packed, sink: None, made, targets, asked, progress, done_bytes, total_bytes }
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

    /// Returns how many bytes all weights of a file may take: those of [`Loader::packed_bytes_max`], and what is kept as it is
    /// and is not in memory already.
    pub(crate) fn memory_bytes_max(file: &GgufFile) -> usize {
        let is_kept =
            |tensor: &&TensorInfo| !file.has_data() && Matrix::packed_bytes(tensor.ty, 1, tensor.shape[0]).is_none();
        let kept = file.tensors().filter(is_kept).map(TensorInfo::n_bytes).fold(0, usize::saturating_add);
        Loader::packed_bytes_max(file).saturating_add(kept)
    }

    /// Repacks matrices to a sink, as far as that has room.
    pub(crate) fn with_sink(self, sink: Option<&'a dyn PanelSink>) -> Loader<'a> {
        Loader { sink, ..self }
    }

    /// Returns the panels of the matrices that were repacked, in order.
    pub(crate) fn take_made(&self) -> Vec<Bytes> {
        self.made.take()
    }

    /// Returns the linear layers that were taken, by number.
    pub(crate) fn take_targets(&self) -> Vec<Target> {
        self.targets.take()
    }

    /// Tells that so many bytes were taken over.
    fn tell(&self, n_bytes: usize) {
        let done_bytes = (self.done_bytes.get() + n_bytes as u64).min(self.total_bytes);
        self.done_bytes.set(done_bytes);
        (self.progress.borrow_mut())(LoadProgress { done_bytes, total_bytes: self.total_bytes });
    }

    /// Takes values in f32: `[n_rows, n_cols]`.
    pub(crate) fn values(&self, rows: &TensorRows) -> Result<Vec<f32>, BackendError> {
        let tensor = weight_tensor(self.file, rows)?;
        self.tell(tensor.ty.row_bytes(rows.n_values()).unwrap_or(0));
        weight_values(self.file, rows)
    }

    /// Takes values that a file may have.
    pub(crate) fn values_if_any(&self, rows: Option<&TensorRows>) -> Result<Option<Vec<f32>>, BackendError> {
        rows.map(|rows| self.values(rows)).transpose()
    }

    /// Takes a norm of one set of weights.
    pub(crate) fn norm(&self, spec: &NormSpec) -> Result<Norm, BackendError> {
        let bias = self.values_if_any(spec.bias.as_ref())?;
        Ok(Norm { kind: spec.kind, weight: self.values(&spec.weight)?, bias, eps: spec.eps })
    }

    /// Takes a linear layer. They are taken in the order of their numbers.
    pub(crate) fn linear(&self, spec: &LinearSpec) -> Result<Linear, BackendError> {
        let bias = self.values_if_any(spec.bias.as_ref())?;
        let matrix = self.matrix(weight_tensor(self.file, &spec.weight)?, spec.weight.rows.clone())?;
        let mut targets = self.targets.borrow_mut();
        assert_eq!(targets.len(), spec.id, "linear layers are taken in the order of their numbers");
        let (tensor, rows, alias) = (spec.name.clone(), spec.name_rows.clone(), spec.alias.clone());
        targets.push(Target { tensor, rows, alias, n_in: spec.n_in() });
        Ok(Linear::new(spec.id, matrix, bias))
    }

    fn matrix(&self, tensor: &TensorInfo, rows: Range<usize>) -> Result<Matrix, BackendError> {
        let n_cols = tensor.shape[0];
        let row_bytes = tensor.ty.row_bytes(n_cols).ok_or_else(|| shape_error(tensor, &[n_cols]))?;
        let start = rows.start * row_bytes;
        self.tell(rows.len() * row_bytes);
        let (table, threads, pages) =
            (self.compute.kernels.matmul, &self.compute.threads, &mut *self.pages.borrow_mut());
        let packed_bytes = Matrix::packed_bytes(tensor.ty, rows.len(), n_cols);
        if let Some(panels) = packed_bytes.and_then(|n_bytes| self.take_packed(n_bytes)) {
            return Ok(Matrix::from_packed(table, tensor.ty, rows.len(), n_cols, panels));
        }
        self.read_ahead(tensor, start, row_bytes * rows.len());
        // What is repacked need not stay beside its copy.
        let mut last = start..start;
        let read = &mut |part: Range<usize>| {
            self.file.release(tensor, last.clone());
            last = start + part.start..start + part.end;
            self.file.read(tensor, last.clone())
        };
        let part_bytes = if self.file.has_data() { PART_BYTES } else { COPIED_BYTES };
        let packing = &mut Packing { table, threads, pages, sink: self.sink, part_bytes };
        let matrix = Matrix::pack(packing, tensor.ty, rows.len(), n_cols, read)?;
        if packed_bytes.is_some() {
            self.file.release(tensor, last);
        }
        if packed_bytes.is_some() && self.packed.borrow().is_none() {
            self.made.borrow_mut().push(matrix.bytes().clone());
        }
        Ok(matrix)
    }

    /// Has the disk read a tensor's bytes from `start` on and what lies behind them, as far as it was not asked to.
    fn read_ahead(&self, tensor: &TensorInfo, start: usize, n_bytes: usize) {
        let (part, end) = self.asked.get();
        let first = tensor.offset() + start as u64;
        let wanted = first + n_bytes as u64 + READ_AHEAD as u64;
        let is_behind = part == tensor.part() && (first..wanted).contains(&end);
        let from = if is_behind { end } else { first };
        // Asked in pieces, so that experts do not ask each for its own.
        if from == first || wanted - from >= READ_AHEAD as u64 / 4 {
            self.file.read_ahead(tensor, (from - tensor.offset()) as usize, (wanted - from) as usize);
            self.asked.set((tensor.part(), wanted));
        }
    }

    fn take_packed(&self, n_bytes: usize) -> Option<Bytes> {
        let mut packed = self.packed.borrow_mut();
        let left = packed.as_mut().filter(|left| left.len() >= n_bytes)?;
        Some(left.split_to(n_bytes))
    }

    /// Takes a table for row look-ups (token and position embeddings). `tied` is a matrix of the same tensor, if there is one.
    pub(crate) fn embedding(&self, rows: &TensorRows, tied: Option<&Matrix>) -> Result<Embedding, BackendError> {
        let (tensor, n_embd) = (weight_tensor(self.file, rows)?, rows.n_cols);
        let row_bytes = tensor.ty.row_bytes(n_embd).ok_or_else(|| shape_error(tensor, &[n_embd]))?;
        self.tell(tensor.n_bytes());
        let table = match tied.filter(|_| !self.file.has_data()) {
            Some(matrix) => Table::Tied(matrix.clone()),
            None => Table::Blocks { ty: tensor.ty, row_bytes, bytes: self.file.read(tensor, 0..tensor.n_bytes())? },
        };
        Ok(Embedding { n_rows: rows.n_rows(), n_embd, table })
    }
}

/// A table of rows that is dequantised a row at a time.
pub(crate) struct Embedding {
    pub n_rows: usize,
    n_embd: usize,
    table: Table,
}

/// Where the rows of a table lie.
enum Table {
    /// In the file, of whose pages only those are in memory that were read; or in a copy, if it cannot be mapped.
    Blocks { ty: GgmlType, row_bytes: usize, bytes: Bytes },
    /// In the head, which is the same tensor: a copy beside it would take memory.
    Tied(Matrix),
}

impl Embedding {
    /// Makes a table of the same shape with other weights.
    ///
    /// # Panics
    /// If they have another size.
    pub(crate) fn with_bytes(&self, ty: GgmlType, bytes: Bytes) -> Embedding {
        let row_bytes = ty.row_bytes(self.n_embd).expect("weights were checked to be rows of whole blocks");
        assert_eq!(bytes.len(), self.n_rows * row_bytes, "weights of another table");
        Embedding { table: Table::Blocks { ty, row_bytes, bytes }, ..*self }
    }

    /// Writes row `idx` to `out`: `[n_embd]`. Panics if `idx` is out of range.
    pub(crate) fn row(&self, kernels: &crate::kernels::Kernels, idx: usize, out: &mut [f32]) {
        assert!(idx < self.n_rows && out.len() == self.n_embd, "embedding row {idx} of {}", self.n_rows);
        match &self.table {
            Table::Blocks { ty, row_bytes, bytes } => {
                kernels.dequant.dequantize(*ty, &bytes[idx * row_bytes..(idx + 1) * row_bytes], out);
            }
            Table::Tied(matrix) => matrix.row(kernels.dequant, idx, out),
        }
    }
}

fn shape_error(tensor: &TensorInfo, expected: &[usize]) -> BackendError {
    let line = format!("tensor '{}' has shape {:?}, the model needs {expected:?}", tensor.name, tensor.shape);
    BackendError::new(BackendErrorKind::Model, line)
}
