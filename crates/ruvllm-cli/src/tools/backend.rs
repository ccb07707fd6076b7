//! `--backend`: what runs a model.

use std::path::Path;

use clap::{Args, ValueEnum};
use ruvllm_backend::BackendError;
use ruvllm_candle::{CandleBackend, CandleOptions};
use ruvllm_engine::{Engine, EngineError, KvPolicy, LoadOptions, LoadProgress, ModelRunner, Vocabulary};
#[cfg(feature = "gpu")]
use ruvllm_wgpu::{GpuChoice, WgpuBackend, WgpuOptions};

use crate::tools::args::LoadArgs;
use crate::tools::error::{Error, Result};

/// Names of backends that run a model in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LocalBackend {
    /// This machine's CPU, by kernels for its instruction set
    #[default]
    Native,
    /// The GPU, over Vulkan or Metal (RUVLLM_GPU chooses one); no adapters, learning or recurrent models
    #[cfg(feature = "gpu")]
    Gpu,
    /// The tensors of the candle library, on the CPU: a reference, slower; no encoders, adapters, learning or prefix cache
    Candle,
}

/// The backend, where it is one of this process.
#[derive(Args, Clone, Copy, Debug)]
pub struct LocalBackendArgs {
    /// What runs the model
    #[arg(long, value_name = "NAME", value_enum, default_value = "native", help_heading = "Model")]
    backend: LocalBackend,
}

impl LocalBackendArgs {
    /// Returns the backend.
    ///
    /// # Errors
    /// As [`LocalBackend::check`].
    pub fn chosen(self, load: &LoadArgs) -> Result<LocalBackend> {
        self.backend.check(load)?;
        Ok(self.backend)
    }
}

impl LocalBackend {
    /// Checks that no option was given that the backend does not keep.
    ///
    /// # Errors
    /// A usage error that names one.
    pub fn check(self, load: &LoadArgs) -> Result<()> {
        let of_native = [
            ("--threads", load.threads.is_some()),
            ("--kv", load.kv != KvPolicy::F16),
            ("--no-head-shortlist", load.no_head_shortlist),
        ];
        let given = of_native.into_iter().filter(|(_, is_given)| *is_given);
        let unkept = given.filter_map(|(name, _)| Some((name, self.why_not(name, load)?))).next();
        match unkept {
            Some((name, why)) => Err(Error::usage(format_args!("{name} is not for --backend {self}: {why}"))),
            None => Ok(()),
        }
    }

    /// Returns why an option of loading has no use, if it has none.
    fn why_not(self, option: &str, load: &LoadArgs) -> Option<&'static str> {
        match (self, option) {
            (LocalBackend::Native, _) => None,
            (_, "--no-head-shortlist") => Some("it has no such copy"),
            (LocalBackend::Candle, "--threads") => Some("set RAYON_NUM_THREADS"),
            (LocalBackend::Candle, _) => Some("it keeps keys and values as f32"),
            #[cfg(feature = "gpu")]
            (LocalBackend::Gpu, "--threads") => Some("the GPU computes"),
            #[cfg(feature = "gpu")]
            (LocalBackend::Gpu, _) => (load.kv != KvPolicy::F32).then_some("it keeps keys and values as f16 or f32"),
        }
    }

    /// Loads a model's file; `gpu` is what was said of the GPU to run on.
    ///
    /// # Errors
    /// The backend's; the options ask for what only native has.
    pub fn load(
        self,
        path: &Path,
        options: &LoadOptions,
        gpu: Option<&str>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> std::result::Result<Engine, EngineError> {
        // Only one backend has a GPU.
        let _ = gpu;
        let native_only = [
            ("a draft model", options.draft.is_some()),
            ("a choice of KV policies", !options.kv_others.is_empty()),
            ("a size of the KV cache", options.kv_bytes.is_some() && self == LocalBackend::Candle),
        ];
        let unkept = native_only.into_iter().find(|(_, is_asked)| *is_asked && self != LocalBackend::Native);
        if let Some((what, _)) = unkept {
            return Err(BackendError::unsupported(format!("backend {self} has no use for {what}; use native")).into());
        }
        match self {
            LocalBackend::Native => Engine::load(path, options, progress),
            #[cfg(feature = "gpu")]
            LocalBackend::Gpu => {
                let model = load_on_gpu(path, options, gpu, progress)?;
                let vocabulary = Vocabulary::of_gguf(model.file())?;
                Ok(Engine::new(ModelRunner::new(Box::new(model), vocabulary)))
            }
            LocalBackend::Candle => {
                let LoadOptions { n_ctx, n_seq_max, .. } = *options;
                let own = CandleOptions { n_ctx, n_seq_max, ..CandleOptions::default() };
                let model = CandleBackend::load(path, &own, progress)?;
                let vocabulary = Vocabulary::of_gguf(model.file())?;
                Ok(Engine::new(ModelRunner::new(Box::new(model), vocabulary)))
            }
        }
    }
}

/// Loads a model's file to the GPU that is meant.
///
/// # Errors
/// The backend's.
#[cfg(feature = "gpu")]
pub fn load_on_gpu(
    path: &Path,
    options: &LoadOptions,
    gpu: Option<&str>,
    progress: &mut dyn FnMut(LoadProgress),
) -> std::result::Result<WgpuBackend, BackendError> {
    let LoadOptions { n_ctx, n_seq_max, kv, kv_bytes, prefix_cache, .. } = *options;
    let gpu = GpuChoice::parse(gpu.unwrap_or_default());
    let own = WgpuOptions { n_ctx, n_seq_max, gpu, kv, kv_bytes, prefix_cache, ..WgpuOptions::default() };
    WgpuBackend::load(path, &own, progress)
}

impl std::fmt::Display for LocalBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            LocalBackend::Native => "native",
            #[cfg(feature = "gpu")]
            LocalBackend::Gpu => "gpu",
            LocalBackend::Candle => "candle",
        })
    }
}
