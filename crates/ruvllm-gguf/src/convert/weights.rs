//! A safetensors file: its directory, and bytes that stay where they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ruvllm_ggml::GgmlType;
use safetensors::{Dtype, SafeTensors};

use crate::error::{GgufError, GgufErrorKind};

/// The tensors of a file, by name.
pub(super) struct Weights {
    path: PathBuf,
    tensors: BTreeMap<String, Tensor>,
}

/// A tensor: row-major, the contiguous dimension last.
struct Tensor {
    ty: GgmlType,
    shape: Vec<usize>,
    data: Bytes,
}

impl Weights {
    /// Reads a file. Tensors of types that no weights have (integers) are left out.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(super) fn open(path: &Path) -> Result<Weights, GgufError> {
        let bytes = Bytes::from(fs::read(path).map_err(|error| GgufError::io("cannot read", error).at(path))?);
        let damaged =
            |error| GgufError::invalid(format!("damaged safetensors: {error}; download the file again")).at(path);
        let mut tensors = BTreeMap::new();
        for (name, view) in SafeTensors::deserialize(&bytes).map_err(damaged)?.iter() {
            let ty = match view.dtype() {
                Dtype::F32 => GgmlType::F32,
                Dtype::F16 => GgmlType::F16,
                Dtype::BF16 => GgmlType::BF16,
                _ => continue,
            };
            let data = bytes.slice_ref(view.data());
            tensors.insert(name.to_owned(), Tensor { ty, shape: view.shape().to_vec(), data });
        }
        Ok(Weights { path: path.to_owned(), tensors })
    }

    /// Returns whether there is a tensor of this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Takes out a tensor: its type, its shape as GGUF writes it (the contiguous dimension first) and its bytes.
    ///
    /// # Errors
    /// There is none of this name, or it has another shape than `[rows, columns]` or `[columns]`.
    pub(super) fn take(&mut self, name: &str, expected: &[usize]) -> Result<(GgmlType, Vec<usize>, Bytes), GgufError> {
        let Some(Tensor { ty, shape, data }) = self.tensors.remove(name) else {
            let line = format!("tensor '{name}' is missing; download the file again");
            return Err(GgufError::new(GgufErrorKind::Invalid, line).at(&self.path));
        };
        if shape != expected {
            let line = format!("tensor '{name}' has shape {shape:?}, the configuration says {expected:?}");
            return Err(GgufError::invalid(line).at(&self.path));
        }
        Ok((ty, shape.into_iter().rev().collect(), data))
    }
}
