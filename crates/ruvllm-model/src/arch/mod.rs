//! The architectures: one short file each over the shared blocks. A row of the table below is all it takes to add one.

mod bert;
mod cohere2;
mod deepseek2;
mod falcon_h1;
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
mod mamba;
mod mamba2;
mod olmo2;
mod olmoe;
mod phi2;
mod phi3;
mod qwen2;
mod qwen3;
mod smollm3;
mod stablelm;
mod starcoder2;

use crate::builder::Builder;
use crate::{ModelError, ModelSpec};

/// Wires the model of a file.
pub(crate) type Build = fn(Builder<'_>) -> Result<ModelSpec, ModelError>;

/// `general.architecture` → how the model is wired.
const ARCHITECTURES: &[(&str, Build)] = &[
    ("bert", bert::build),
    ("cohere2", cohere2::build),
    ("deepseek2", deepseek2::build),
    ("falcon-h1", falcon_h1::build),
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
    ("mamba", mamba::build),
    ("mamba2", mamba2::build),
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

/// Returns what wires models of an architecture.
///
/// # Errors
/// [`ModelError::Unsupported`]: it is not known here.
pub(crate) fn find(arch: &str) -> Result<Build, ModelError> {
    match ARCHITECTURES.iter().find(|(name, _)| *name == arch) {
        Some((_, build)) => Ok(*build),
        None => {
            let known: Vec<_> = architectures().collect();
            let line = format!("architecture '{arch}' is not supported; supported are {}", known.join(", "));
            Err(ModelError::Unsupported(line))
        }
    }
}
