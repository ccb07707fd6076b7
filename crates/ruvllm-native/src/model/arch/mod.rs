//! The architectures: one short file each over the shared blocks. A row of the table below is all it takes to add one.

mod bert;
mod cohere2;
mod gemma;
mod gemma2;
mod gemma3;
mod glm4;
mod gpt2;
mod gpt_oss;
mod gptneox;
mod granite;
mod lfm2;
mod llama;
mod olmo2;
mod olmoe;
mod phi2;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;
mod stablelm;
mod starcoder2;

use ruvllm_gguf::GgufFile;

use super::Model;
use super::builder::Builder;
use super::hparams::{Hparams, Keys, model_error};
use super::loader::Loader;
use ruvllm_backend::{BackendError, BackendErrorKind};

type Build = fn(Builder<'_>) -> Result<Model, BackendError>;

/// `general.architecture` → how the model is wired.
const ARCHITECTURES: &[(&str, Build)] = &[
    ("bert", bert::build),
    ("cohere2", cohere2::build),
    ("gemma", gemma::build),
    ("gemma2", gemma2::build),
    ("gemma3", gemma3::build),
    ("glm4", glm4::build),
    ("gpt-oss", gpt_oss::build),
    ("gpt2", gpt2::build),
    ("gptneox", gptneox::build),
    ("granite", granite::build),
    ("granitemoe", granite::build),
    ("lfm2", lfm2::build),
    ("llama", llama::build),
    ("olmo2", olmo2::build),
    ("olmoe", olmoe::build),
    ("phi2", phi2::build),
    ("phi3", phi3::build),
    ("qwen2", qwen2::build),
    ("qwen2moe", qwen2::build),
    ("qwen3", qwen3::build),
    ("qwen3moe", qwen3::build),
    ("smollm3", smollm3::build),
    ("stablelm", stablelm::build),
    ("starcoder2", starcoder2::build),
];

/// Iterates over the names of the supported architectures, as `general.architecture` spells them.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    ARCHITECTURES.iter().map(|(name, _)| *name)
}

/// Builds the model of a file; `n_ctx` is the context it will be opened with, if the caller chose one.
pub(crate) fn load<'a>(
    file: &'a GgufFile,
    loader: &'a Loader<'a>,
    n_ctx: Option<usize>,
) -> Result<Model, BackendError> {
    let metadata = file.metadata();
    let arch = metadata
        .str("general.architecture")?
        .ok_or_else(|| model_error("metadata general.architecture is missing; the file is not a language model"))?;
    let Some((_, build)) = ARCHITECTURES.iter().find(|(name, _)| *name == arch) else {
        let known: Vec<_> = architectures().collect();
        let line = format!("architecture '{arch}' is not supported; supported are {}", known.join(", "));
        return Err(BackendError::new(BackendErrorKind::Unsupported, line));
    };
    let keys = Keys::new(metadata, arch);
    let hparams = Hparams::read(keys, n_ctx)?;
    loader.check_layers(hparams.n_layers)?;
    let mut model = build(Builder::new(hparams, keys, loader))?;
    model.link(loader.n_threads(), None);
    Ok(model)
}
