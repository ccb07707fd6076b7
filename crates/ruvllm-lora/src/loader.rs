//! Adapters for a loaded model: read, checked against its layers, and brought into the form that is multiplied with.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "peft")]
use crate::AdapterSet;
use crate::manager::AdapterManager;
use crate::merge::Merged;
use crate::micro::HeadRows;
#[cfg(feature = "peft")]
use crate::mixture::Mixture;
use crate::{Adapter, BaseWeights, BoundAdapter, FactorFormat, LoraError, LoraErrorKind, Targets, format};
use ruvllm_cpu::prefetch::prefetch;
use ruvllm_gguf::{GgufFile, TensorInfo};
use ruvllm_kernels::dequant;
use ruvllm_kvcache::MemoryBudget;
use ruvllm_model::TensorRows;

/// Adapters beside the hot ones whose files a manager keeps mapped.
const N_WARM_MAX: usize = 256;

/// Loads adapters for one model. It shares the model's file and nothing that computing needs, so any thread may use it.
#[derive(Clone, Debug)]
pub struct AdapterLoader {
    targets: Arc<Targets>,
    file: Arc<GgufFile>,
    dequant: &'static dequant::DequantKernels,
}

impl AdapterLoader {
    /// Makes a loader for the model of a file with these linear layers.
    pub fn new(targets: Arc<Targets>, file: Arc<GgufFile>, dequant: &'static dequant::DequantKernels) -> AdapterLoader {
        AdapterLoader { targets, file, dequant }
    }

    /// Returns the model's linear layers.
    pub fn targets(&self) -> &Arc<Targets> {
        &self.targets
    }

    /// Reads an adapter: a GGUF file, or a PEFT folder. Its values are not looked at yet.
    ///
    /// # Errors
    /// It cannot be read, or does not fit the model.
    pub fn read(&self, path: &Path) -> Result<Adapter, LoraError> {
        let adapter = format::read(path, self.targets.facts())?;
        self.targets.check(&adapter)?;
        Ok(adapter)
    }

    /// Brings an adapter into the form that is multiplied with.
    ///
    /// # Errors
    /// It does not fit the model, or a value is not a finite number.
    pub fn bind(&self, adapter: &Adapter, format: FactorFormat) -> Result<Arc<BoundAdapter>, LoraError> {
        Ok(Arc::new(self.targets.bind(adapter, format, &self.weights())?))
    }

    /// Returns what reads the base's weights.
    #[cfg(feature = "train")]
    pub fn base_weights(&self) -> Box<dyn BaseWeights + Send + Sync> {
        Box::new(self.weights())
    }

    /// Reads the weights of a linear layer, by its number: `[n_out, n_in]`.
    ///
    /// # Errors
    /// The file has no such tensor.
    ///
    /// # Panics
    /// If the model has no layer of this number.
    pub fn weights_of(&self, target: usize) -> Result<Vec<f32>, LoraError> {
        self.targets.all()[target].weights(&self.weights())
    }

    fn weights(&self) -> FileWeights {
        FileWeights { file: Arc::clone(&self.file), dequant: self.dequant, last: Mutex::default() }
    }

    /// Reads a folder of adapters and the gate that weighs them ([`Mixture`]).
    ///
    /// # Errors
    /// As [`AdapterLoader::load`]; the folder is no mixture.
    #[cfg(feature = "peft")]
    pub fn load_mixture(&self, folder: &Path, format: FactorFormat) -> Result<AdapterSet, LoraError> {
        let Mixture { gate, adapters } = Mixture::read(folder)?;
        let load = |(path, scale): (std::path::PathBuf, f32)| Ok((self.load(&path, format)?, scale));
        let adapters = adapters.into_iter().map(load).collect::<Result<_, LoraError>>()?;
        AdapterSet::gated(adapters, Arc::new(gate))
    }

    /// Makes a manager of adapters for this model, whose loaded ones take no more than `budget`.
    pub fn manager(&self, format: FactorFormat, budget: MemoryBudget) -> AdapterManager {
        AdapterManager::new(Arc::clone(&self.targets), Box::new(self.weights()), format, budget, N_WARM_MAX)
    }

    /// Writes the model's file with adapters in it, each with its scale: what they change as `merged` says, all else as it
    /// is.
    ///
    /// # Errors
    /// One does not fit the model or changes what cannot be changed in
    /// place (a head that is tied to the embeddings), or the file cannot be written.
    pub fn merge_into_model(&self, adapters: &[(&Adapter, f32)], merged: Merged, path: &Path) -> Result<(), LoraError> {
        crate::merge::merge_into_model(&self.file, &self.targets, adapters, merged, path)
    }

    /// Reads an adapter and brings it into the form that is multiplied with.
    ///
    /// # Errors
    /// As [`AdapterLoader::read`] and [`AdapterLoader::bind`].
    pub fn load(&self, path: &Path, format: FactorFormat) -> Result<Arc<BoundAdapter>, LoraError> {
        self.bind(&self.read(path)?, format)
    }
}

/// The weights of a model's file, row by row.
struct FileWeights {
    file: Arc<GgufFile>,
    dequant: &'static dequant::DequantKernels,
    /// Name and bytes of the tensor that was asked for last.
    last: Mutex<Option<(String, Rows)>>,
}

/// A tensor's rows.
struct Rows {
    ty: ruvllm_kernels::GgmlType,
    n_cols: usize,
    row_bytes: usize,
    bytes: bytes::Bytes,
}

impl Rows {
    fn bytes_of(&self, row: usize) -> Option<&[u8]> {
        self.bytes.get(row * self.row_bytes..(row + 1) * self.row_bytes)
    }

    /// Writes a row, `[n_cols]`; `None` if there is no such row or it has another width.
    fn read(&self, dequant: &dequant::DequantKernels, row: usize, out: &mut [f32]) -> Option<()> {
        let bytes = self.bytes_of(row).filter(|_| self.n_cols == out.len())?;
        dequant.dequantize(self.ty, bytes, out);
        Some(())
    }
}

impl FileWeights {
    /// Finds a tensor, or the part of one that an expert has (`blk.0.ffn_up_exps.3`).
    ///
    /// # Errors
    /// The file cannot be read.
    fn find(&self, name: &str) -> Result<Option<Rows>, LoraError> {
        let Some((tensor, n_cols, row_bytes, part)) = self.place(name) else { return Ok(None) };
        Ok(Some(Rows { ty: tensor.ty, n_cols, row_bytes, bytes: self.file.read(tensor, part)? }))
    }

    /// Returns the tensor that it is in, the length of its rows in values and bytes, and where in the tensor it lies.
    fn place(&self, name: &str) -> Option<(&TensorInfo, usize, usize, Range<usize>)> {
        let tied = (name == "output").then_some("token_embd");
        let whole =
            [Some(name), tied].into_iter().flatten().find_map(|name| self.file.tensor(&format!("{name}.weight")));
        let (tensor, expert) = match whole {
            Some(tensor) => (tensor, 0),
            None => {
                let (base, expert) = name.rsplit_once('.')?;
                (self.file.tensor(&format!("{base}.weight"))?, expert.parse().ok()?)
            }
        };
        let n_cols = *tensor.shape.first()?;
        let row_bytes = tensor.ty.row_bytes(n_cols)?;
        let part = row_bytes * tensor.shape.get(1).copied().unwrap_or(1);
        let part = expert * part..(expert + 1) * part;
        (part.end <= tensor.n_bytes()).then_some((tensor, n_cols, row_bytes, part))
    }
}

/// The rows of a model's output head, as gradients of the final hidden state want them. Any thread may read them.
pub struct HeadWeights {
    dequant: &'static dequant::DequantKernels,
    rows: Rows,
    /// What the model multiplies its logits with.
    scale: f32,
}

impl HeadWeights {
    /// Finds the output head of a model's file. `scale` is what the model multiplies its logits with.
    ///
    /// # Errors
    /// The file has no output head, or cannot be read.
    pub fn new(
        dequant: &'static dequant::DequantKernels,
        file: &Arc<GgufFile>,
        scale: f32,
    ) -> Result<HeadWeights, LoraError> {
        let weights = FileWeights { file: Arc::clone(file), dequant, last: Mutex::default() };
        let missing = || LoraError::new(LoraErrorKind::Unsupported, "the model has no output head to learn from");
        Ok(HeadWeights { dequant, rows: weights.find("output")?.ok_or_else(missing)?, scale })
    }

    /// Returns how many rows there are: one for each token.
    pub fn n_rows(&self) -> usize {
        self.rows.bytes.len() / self.rows.row_bytes
    }
}

impl HeadRows for HeadWeights {
    /// # Panics
    /// If there is no such token, or the row is not as wide as the model.
    fn row(&self, token: u32, out: &mut [f32]) {
        let read = self.rows.read(self.dequant, token as usize, out);
        assert!(read.is_some(), "no row {token} of {} values", out.len());
        if self.scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= self.scale);
        }
    }

    fn expect(&self, token: u32) {
        self.rows.bytes_of(token as usize).into_iter().for_each(prefetch);
    }
}

impl BaseWeights for FileWeights {
    fn row(&self, tensor: &str, row: usize, out: &mut [f32]) -> Result<(), LoraError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let missing =
            || LoraError::new(LoraErrorKind::Shape, format!("the model's file has no row {row} of '{tensor}'"));
        if last.as_ref().is_none_or(|(name, _)| name != tensor) {
            *last = Some((tensor.to_owned(), self.find(tensor)?.ok_or_else(missing)?));
        }
        last.as_ref().and_then(|(_, rows)| rows.read(self.dequant, row, out)).ok_or_else(missing)
    }

    fn values(&self, rows: &TensorRows) -> Result<Vec<f32>, LoraError> {
        let missing = || {
            let line = format!("the model's file has no rows {:?} of '{}'", rows.rows, rows.tensor);
            LoraError::new(LoraErrorKind::Shape, line)
        };
        let tensor = self.file.tensor(&rows.tensor).ok_or_else(missing)?;
        let at = |n_values: usize| tensor.ty.row_bytes(n_values).ok_or_else(missing);
        let part = at(rows.values().start)?..at(rows.values().end)?;
        if part.start > part.end || part.end > tensor.n_bytes() {
            return Err(missing());
        }
        let mut values = vec![0.0; rows.n_values()];
        self.dequant.dequantize(tensor.ty, &self.file.read(tensor, part)?, &mut values);
        Ok(values)
    }
}
