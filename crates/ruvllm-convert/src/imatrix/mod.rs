//! Importance matrices: how much each column of a matrix matters, as the mean square of what it was multiplied with.
//!
//! Files are those of llama.cpp's `llama-imatrix`: GGUF with a tensor of sums and one of counts for each matrix (`gguf`), or the
//! older binary form (`legacy`). Both are untrusted.

mod gguf;
mod legacy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

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
            gguf::read(path)?
        } else {
            legacy::parse(&legacy::bytes(file).map_err(failed)?).map_err(|error| error.at(path))?
        };
        matrix.file = path.display().to_string();
        matrix.check().map_err(|error| error.at(path))?;
        Ok(matrix)
    }

    /// Returns the importance of a tensor's columns, by its full name.
    pub fn tensor(&self, name: &str) -> Option<&TensorImportance> {
        self.entries.get(name)
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
