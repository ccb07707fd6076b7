//! Rows of numbers that NumPy reads where they lie.

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Numbers in rows: `numpy.asarray` makes an array of them that shares their memory and keeps them alive.
#[pyclass(frozen, module = "ruvllm._native")]
pub struct Floats {
    /// Kept for its memory, which only arrays read and write from now on.
    _values: Vec<f32>,
    address: usize,
    shape: (usize, usize),
}

impl Floats {
    /// Takes numbers in so many rows.
    pub(crate) fn new(mut values: Vec<f32>, n_rows: usize) -> Floats {
        let shape = (n_rows, values.len().checked_div(n_rows).unwrap_or(0));
        Floats { address: values.as_mut_ptr().addr(), _values: values, shape }
    }
}

#[pymethods]
impl Floats {
    /// Numbers of rows and of columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    /// Memory, as version 3 of NumPy's array interface describes it.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", self.shape)?;
        interface.set_item("typestr", if cfg!(target_endian = "little") { "<f4" } else { ">f4" })?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }
}
