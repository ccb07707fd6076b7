//! Importance matrices: how much each column of a matrix matters, as the mean square of what it was multiplied with.
//!
//! Files are those of llama.cpp's `llama-imatrix`: GGUF with a tensor of sums and one of counts for each matrix (`gguf`, `sums`), or
//! the older binary form (`legacy`). Both are untrusted. Sums come from a model that is observed while it reads (`collect`).

mod collect;
mod gguf;
mod legacy;
mod sums;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use ruvllm_gguf::GgufFile;

pub use collect::ImatrixCollector;
pub use sums::ImportanceSums;
use sums::TensorSums;

use crate::error::{ConvertError, ConvertErrorKind};

/// Importance of the columns of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorImportance {
    /// A value for each column, of each expert behind the other.
    pub values: Vec<f32>,
    /// Experts that no token of the text went to: all of their columns count the same.
    pub unused_experts: Vec<usize>,
}

/// An importance matrix of a model, from a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceMatrix {
    /// Path as it was given.
    pub file: String,
    /// Name of the (first) text that it was computed on.
    pub dataset: Option<String>,
    /// Chunks of text that it was computed on; 0 if the file does not tell.
    pub n_chunks: u32,
    entries: BTreeMap<String, TensorImportance>,
    sensitivities: BTreeMap<String, f32>,
}

impl ImportanceMatrix {
    /// Reads a file, in GGUF or in the older form.
    ///
    /// # Errors
    /// It cannot be read, or is neither; a value is negative or not finite.
    pub fn open(path: &Path) -> Result<ImportanceMatrix, ConvertError> {
        let failed = |error: std::io::Error| {
            ConvertError::new(ConvertErrorKind::Io, format!("cannot read the importance matrix: {error}")).at(path)
        };
        let mut magic = [0; 4];
        let mut file = std::fs::File::open(path).map_err(failed)?;
        let is_gguf = std::io::Read::read_exact(&mut file, &mut magic).is_ok() && magic == *b"GGUF";
        let mut matrix = if is_gguf {
            ImportanceMatrix::from(gguf::read(path)?)
        } else {
            legacy::parse(&legacy::bytes(file).map_err(failed)?).map_err(|error| error.at(path))?
        };
        matrix.file = path.display().to_string();
        matrix.check().map_err(|error| error.at(path))?;
        Ok(matrix)
    }

    /// Reads a file in memory, as [`ImportanceMatrix::open`] does one on a disk.
    ///
    /// # Errors
    /// As [`ImportanceMatrix::open`].
    pub fn from_bytes(bytes: Bytes) -> Result<ImportanceMatrix, ConvertError> {
        let matrix = match bytes.starts_with(b"GGUF") {
            true => ImportanceMatrix::from(gguf::of_file(&GgufFile::from_bytes(bytes)?)?),
            false => legacy::parse(&bytes)?,
        };
        matrix.check()?;
        Ok(matrix)
    }

    /// Returns the importance of a tensor's columns, by its full name.
    pub fn tensor(&self, name: &str) -> Option<&TensorImportance> {
        self.entries.get(name)
    }

    /// Returns the sensitivity of a tensor, if it was measured: how far the predictions of the model go from what they were for
    /// each unit of the relative error of the tensor, in nats.
    pub fn sensitivity(&self, name: &str) -> Option<f32> {
        self.sensitivities.get(name).copied()
    }

    /// Returns how many tensors it knows.
    pub fn n_tensors(&self) -> usize {
        self.entries.len()
    }

    /// Iterates over the tensors with experts that no token went to, by name.
    pub fn unused_experts(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let all = self.entries.iter().filter(|(_, entry)| !entry.unused_experts.is_empty());
        all.map(|(name, entry)| (name.as_str(), &entry.unused_experts[..]))
    }

    /// Checks that there is something, and that all of it are weights.
    fn check(&self) -> Result<(), ConvertError> {
        if self.entries.is_empty() {
            return Err(ConvertError::invalid("no importance of any tensor is in it"));
        }
        let is_weight = |x: &f32| x.is_finite() && *x >= 0.0;
        match self.entries.iter().find(|(_, entry)| !entry.values.iter().all(is_weight)) {
            None => Ok(()),
            Some((name, _)) => {
                Err(ConvertError::invalid("a value is negative or not finite; compute it again").of_tensor(name))
            }
        }
    }
}

impl From<ImportanceSums> for ImportanceMatrix {
    fn from(sums: ImportanceSums) -> ImportanceMatrix {
        ImportanceMatrix {
            file: String::new(),
            dataset: sums.datasets.first().cloned(),
            n_chunks: sums.n_chunks,
            entries: sums.entries.into_iter().map(|(name, entry)| (name, mean(entry))).collect(),
            sensitivities: sums.sensitivities,
        }
    }
}

/// Divides sums by counts, one for each expert; those of an expert that nothing went to become 1.
fn mean(TensorSums { sums: mut values, counts }: TensorSums) -> TensorImportance {
    let n_columns = values.len() / counts.len().max(1);
    let mut unused_experts = Vec::new();
    for (expert, (values, count)) in values.chunks_exact_mut(n_columns.max(1)).zip(counts).enumerate() {
        if count > 0.0 {
            values.iter_mut().for_each(|x| *x /= count);
        } else {
            values.fill(1.0);
            unused_experts.push(expert);
        }
    }
    TensorImportance { values, unused_experts }
}
