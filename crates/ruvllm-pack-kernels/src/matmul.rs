//! Products of a quantised matrix with rows of floats.

use std::fmt;

use bytes::Bytes;
use ruvllm_cpu::ThreadPool;
use ruvllm_ggml::GgmlType;
use ruvllm_kernels::Isa;
use ruvllm_kernels::matmul::{self, Acts, MatmulKernels, Matrix};

/// Shape of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Rows: values of a product.
    pub n_out: usize,
    /// Columns: values of an input.
    pub n_in: usize,
}

/// A quantised matrix, ready to be multiplied.
pub struct Weights {
    kernels: &'static MatmulKernels,
    threads: ThreadPool,
    matrix: Matrix,
}

impl Weights {
    /// Takes the rows of a matrix, each whole blocks of `ty`.
    ///
    /// # Panics
    /// If the bytes are not the shape's, or no kernel multiplies the type ([`Matrix::supports`]).
    pub fn new(isa: Isa, ty: GgmlType, shape: MatrixShape, bytes: &[u8]) -> Weights {
        let (kernels, threads) = (matmul::pick(isa), ThreadPool::new(1));
        let matrix = Matrix::new(kernels, &threads, ty, shape.n_out, shape.n_in, Bytes::copy_from_slice(bytes));
        Weights { kernels, threads, matrix }
    }

    /// Returns the shape.
    pub fn shape(&self) -> MatrixShape {
        MatrixShape { n_out: self.matrix.n_rows(), n_in: self.matrix.n_cols() }
    }

    /// Multiplies `n_rows` rows. Shapes: `x`: `[n_rows, n_in]`; `out`: `[n_rows, n_out]`.
    ///
    /// # Panics
    /// If a length is another.
    pub fn multiply(&self, x: &[f32], n_rows: usize, out: &mut [f32]) {
        let n_in = self.matrix.n_cols();
        let mut acts = Acts::new(n_in, n_rows);
        acts.set(self.kernels, &self.threads, x, n_rows, n_in, self.matrix.act_format());
        matmul::matmul(&self.threads, &self.matrix, &acts, out);
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Weights").field("ty", &self.matrix.ty()).field("shape", &self.shape()).finish()
    }
}
