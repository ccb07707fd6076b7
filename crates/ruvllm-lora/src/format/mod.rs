//! The files adapters come in: GGUF, and the folders of Hugging Face's PEFT.

pub mod gguf;
pub mod names;
#[cfg(feature = "peft")]
pub mod peft;

use std::path::Path;

use ruvllm_gguf::{GgufFile, Metadata};
use ruvllm_model::{AttentionSpec, FfnSpec, LayerSpec, ModelSpec};

use crate::adapter::Adapter;
use crate::error::{LoraError, LoraErrorKind};

/// Settings of a PEFT folder.
const PEFT_CONFIG: &str = "adapter_config.json";

/// Facts of a model that decide how an adapter's files are read for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// `general.architecture`.
    pub arch: String,
    /// Query heads of each layer.
    pub n_heads: Vec<usize>,
    /// Key heads of each layer.
    pub n_kv_heads: Vec<usize>,
    /// Experts of a layer, 0 without.
    pub n_experts: usize,
}

impl ModelFacts {
    /// Takes them from a model's description; layers without attention have no heads.
    pub fn of(spec: &ModelSpec) -> ModelFacts {
        let heads = |of: fn(&AttentionSpec) -> usize| {
            spec.layers.iter().map(|layer| layer.mixer.attention().map_or(0, of)).collect()
        };
        let n_experts = |layer: &LayerSpec| match &layer.ffn {
            None | Some(FfnSpec::Mlp(_)) => 0,
            Some(FfnSpec::Moe(moe)) => moe.up.len(),
        };
        ModelFacts {
            arch: spec.arch.clone(),
            n_heads: heads(|own| own.n_heads),
            n_kv_heads: heads(|own| own.n_kv_heads),
            n_experts: spec.layers.iter().map(n_experts).max().unwrap_or(0),
        }
    }

    /// Reads them from a model's file.
    ///
    /// # Errors
    /// The file names no architecture, or has no sound numbers of layers and heads.
    pub fn of_file(file: &GgufFile) -> Result<ModelFacts, LoraError> {
        let metadata: &Metadata = file.metadata();
        let missing = |key: &str| LoraError::new(LoraErrorKind::Invalid, format!("the model's file has no {key}"));
        let arch = metadata.str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
        let key = |name: &str| format!("{arch}.{name}");
        let n_layers = metadata.u32(&key("block_count"))?.ok_or_else(|| missing(&key("block_count")))? as usize;
        let heads = |name: &str| -> Result<Option<Vec<usize>>, LoraError> {
            let counts = metadata.u32_per_layer(&key(name), n_layers.min(4096))?;
            Ok(counts.map(|counts| counts.into_iter().map(|n| n as usize).collect()))
        };
        let name = "attention.head_count";
        let n_heads = heads(name)?.ok_or_else(|| missing(&key(name)))?;
        let n_kv_heads = heads("attention.head_count_kv")?.unwrap_or_else(|| n_heads.clone());
        let n_experts = metadata.u32(&key("expert_count"))?.unwrap_or(0) as usize;
        Ok(ModelFacts { arch: arch.to_owned(), n_heads, n_kv_heads, n_experts })
    }
}

/// Reads an adapter for a model: a GGUF file, or a PEFT folder (or the `adapter_config.json` in one).
///
/// # Errors
/// The path leads to neither; the files are damaged, hostile, of another architecture, or of a kind that cannot be
/// applied.
pub fn read(path: &Path, model: &ModelFacts) -> Result<Adapter, LoraError> {
    let folder = match (path.file_name(), path.parent()) {
        _ if path.is_dir() => path,
        (Some(name), Some(folder)) if name == PEFT_CONFIG => folder,
        _ => return gguf::read(path, model),
    };
    #[cfg(feature = "peft")]
    return peft::read(folder, model);
    #[cfg(not(feature = "peft"))]
    Err(crate::error::unsupported(format!("{}: PEFT folders are read with the feature 'peft'", folder.display())))
}

/// Returns what to call an adapter that has no name of its own.
fn name_of(path: &Path) -> String {
    path.file_stem().map_or_else(|| "adapter".to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// Writes a file that appears when it is complete.
#[cfg(feature = "peft")]
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), LoraError> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".part");
    let written = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
    written
        .map_err(|error| LoraError::new(LoraErrorKind::Io, error.to_string()).with_source(error).within(path.display()))
}

#[cfg(all(test, feature = "peft"))]
mod tests;
