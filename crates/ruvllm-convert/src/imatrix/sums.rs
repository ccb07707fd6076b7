//! Sums of squared inputs: an importance matrix while it is computed, and as its file keeps it.

use std::collections::BTreeMap;
use std::path::Path;

use super::gguf;
use crate::error::{ConvertError, ConvertErrorKind};

/// Sums of the squared inputs of a model's matrices, with what they were computed on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImportanceSums {
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Chunks of text that were read.
    pub n_chunks: u32,
    /// Tokens of a chunk.
    pub chunk_size: u32,
    /// Hash of model and text, in the file of a run that can be gone on with.
    pub source: Option<u64>,
    pub(super) entries: BTreeMap<String, TensorSums>,
    /// Sensitivities that were measured, by tensor.
    pub(super) sensitivities: BTreeMap<String, f32>,
}

/// Sums of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorSums {
    /// Of each column; of experts those of each behind the other.
    pub(super) sums: Vec<f32>,
    /// Rows that went into them: one number, or one for each expert.
    pub(super) counts: Vec<f32>,
}

impl ImportanceSums {
    /// Reads a file in GGUF.
    ///
    /// # Errors
    /// It cannot be read, or is no importance matrix; a value is negative or not finite.
    pub fn open(path: &Path) -> Result<ImportanceSums, ConvertError> {
        let sums = gguf::read(path)?;
        sums.check().map_err(|error| error.at(path))?;
        Ok(sums)
    }

    /// Writes the file; it appears under its name when it is whole.
    ///
    /// # Errors
    /// It has no sums, or some that are not finite; the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ConvertError> {
        self.check().map_err(|error| error.at(path))?;
        gguf::write(self, path)
    }

    /// Adds those of another file for the same model.
    ///
    /// # Errors
    /// A tensor has another size there; nothing was added then.
    pub fn merge(&mut self, other: &ImportanceSums) -> Result<(), ConvertError> {
        for (name, theirs) in &other.entries {
            let fits =
                |own: &TensorSums| own.sums.len() == theirs.sums.len() && own.counts.len() == theirs.counts.len();
            if !self.entries.get(name).is_none_or(fits) {
                let line = "its sums have another size in the other file; are both of this model?";
                return Err(ConvertError::new(ConvertErrorKind::Invalid, line).of_tensor(name));
            }
        }
        for (name, theirs) in &other.entries {
            self.add(name, theirs);
        }
        for (name, &value) in &other.sensitivities {
            self.sensitivities.entry(name.clone()).or_insert(value);
        }
        self.datasets.extend(other.datasets.iter().cloned());
        self.n_chunks = self.n_chunks.saturating_add(other.n_chunks);
        if self.chunk_size == 0 {
            self.chunk_size = other.chunk_size;
        }
        Ok(())
    }

    /// Adds to the sums of a tensor, which are as many if there are some.
    pub(super) fn add(&mut self, name: &str, new: &TensorSums) {
        let Some(own) = self.entries.get_mut(name) else {
            self.entries.insert(name.to_owned(), new.clone());
            return;
        };
        own.sums.iter_mut().zip(&new.sums).for_each(|(sum, x)| *sum += x);
        own.counts.iter_mut().zip(&new.counts).for_each(|(count, n)| *count += n);
    }

    /// Keeps the sensitivity of a tensor.
    pub fn set_sensitivity(&mut self, name: &str, value: f32) {
        self.sensitivities.insert(name.to_owned(), value);
    }

    /// Returns whether the sensitivity of a tensor is known.
    pub fn has_sensitivity(&self, name: &str) -> bool {
        self.sensitivities.contains_key(name)
    }

    /// Iterates over the experts that no token went to, by tensor.
    pub fn unused_experts(&self) -> impl Iterator<Item = (&str, usize)> {
        self.entries.iter().flat_map(|(name, entry)| {
            let unused = entry.counts.iter().enumerate().filter(|(_, count)| **count == 0.0);
            unused.map(move |(expert, _)| (name.as_str(), expert))
        })
    }

    /// Returns how many tensors have sums.
    pub fn n_tensors(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many tensors have a sensitivity.
    pub fn n_sensitivities(&self) -> usize {
        self.sensitivities.len()
    }

    /// Checks that there is something, and that all of it are sums of squares.
    fn check(&self) -> Result<(), ConvertError> {
        if self.entries.is_empty() {
            return Err(ConvertError::invalid("no importance of any tensor is in it"));
        }
        let is_sum = |x: &f32| x.is_finite() && *x >= 0.0;
        let is_sound = |entry: &TensorSums| entry.sums.iter().chain(&entry.counts).all(is_sum);
        match self.entries.iter().find(|(_, entry)| !is_sound(entry)) {
            None => Ok(()),
            Some((name, _)) => {
                Err(ConvertError::invalid("a sum is negative or not finite; compute it again").of_tensor(name))
            }
        }
    }
}
