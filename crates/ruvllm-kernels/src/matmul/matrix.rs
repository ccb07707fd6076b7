//! A weight matrix, in the layout that its kernels read.

use super::acts::{ActFormat, Acts};
use super::format::{BLOCK, PANEL_ROWS};
use super::pack::{Repacker, Room, Rows};
use super::stream::Stream;
use super::{MatmulKernels, float, int};
use crate::block::GgmlType;
use crate::dequant::{self, DequantKernels};
use bytes::Bytes;
use ruvllm_cpu::ThreadPool;
use ruvllm_cpu::arena::{ALIGN, LargePages};
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;

/// A matrix of `n_rows` outputs by `n_cols` inputs, ready to multiply with. A clone shares its weights.
#[derive(Clone)]
pub struct Matrix {
    ty: GgmlType,
    n_rows: usize,
    n_cols: usize,
    weights: Weights,
}

#[derive(Clone)]
enum Weights {
    /// The integer path.
    Panels(int::Panels),
    /// The float path.
    Blocks { bytes: Bytes, dequant: &'static DequantKernels, kernel: float::Kernel },
}

impl Matrix {
    /// Returns whether matrices of this type can be multiplied with.
    pub fn supports(ty: GgmlType) -> bool {
        use GgmlType::{F64, I8, I16, I32, I64, Q8_1, Q8_K};
        !matches!(ty, F64 | I8 | I16 | I32 | I64 | Q8_1 | Q8_K)
    }

    /// Makes a matrix of `bytes`, rows of whole blocks as the file has them, in memory of its own.
    ///
    /// # Panics
    /// As [`Matrix::pack`].
    pub fn new(
        table: &'static MatmulKernels,
        threads: &ThreadPool,
        ty: GgmlType,
        n_rows: usize,
        n_cols: usize,
        bytes: Bytes,
    ) -> Matrix {
        let n_bytes = bytes.len();
        let size = ty.row_bytes(n_cols).and_then(|row| row.checked_mul(n_rows));
        assert_eq!(size, Some(n_bytes), "matrix: {n_rows} x {n_cols} of {ty} in {n_bytes} bytes");
        let packing =
            &mut Packing { table, threads, pages: &mut LargePages::default(), sink: None, part_bytes: n_bytes };
        let Ok(matrix) =
            Matrix::pack(packing, ty, n_rows, n_cols, &mut |range| Ok::<_, Infallible>(bytes.slice(range)));
        matrix
    }

    /// Makes a matrix of rows of whole blocks as the file has them. `read` returns a range of their bytes.
    ///
    /// Types of the integer path are read part by part, in order, and repacked by all threads; each part is let go before the next
    /// is read. Other types are read at once and kept.
    ///
    /// # Errors
    /// Those of `read`.
    ///
    /// # Panics
    /// If the type is not supported, a row is not whole blocks, or `read` returns another number of bytes.
    pub fn pack<E>(
        packing: &mut Packing<'_>,
        ty: GgmlType,
        n_rows: usize,
        n_cols: usize,
        read: &mut dyn FnMut(Range<usize>) -> Result<Bytes, E>,
    ) -> Result<Matrix, E> {
        assert!(Matrix::supports(ty), "matrix: {ty} cannot be multiplied with");
        assert!(n_cols > 0, "matrix: rows of no values");
        let row_bytes = ty.row_bytes(n_cols).unwrap_or_else(|| panic!("matrix: {n_cols} values of {ty} in a row"));
        let n_bytes = n_rows.checked_mul(row_bytes).expect("a matrix fits the memory");
        let mut read = |range: Range<usize>| {
            let (bytes, n) = (read(range.clone())?, range.len());
            assert_eq!(bytes.len(), n, "matrix: {n_rows} x {n_cols} of {ty}: {n} bytes were asked for");
            Ok(bytes)
        };
        let weights = match Repacker::of(ty) {
            Some(repacker) => {
                let mut room = Room::take(packing, repacker.bytes(n_rows, n_cols));
                let panel = PANEL_ROWS * row_bytes;
                let n_part = (packing.part_bytes / panel).max(1);
                for (i, start) in (0..n_bytes).step_by(n_part * panel).enumerate() {
                    let bytes = &read(start..n_bytes.min(start + n_part * panel))?;
                    let rows = Rows { bytes, row_bytes, n_blocks: n_cols / BLOCK };
                    (repacker.pack)(packing, &mut room, i * n_part, rows);
                }
                Weights::Panels(int::Panels::new(packing.table, ty, n_rows, n_cols, room.into_bytes()))
            }
            None => {
                let (table, bytes) = (packing.table, read(0..n_bytes)?);
                Weights::Blocks { bytes, dequant: dequant::pick(table.isa()), kernel: table.ops.float }
            }
        };
        Ok(Matrix { ty, n_rows, n_cols, weights })
    }

    /// Returns how many bytes [`Matrix::pack`] makes of a matrix; `None` for types that stay as they are, and where a row is
    /// not whole blocks. The panels are the same for all instruction sets.
    pub fn packed_bytes(ty: GgmlType, n_rows: usize, n_cols: usize) -> Option<usize> {
        ty.row_bytes(n_cols)?;
        Repacker::of(ty).map(|repacker| repacker.bytes(n_rows, n_cols))
    }

    /// Takes a matrix that [`Matrix::pack`] made before, by its [`Matrix::bytes`]. Any bytes are sound to multiply with.
    ///
    /// # Panics
    /// If the bytes are not [`Matrix::packed_bytes`] many, or do not begin at a multiple of [`ALIGN`].
    pub fn from_packed(
        table: &'static MatmulKernels,
        ty: GgmlType,
        n_rows: usize,
        n_cols: usize,
        panels: Bytes,
    ) -> Matrix {
        let size = Matrix::packed_bytes(ty, n_rows, n_cols);
        assert_eq!(size, Some(panels.len()), "matrix: {n_rows} x {n_cols} of {ty} in {} bytes of panels", panels.len());
        assert!(
            panels.is_empty() || panels.as_ptr().addr().is_multiple_of(ALIGN),
            "matrix: panels begin at a cache line"
        );
        Matrix::of_panels(ty, n_cols, int::Panels::new(table, ty, n_rows, n_cols, panels))
    }

    /// Returns the type the weights came in.
    pub fn ty(&self) -> GgmlType {
        self.ty
    }

    /// Returns the number of rows: the length of a result.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the length of a row: the length of an input.
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Returns what activation rows are to be given in.
    pub fn act_format(&self) -> ActFormat {
        match &self.weights {
            Weights::Panels(_) => ActFormat::Q16,
            Weights::Blocks { .. } => ActFormat::F32,
        }
    }

    /// Returns how many bytes one pass over the matrix reads.
    pub fn weight_bytes(&self) -> usize {
        self.bytes().len()
    }

    /// Returns what one pass over the matrix reads, from the first row's weights to the last's: panels where the type has
    /// them, else blocks as the file has them.
    pub fn bytes(&self) -> &Bytes {
        match &self.weights {
            Weights::Panels(panels) => &panels.bytes,
            Weights::Blocks { bytes, .. } => bytes,
        }
    }

    /// Writes the values of a row to `out`, `[n_cols]`: the bits that `dequant` makes of the row as the file has it.
    ///
    /// # Panics
    /// If there is no such row, or `out` has another length.
    pub fn row(&self, dequant: &DequantKernels, row: usize, out: &mut [f32]) {
        assert!(row < self.n_rows && out.len() == self.n_cols, "matrix: row {row} of {}", self.n_rows);
        let bytes = self.bytes();
        match Repacker::of(self.ty) {
            Some(repacker) => {
                let panel_bytes = (repacker.panel_bytes)(self.n_cols / BLOCK);
                let panel = &bytes[row / PANEL_ROWS * panel_bytes..][..panel_bytes];
                (repacker.unpack)(panel, row % PANEL_ROWS, out);
            }
            None => {
                let row_bytes = bytes.len() / self.n_rows;
                dequant.dequantize(self.ty, &bytes[row * row_bytes..][..row_bytes], out);
            }
        }
    }

    /// Returns what the integer path reads.
    pub(super) fn panels(&self) -> Option<&int::Panels> {
        match &self.weights {
            Weights::Panels(panels) => Some(panels),
            Weights::Blocks { .. } => None,
        }
    }

    /// Makes a matrix of panels of `ty` that are there.
    pub(super) fn of_panels(ty: GgmlType, n_cols: usize, panels: int::Panels) -> Matrix {
        Matrix { ty, n_rows: panels.n_rows, n_cols, weights: Weights::Panels(panels) }
    }

    /// Panics unless `x` and `out` fit.
    pub(super) fn check(&self, x: &Acts, n: usize, out: &[f32]) {
        let format = self.act_format();
        assert_eq!(x.k(), self.n_cols, "matmul: activation rows and matrix rows differ in length");
        assert!(x.has(format), "matmul: the activations do not hold {format:?}, which {} multiplies with", self.ty);
        assert_eq!(out.len(), n * self.n_rows, "matmul: results are {n} x {}", self.n_rows);
    }

    /// Computes rows `w_rows` (from a multiple of 16 on) of the products with activation rows `rows`; `stream` says where
    /// the worker reads on after its share.
    ///
    /// # Safety
    /// [`Matrix::check`] passed with `out`'s slice, and no other thread touches the results of `w_rows`.
    pub(super) unsafe fn multiply(
        &self,
        w_rows: Range<usize>,
        x: &Acts,
        rows: &[u32],
        out: *mut f32,
        stream: Stream<'_>,
    ) {
        match &self.weights {
            // SAFETY: the caller's promise.
            Weights::Panels(panels) => unsafe { int::multiply(panels, w_rows, x, rows, out, stream) },
            Weights::Blocks { bytes, dequant, kernel } => {
                let (ty, n_rows, n_cols) = (self.ty, self.n_rows, self.n_cols);
                let blocks = float::Blocks { ty, n_rows, n_cols, bytes, dequant, kernel: *kernel };
                // SAFETY: the caller's promise.
                unsafe { float::multiply(&blocks, w_rows, x.floats(), rows, out) };
            }
        }
    }
}

impl fmt::Debug for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Matrix({} x {} {})", self.n_rows, self.n_cols, self.ty)
    }
}

/// Inputs of packing a matrix.
pub struct Packing<'a> {
    /// The kernels they will be multiplied by.
    pub table: &'static MatmulKernels,
    /// The threads that repack.
    pub threads: &'a ThreadPool,
    /// Where the repacked weights go, one matrix after another.
    pub pages: &'a mut LargePages,
    /// Where they go instead, as far as there is room.
    pub sink: Option<&'a dyn PanelSink>,
    /// Bytes of rows that are read and repacked at once, about: threads wait for each other between them.
    pub part_bytes: usize,
}

impl fmt::Debug for Packing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Packing { table, threads, pages, sink, part_bytes } = self;
        let mut f = f.debug_struct("Packing");
        f.field("table", table).field("threads", threads).field("pages", pages);
        f.field("sink", &sink.is_some()).field("part_bytes", part_bytes).finish()
    }
}

/// A place for repacked weights that is no memory of the process: a file that others will map as well.
pub trait PanelSink: Sync {
    /// Gives room for the panels of one more matrix, and returns where it begins; `None` if there is none.
    fn room(&self, n_bytes: usize) -> Option<usize>;

    /// Puts some panels at a place in a room. Workers call it beside each other, for places that do not overlap. Whether all
    /// went well is between the sink and who made it.
    fn put(&self, at: usize, panels: &[u8]);

    /// Returns what is in a room once all was put there, at a multiple of [`ALIGN`] in memory.
    fn panels(&self, room: Range<usize>) -> Bytes;
}
