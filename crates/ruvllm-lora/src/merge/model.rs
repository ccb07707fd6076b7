//! Merging into a model's file: weights that have the adapters in them and need none beside.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use ruvllm_ggml::{GgmlType, quantize_row};
use ruvllm_gguf::{GgufFile, GgufWriter, TensorInfo};
use ruvllm_kernels::dequant;

use crate::adapter::{Adapter, Delta};
use crate::bound::Targets;
use crate::error::{LoraError, invalid, shape};

/// Format of the changed tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Merged {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    #[default]
    F16,
    /// 8 bits, a scale per 32: rows that are no whole blocks stay at 16 bits.
    Q8,
}

/// Writes a model with adapters in it, each with its scale: the tensors that they change in the type of `merged`, all
/// others as they are.
///
/// # Errors
/// An adapter does not fit the model of `targets` and `file`, a value is not a number, or the file cannot be written.
pub fn merge_into_model(
    file: &GgufFile,
    targets: &Targets,
    adapters: &[(&Adapter, f32)],
    merged: Merged,
    path: &Path,
) -> Result<(), LoraError> {
    let mut changed: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
    for (adapter, scale) in adapters {
        targets.check(adapter)?;
        for delta in adapter.deltas() {
            let tensor = find(file, &delta.target).ok_or_else(|| {
                let line = format!(
                    "the file has no tensor '{}' of its own; a part of a fused one is not merged",
                    delta.target
                );
                shape(line)
            })?;
            add(file, tensor, delta, *scale, &mut changed)?;
        }
    }
    let mut writer = GgufWriter::new();
    *writer.metadata_mut() = file.metadata().clone();
    for key in ["split.no", "split.count", "split.tensors.count"] {
        writer.metadata_mut().remove(key);
    }
    for tensor in file.tensors() {
        match changed.remove(tensor.name.as_str()) {
            None => writer.add_tensor(&*tensor.name, tensor.ty, &tensor.shape, file.data(tensor))?,
            Some(values) => {
                let (ty, bytes) = merged.encode(&values, tensor.shape[0]);
                writer.add_tensor(&*tensor.name, ty, &tensor.shape, bytes)?;
            }
        }
    }
    adapters.iter().try_for_each(|(adapter, _)| adapter.check())?;
    writer.write_file(path)?;
    // Others than the changed tensors are read while they are written.
    if let Err(error) = file.check() {
        let _ = std::fs::remove_file(path);
        return Err(error.into());
    }
    Ok(())
}

/// Finds the tensor of a target, which may hold other experts as well; a head may be tied to the embeddings.
fn find<'a>(file: &'a GgufFile, target: &str) -> Option<&'a TensorInfo> {
    let weight = |name: &str| file.tensor(&format!("{name}.weight"));
    let tied = || (target == "output").then(|| weight("token_embd")).flatten();
    weight(target).or_else(tied).or_else(|| weight(target.rsplit_once('.')?.0))
}

/// Adds one change to a tensor's values, which are read when it is the first.
fn add<'a>(
    file: &'a GgufFile,
    tensor: &'a TensorInfo,
    delta: &Delta,
    scale: f32,
    changed: &mut BTreeMap<&'a str, Vec<f32>>,
) -> Result<(), LoraError> {
    if tensor.name == "token_embd.weight" {
        return Err(invalid("the head is tied to the embeddings, and to change it would change those"));
    }
    let base = |at: usize, out: &mut [f32]| {
        let size = tensor.ty.row_bytes(delta.n_in()).expect("a tensor's rows are whole blocks");
        dequant::dequantize(tensor.ty, &file.data(tensor)[at * size..(at + 1) * size], out);
    };
    let expert: usize = match tensor.shape.len() {
        3 => delta.target.rsplit_once('.').and_then(|(_, expert)| expert.parse().ok()).unwrap_or(0),
        _ => 0,
    };
    let values = changed.entry(tensor.name.as_str()).or_insert_with(|| {
        let mut values = vec![0.0; tensor.n_elements()];
        dequant::dequantize(tensor.ty, &file.data(tensor), &mut values);
        values
    });
    let (n_in, n_out, rank) = (delta.n_in(), delta.n_out(), delta.rank());
    let (a, b, magnitude) = (delta.a()?, delta.b()?, delta.magnitude()?);
    let mut own = vec![0.0; n_in];
    for (j, b) in b.chunks_exact(rank).enumerate() {
        let at = expert * n_out + j;
        let row = values.get_mut(at * n_in..(at + 1) * n_in).ok_or_else(|| shape("the model has fewer experts"))?;
        let mut change = vec![0.0f32; n_in];
        for (b, a) in b.iter().zip(a.chunks_exact(n_in)) {
            change.iter_mut().zip(a).for_each(|(x, a)| *x += delta.scale * b * a);
        }
        if let Some(magnitude) = &magnitude {
            base(at, &mut own);
            let norm = own.iter().zip(&change).map(|(w, c)| f64::from(w + c).powi(2)).sum::<f64>().sqrt();
            let gain = if norm > 0.0 { (f64::from(magnitude[j]) / norm) as f32 } else { 1.0 };
            change.iter_mut().zip(&own).for_each(|(c, w)| *c = gain * (w + *c) - w);
        }
        row.iter_mut().zip(&change).for_each(|(w, c)| *w += scale * c);
    }
    Ok(())
}

impl Merged {
    /// Returns values in rows of `n_cols` as a tensor of a file has them, and their type: 16 bits where 8 take no row of this length.
    pub fn encode(self, values: &[f32], n_cols: usize) -> (GgmlType, Bytes) {
        let ty = match self {
            Merged::F32 => GgmlType::F32,
            Merged::Q8 if n_cols.is_multiple_of(32) => GgmlType::Q8_0,
            Merged::F16 | Merged::Q8 => GgmlType::F16,
        };
        let mut bytes = vec![0; ty.row_bytes(values.len()).expect("rows are whole blocks")];
        quantize_row(ty, values, None, &mut bytes);
        (ty, bytes.into())
    }
}
