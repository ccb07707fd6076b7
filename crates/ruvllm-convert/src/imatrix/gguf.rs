//! Importance matrices in GGUF: tensors `NAME.in_sum2` and `NAME.counts`.

use std::path::Path;

use ruvllm_ggml::GgmlType;
use ruvllm_gguf::{GgufFile, TensorInfo};

use super::{ImportanceMatrix, TensorImportance};
use crate::error::ConvertError;

const DATASETS: &str = "imatrix.datasets";
const N_CHUNKS: &str = "imatrix.chunk_count";
const CHUNK_LEN: &str = "imatrix.chunk_size";
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

pub(super) fn read(path: &Path) -> Result<ImportanceMatrix, ConvertError> {
    let file = GgufFile::open(path)?;
    let matrix = of_file(&file).map_err(|error| error.at(path))?;
    file.check()?;
    Ok(matrix)
}

fn of_file(file: &GgufFile) -> Result<ImportanceMatrix, ConvertError> {
    let metadata = file.metadata();
    if let Some(key) = [DATASETS, N_CHUNKS, CHUNK_LEN].into_iter().find(|key| !metadata.contains(key)) {
        return Err(ConvertError::invalid(format!("it has no '{key}': it is no importance matrix")));
    }
    let datasets = metadata.strings(DATASETS)?.unwrap_or_default();
    let mut matrix = ImportanceMatrix {
        dataset: datasets.get(0).map(str::to_owned),
        n_chunks: metadata.u32(N_CHUNKS)?.unwrap_or(0),
        ..ImportanceMatrix::default()
    };
    for tensor in file.tensors() {
        if let Some(name) = tensor.name.strip_suffix(SUMS) {
            matrix.entries.insert(name.to_owned(), entry(file, name, tensor).map_err(|e| e.of_tensor(name))?);
        } else if let Some(name) =
            tensor.name.strip_suffix(COUNTS).filter(|n| file.tensor(&format!("{n}{SUMS}")).is_none())
        {
            return Err(ConvertError::invalid("it has counts and no sums").of_tensor(name));
        }
    }
    Ok(matrix)
}

/// Divides sums by counts, one for each expert; those of an expert that nothing went to become 1.
fn entry(file: &GgufFile, name: &str, sums: &TensorInfo) -> Result<TensorImportance, ConvertError> {
    let counts = file.tensor(&format!("{name}{COUNTS}"));
    let counts = counts.ok_or_else(|| ConvertError::invalid("it has sums and no counts"))?;
    let (mut values, counts) = (floats(file, sums)?, floats(file, counts)?);
    if counts.is_empty() || !values.len().is_multiple_of(counts.len()) {
        let (n, m) = (values.len(), counts.len());
        return Err(ConvertError::invalid(format!("{n} sums do not belong to {m} counts")));
    }
    let n_columns = values.len() / counts.len();
    let mut unused_experts = Vec::new();
    for (expert, (values, count)) in values.chunks_exact_mut(n_columns).zip(counts).enumerate() {
        let count = count.round();
        if count > 0.0 {
            values.iter_mut().for_each(|x| *x /= count);
        } else {
            values.fill(1.0);
            unused_experts.push(expert);
        }
    }
    Ok(TensorImportance { values, unused_experts })
}

fn floats(file: &GgufFile, tensor: &TensorInfo) -> Result<Vec<f32>, ConvertError> {
    match tensor.ty {
        GgmlType::F32 => Ok(file.data(tensor).as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect()),
        ty => Err(ConvertError::invalid(format!("sums and counts are F32, not {ty}"))),
    }
}
