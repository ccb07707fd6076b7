//! Importance matrices in GGUF: tensors `NAME.in_sum2` and `NAME.counts`, as llama.cpp has them, and where it was measured
//! `NAME.sensitivity`, which llama.cpp passes over.

use std::path::Path;

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, GgufWriter, TensorInfo};

use super::sums::{ImportanceSums, TensorSums};
use crate::error::ConvertError;

const DATASETS: &str = "imatrix.datasets";
const N_CHUNKS: &str = "imatrix.chunk_count";
const CHUNK_LEN: &str = "imatrix.chunk_size";
/// Hash of what a run that was broken off is computed of; only in files that it goes on with.
const SOURCE: &str = "imatrix.source";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
const SENSITIVITY: &str = ".sensitivity";

pub(super) fn read(path: &Path) -> Result<ImportanceSums, ConvertError> {
    let file = GgufFile::open(path)?;
    let sums = of_file(&file).map_err(|error| error.at(path))?;
    file.check()?;
    Ok(sums)
}

pub(super) fn of_file(file: &GgufFile) -> Result<ImportanceSums, ConvertError> {
    let metadata = file.metadata();
    if let Some(key) = [DATASETS, N_CHUNKS, CHUNK_LEN].into_iter().find(|key| !metadata.contains(key)) {
        return Err(ConvertError::invalid(format!("it has no '{key}': it is no importance matrix")));
    }
    let mut sums = ImportanceSums {
        datasets: metadata.strings(DATASETS)?.unwrap_or_default().to_vec(),
        n_chunks: metadata.u32(N_CHUNKS)?.unwrap_or(0),
        chunk_size: metadata.u32(CHUNK_LEN)?.unwrap_or(0),
        source: metadata.u64(SOURCE)?,
        ..ImportanceSums::default()
    };
    for tensor in file.tensors() {
        let has_sums = |name: &str| file.tensor(&format!("{name}{SUMS}")).is_some();
        if let Some(name) = tensor.name.strip_suffix(SUMS) {
            sums.entries.insert(name.to_owned(), entry(file, name, tensor).map_err(|e| e.of_tensor(name))?);
        } else if let Some(name) = tensor.name.strip_suffix(COUNTS).filter(|name| !has_sums(name)) {
            return Err(ConvertError::invalid("it has counts and no sums").of_tensor(name));
        } else if let Some(name) = tensor.name.strip_suffix(SENSITIVITY) {
            let value = floats(file, tensor).map_err(|e| e.of_tensor(name))?;
            let value = value.first().filter(|x| x.is_finite() && **x >= 0.0);
            let line = "its sensitivity is negative or not finite; compute it again";
            let value = *value.ok_or_else(|| ConvertError::invalid(line).of_tensor(name))?;
            sums.sensitivities.insert(name.to_owned(), value);
        }
    }
    Ok(sums)
}

fn entry(file: &GgufFile, name: &str, sums: &TensorInfo) -> Result<TensorSums, ConvertError> {
    let counts = file.tensor(&format!("{name}{COUNTS}"));
    let counts = counts.ok_or_else(|| ConvertError::invalid("it has sums and no counts"))?;
    let (sums, counts) = (floats(file, sums)?, floats(file, counts)?);
    if counts.is_empty() || !sums.len().is_multiple_of(counts.len()) {
        let (n, m) = (sums.len(), counts.len());
        return Err(ConvertError::invalid(format!("{n} sums do not belong to {m} counts")));
    }
    Ok(TensorSums { sums, counts: counts.into_iter().map(f32::round).collect() })
}

fn floats(file: &GgufFile, tensor: &TensorInfo) -> Result<Vec<f32>, ConvertError> {
    match tensor.ty {
        GgmlType::F32 => Ok(file.data(tensor).as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()),
        ty => Err(ConvertError::invalid(format!("sums and counts are F32, not {ty}"))),
    }
}

/// Writes a file, which appears under its name when it is whole.
pub(super) fn write(sums: &ImportanceSums, path: &Path) -> Result<(), ConvertError> {
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.set("general.type", "imatrix");
    metadata.set(DATASETS, sums.datasets.clone());
    metadata.set(N_CHUNKS, sums.n_chunks);
    metadata.set(CHUNK_LEN, sums.chunk_size);
    if let Some(source) = sums.source {
        metadata.set(SOURCE, source);
    }
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    for (name, TensorSums { sums, counts }) in &sums.entries {
        let n_columns = sums.len() / counts.len();
        writer.add_tensor(format!("{name}{SUMS}"), GgmlType::F32, &[n_columns, counts.len()], bytes(sums))?;
        writer.add_tensor(format!("{name}{COUNTS}"), GgmlType::F32, &[1, counts.len()], bytes(counts))?;
    }
    for (name, &value) in &sums.sensitivities {
        writer.add_tensor(format!("{name}{SENSITIVITY}"), GgmlType::F32, &[1], bytes(&[value]))?;
    }
    writer.write_file(path)?;
    Ok(())
}
