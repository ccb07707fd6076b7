//! Model architectures as data: the metadata and the tensor directory of a GGUF file become a [`ModelSpec`], which says what is
//! computed with which tensors. No weight is read.
//!
//! Backends pack, upload or interpret a [`ModelSpec`]; training reads the same. An architecture is one short file over shared
//! parts, and one row of a table.
//!
//! ```
//! use ruvllm_gguf::GgufFile;
//! use ruvllm_model::{FfnSpec, MixerSpec, ModelSpec};
//!
//! // Any GGUF file of a language model; here a tiny one of the test data.
//! let file = GgufFile::open(&ruvllm_testkit::Golden::load("llama-a").model("f32"))?;
//! let spec = ModelSpec::read(&file, None)?;
//! assert_eq!(spec.arch, "llama");
//! for layer in &spec.layers {
//!     let (MixerSpec::Attention(attention), Some(FfnSpec::Mlp(mlp))) = (&layer.mixer, &layer.ffn) else { continue };
//!     println!("{} heads, {} -> {}", attention.n_heads, mlp.up.weight.tensor, mlp.up.n_out());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Activations and ways to rotate positions have the types of `ruvllm-kernels`; nothing is computed here.

#![forbid(unsafe_code)]

mod arch;
mod builder;
mod error;
mod hparams;
mod latent;
mod read;
mod spec;
mod ssm;
mod tensors;
#[cfg(test)]
mod testing;

pub use arch::architectures;
pub use error::ModelError;
pub use spec::{
    AttentionSpec, ConvSpec, ExpansionSpec, ExpertActivation, ExpertGroups, FfnSpec, Gating, InputSpec,
    LatentAttentionSpec, LayerSpec, LinearSpec, LowRankSpec, Mamba2Spec, MambaSpec, MixerSpec, MlpSpec, ModelSpec,
    MoeSpec, NormKind, NormSpec, OutputSpec, Pooling, RankerSpec, RopeSpec, SharedExpertSpec, ShortConvSpec, Wiring,
};
pub use ssm::STATE_MAX;
pub use tensors::TensorRows;
