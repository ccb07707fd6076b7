//! GGUF adapters, as llama.cpp's `convert_lora_to_gguf.py` writes them and `llama-adapter.cpp` reads them.
//!
//! `general.type` is `adapter`, `adapter.type` is `lora`, `adapter.lora.alpha` the one alpha of all: a tensor's scale is
//! `alpha / rank`, or 1 where alpha is 0. Factors are `{tensor}.lora_a` (`[rank, n_in]`) and `{tensor}.lora_b`
//! (`[n_out, rank]`); those of experts have the expert as a third dimension. Ours beyond that: `{tensor}.lora_magnitude`
//! for DoRA, which llama.cpp refuses by its suffix.

use std::collections::BTreeMap;
use std::path::Path;

use ruvllm_gguf::{GgufFile, GgufWriter, TensorInfo};
use ruvllm_kernels::GgmlType;

use super::{ModelFacts, name_of};
use crate::adapter::{Adapter, Delta, FactorPair, RowOrder, Values};
use crate::error::{LoraError, invalid, shape, shown, unsupported};

/// The parts of one tensor's change, as they are found.
#[derive(Default)]
struct Parts<'a> {
    a: Option<&'a TensorInfo>,
    b: Option<&'a TensorInfo>,
    magnitude: Option<&'a TensorInfo>,
}

/// Reads a GGUF adapter.
///
/// # Errors
/// The file is no adapter, is damaged, or is for another architecture; it holds something else than pairs of factors.
pub fn read(path: &Path, model: &ModelFacts) -> Result<Adapter, LoraError> {
    let file = GgufFile::open(path)?;
    let adapter = read_file(&file, &name_of(path), model).map_err(|error| error.within(path.display()));
    // What was read of a file that was cut meanwhile may look like anything.
    file.check()?;
    Ok(adapter?.watching(file.watches().cloned().collect()))
}

/// Reads an open one.
fn read_file(file: &GgufFile, name: &str, model: &ModelFacts) -> Result<Adapter, LoraError> {
    let metadata = file.metadata();
    let text = |key: &str| Ok::<_, LoraError>(metadata.str(key)?.unwrap_or_default().to_owned());
    if (text("general.type")?.as_str(), text("adapter.type")?.as_str()) != ("adapter", "lora") {
        return Err(invalid("the file is no LoRA adapter: general.type is not 'adapter' or adapter.type not 'lora'"));
    }
    let arch = text("general.architecture")?;
    if arch != model.arch {
        let (of, is) = (shown(&arch), &model.arch);
        return Err(shape(format!("the adapter is for the architecture '{of}', the model is '{is}'")));
    }
    if metadata.contains("adapter.alora.invocation_tokens") {
        return Err(unsupported("an activated LoRA (alora) begins in the middle of a prompt, which is not supported"));
    }
    let alpha = metadata.f32("adapter.lora.alpha")?.unwrap_or(0.0);
    let mut parts: BTreeMap<&str, Parts<'_>> = BTreeMap::new();
    for tensor in file.tensors() {
        let (base, kind) = tensor.name.rsplit_once(".weight.").unwrap_or((&tensor.name, ""));
        let part = parts.entry(base).or_default();
        match kind {
            "lora_a" => part.a = Some(tensor),
            "lora_b" => part.b = Some(tensor),
            "lora_magnitude" => part.magnitude = Some(tensor),
            _ => {
                let line = format!("tensor '{}' is no factor of a LoRA; only those are applied", shown(&tensor.name));
                return Err(unsupported(line));
            }
        }
    }
    let mut deltas = Vec::new();
    for (base, part) in parts {
        let (Some(a), Some(b)) = (part.a, part.b) else {
            return Err(invalid(format!("tensor '{}' lacks lora_a or lora_b", shown(base))));
        };
        if base == "token_embd" {
            return Err(unsupported("the adapter changes the token embeddings, which is not supported"));
        }
        take(file, base, alpha, PairTensors { a, b, magnitude: part.magnitude }, &mut deltas)
            .map_err(|error| error.within(format_args!("'{}'", shown(base))))?;
    }
    Ok(Adapter::new(name, deltas)?.for_arch(Some(&arch)))
}

/// Tensors of a pair of factors.
struct PairTensors<'a> {
    a: &'a TensorInfo,
    b: &'a TensorInfo,
    magnitude: Option<&'a TensorInfo>,
}

/// Takes one pair, or one for each expert.
fn take(
    file: &GgufFile,
    base: &str,
    alpha: f32,
    PairTensors { a, b, magnitude }: PairTensors<'_>,
    deltas: &mut Vec<Delta>,
) -> Result<(), LoraError> {
    let dim = |tensor: &TensorInfo, i: usize| tensor.shape.get(i).copied().unwrap_or(1);
    let n_experts = dim(a, 2);
    if dim(b, 2) != n_experts || dim(a, 3) * dim(b, 3) != 1 {
        return Err(invalid(format!("shapes {:?} and {:?} do not fit each other", a.shape, b.shape)));
    }
    let rank = dim(a, 1);
    let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
    let values = |tensor: &TensorInfo, expert: usize| {
        let bytes = file.data(tensor);
        let size = bytes.len() / n_experts;
        Values::new(tensor.ty, dim(tensor, 1), dim(tensor, 0), bytes.slice(expert * size..(expert + 1) * size))
    };
    let is_expert = base.ends_with("_exps");
    if !is_expert && n_experts != 1 {
        return Err(invalid(format!("shape {:?} has three dimensions, and it is no tensor of experts", a.shape)));
    }
    for expert in 0..n_experts {
        let target = if is_expert { format!("{base}.{expert}") } else { base.to_owned() };
        let magnitude = magnitude.map(|m| Values::new(m.ty, m.n_elements(), 1, file.data(m))).transpose()?;
        let pair = FactorPair { a: values(a, expert)?, b: values(b, expert)? };
        deltas.push(Delta::new(target, scale, pair, magnitude, RowOrder::Same)?);
    }
    Ok(())
}

/// Writes an adapter as F32, so that llama.cpp reads it too, unless it is a DoRA.
///
/// One alpha is all that the format has: a tensor whose scale is another gets the difference in its `lora_b`.
///
/// # Errors
/// A value is not a number, a tensor of experts is not changed for all of them alike, or the file cannot be written.
pub fn write(adapter: &Adapter, model: &ModelFacts, path: &Path) -> Result<(), LoraError> {
    let alpha = adapter.deltas().next().map_or(1.0, |delta| delta.scale * delta.rank() as f32);
    // An alpha of 0 stands for a scale of 1.
    let alpha = if alpha == 0.0 { 1.0 } else { alpha };
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    metadata.set("general.type", "adapter");
    metadata.set("general.architecture", model.arch.as_str());
    metadata.set("general.name", adapter.name());
    metadata.set("adapter.type", "lora");
    metadata.set("adapter.lora.alpha", alpha);
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let mut experts: BTreeMap<&str, Vec<(usize, &Delta)>> = BTreeMap::new();
    for delta in adapter.deltas() {
        if let Some((base, expert)) = expert(&delta.target) {
            experts.entry(base).or_default().push((expert, delta));
            continue;
        }
        let (rank, name) = (delta.rank(), &delta.target);
        let (a, b) = scaled(delta, alpha)?;
        writer.add_tensor(format!("{name}.weight.lora_a"), GgmlType::F32, &[delta.n_in(), rank], bytes(&a))?;
        writer.add_tensor(format!("{name}.weight.lora_b"), GgmlType::F32, &[rank, delta.n_out()], bytes(&b))?;
        if let Some(magnitude) = delta.magnitude()? {
            let name = format!("{name}.weight.lora_magnitude");
            writer.add_tensor(name, GgmlType::F32, &[delta.n_out()], bytes(&magnitude))?;
        }
    }
    for (base, mut parts) in experts {
        parts.sort_by_key(|&(expert, _)| expert);
        let (rank, n_in, n_out) = (parts[0].1.rank(), parts[0].1.n_in(), parts[0].1.n_out());
        let is_whole = parts.len() == model.n_experts && parts.iter().enumerate().all(|(i, (e, _))| i == *e);
        if !is_whole || parts.iter().any(|(_, d)| d.rank() != rank || d.is_dora()) {
            let line = format!("'{base}' is not changed for all experts with one rank; GGUF has no form for that");
            return Err(unsupported(line));
        }
        let (mut all_a, mut all_b) = (Vec::new(), Vec::new());
        for (_, delta) in parts {
            let (a, b) = scaled(delta, alpha)?;
            all_a.extend(bytes(&a));
            all_b.extend(bytes(&b));
        }
        let n_experts = model.n_experts;
        writer.add_tensor(format!("{base}.weight.lora_a"), GgmlType::F32, &[n_in, rank, n_experts], all_a)?;
        writer.add_tensor(format!("{base}.weight.lora_b"), GgmlType::F32, &[rank, n_out, n_experts], all_b)?;
    }
    writer.write_file(path)?;
    Ok(())
}

/// Splits the target of an expert: `blk.0.ffn_up_exps.3`.
fn expert(target: &str) -> Option<(&str, usize)> {
    let (base, expert) = target.rsplit_once('.')?;
    base.ends_with("_exps").then(|| expert.parse().ok().map(|expert| (base, expert))).flatten()
}

/// Returns both factors, `b` such that `alpha / rank` is the scale.
fn scaled(delta: &Delta, alpha: f32) -> Result<(Vec<f32>, Vec<f32>), LoraError> {
    let (a, mut b) = (delta.a()?, delta.b()?);
    let factor = f64::from(delta.scale) * delta.rank() as f64 / f64::from(alpha);
    if factor != 1.0 {
        b.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
    Ok((a, b))
}
