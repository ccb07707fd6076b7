//! `--backend`: what runs a model.

use std::path::Path;

use clap::{Args, ValueEnum};
use ruvllm_backend::BackendError;
#[cfg(feature = "gpu")]
use ruvllm_backend::TokenModel;
use ruvllm_candle::{CandleBackend, CandleOptions};
#[cfg(feature = "gpu")]
use ruvllm_engine::{DraftOptions, NativeBackend};
use ruvllm_engine::{Engine, EngineError, KvPolicy, LoadOptions, LoadProgress, ModelRunner, Vocabulary};
#[cfg(feature = "gpu")]
use ruvllm_wgpu::{FirstLayers, GpuChoice, WgpuBackend, WgpuOptions};

use crate::args::LoadArgs;
use crate::error::{Error, Result};
#[cfg(feature = "gpu")]
use crate::values::count;

/// Names of backends that run a model in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LocalName {
    /// This machine's CPU, by kernels for its instruction set
    #[default]
    Native,
    /// The GPU, over Vulkan or Metal (RUVLLM_GPU chooses one)
    #[cfg(feature = "gpu")]
    Gpu,
    /// The tensors of the candle library, on the CPU: a reference, slower; no encoders, adapters, learning or prefix cache
    Candle,
}

/// A backend of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalBackend {
    name: LocalName,
    /// Layers on the GPU, if not as many as fit.
    gpu_layers: Option<usize>,
}

/// Layers on the GPU.
#[derive(Args, Clone, Copy, Debug)]
pub struct GpuLayersArgs {
    /// Layers on the GPU with --backend gpu, the last ones of the model; those before run on the CPU [default: what fits]
    #[cfg(feature = "gpu")]
    #[arg(long, value_name = "N", value_parser = count::<1, GPU_LAYERS_MAX>, help_heading = "Model")]
    gpu_layers: Option<usize>,
}

/// The most layers that can be asked for.
#[cfg(feature = "gpu")]
const GPU_LAYERS_MAX: usize = 4096;

impl GpuLayersArgs {
    /// Returns the number of layers, if one was given.
    pub(crate) fn n_layers(self) -> Option<usize> {
        #[cfg(feature = "gpu")]
        return self.gpu_layers;
        #[cfg(not(feature = "gpu"))]
        None
    }
}

/// The backend, where it is one of this process.
#[derive(Args, Clone, Copy, Debug)]
pub struct LocalBackendArgs {
    /// What runs the model
    #[arg(long, value_name = "NAME", value_enum, default_value = "native", help_heading = "Model")]
    backend: LocalName,
    #[command(flatten)]
    gpu_layers: GpuLayersArgs,
}

impl LocalBackendArgs {
    /// Returns the backend.
    ///
    /// # Errors
    /// As [`LocalBackend::new`].
    pub fn chosen(self, load: &LoadArgs) -> Result<LocalBackend> {
        LocalBackend::new(self.backend, self.gpu_layers, load)
    }
}

impl LocalBackend {
    /// The CPU.
    pub const NATIVE: LocalBackend = LocalBackend { name: LocalName::Native, gpu_layers: None };

    /// Returns a backend by its name, with the options that are its own.
    ///
    /// # Errors
    /// A usage error that names an option which the backend does not keep.
    pub fn new(name: LocalName, gpu_layers: GpuLayersArgs, load: &LoadArgs) -> Result<LocalBackend> {
        let backend = LocalBackend { name, gpu_layers: gpu_layers.n_layers() };
        backend.check(load).map(|()| backend)
    }

    /// Returns whether a GPU computes.
    #[cfg(feature = "gpu")]
    pub fn is_gpu(self) -> bool {
        self.name == LocalName::Gpu
    }

    /// Checks that no option was given that the backend does not keep.
    ///
    /// # Errors
    /// A usage error that names one.
    fn check(self, load: &LoadArgs) -> Result<()> {
        #[cfg(feature = "gpu")]
        if self.gpu_layers.is_some() && !self.is_gpu() {
            return Err(Error::usage("--gpu-layers needs --backend gpu"));
        }
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
        #[cfg(not(feature = "gpu"))]
        let _ = load;
        match (self.name, option) {
            (LocalName::Native, _) => None,
            (_, "--no-head-shortlist") => Some("it has no such copy"),
            (LocalName::Candle, "--threads") => Some("set RAYON_NUM_THREADS"),
            (LocalName::Candle, _) => Some("it keeps keys and values as f32"),
            #[cfg(feature = "gpu")]
            (LocalName::Gpu, "--threads") => {
                self.gpu_layers.is_none().then_some("the GPU computes, unless --gpu-layers leaves some to the CPU")
            }
            #[cfg(feature = "gpu")]
            (LocalName::Gpu, _) => (load.kv != KvPolicy::F32).then_some("it keeps keys and values as f16 or f32"),
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
            ("a draft model", options.draft.is_some() && self.name == LocalName::Candle),
            ("a choice of KV policies", !options.kv_others.is_empty()),
            ("a size of the KV cache", options.kv_bytes.is_some() && self.name == LocalName::Candle),
        ];
        let unkept = native_only.into_iter().find(|(_, is_asked)| *is_asked && self.name != LocalName::Native);
        if let Some((what, _)) = unkept {
            return Err(BackendError::unsupported(format!("backend {self} has no use for {what}; use native")).into());
        }
        match self.name {
            LocalName::Native => Engine::load(path, options, progress),
            #[cfg(feature = "gpu")]
            LocalName::Gpu => {
                let model = self.load_on_gpu(path, options, gpu, progress)?;
                let n_ctx = Some(model.info().n_ctx);
                let vocabulary = Vocabulary::of_gguf(model.file())?;
                let mut runner = ModelRunner::new(Box::new(model), vocabulary);
                if let Some(DraftOptions { path, n_branches }) = &options.draft {
                    // On the same GPU, with the same context.
                    let own = LoadOptions { n_ctx, kv_bytes: None, draft: None, ..options.clone() };
                    let whole = LocalBackend { gpu_layers: None, ..self };
                    let draft = whole.load_on_gpu(path, &own, gpu, progress)?;
                    let vocabulary = Vocabulary::of_gguf(draft.file())?;
                    runner = runner.with_draft(ModelRunner::new(Box::new(draft), vocabulary), *n_branches)?;
                }
                Ok(Engine::new(runner))
            }
            LocalName::Candle => {
                let LoadOptions { n_ctx, n_seq_max, .. } = *options;
                let own = CandleOptions { n_ctx, n_seq_max, ..CandleOptions::default() };
                let model = CandleBackend::load(path, &own, progress)?;
                let vocabulary = Vocabulary::of_gguf(model.file())?;
                Ok(Engine::new(ModelRunner::new(Box::new(model), vocabulary)))
            }
        }
    }
}

#[cfg(feature = "gpu")]
impl LocalBackend {
    /// Loads a model's file to the GPU that is meant, and the layers that are not for it to the CPU.
    ///
    /// # Errors
    /// The backends'.
    pub fn load_on_gpu(
        self,
        path: &Path,
        options: &LoadOptions,
        gpu: Option<&str>,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> std::result::Result<WgpuBackend, BackendError> {
        let LoadOptions { n_ctx, n_seq_max, kv, kv_bytes, prefix_cache, .. } = *options;
        let gpu = GpuChoice::parse(gpu.unwrap_or_default());
        let own = WgpuOptions { n_ctx, n_seq_max, gpu, kv, kv_bytes, prefix_cache, ..WgpuOptions::default() };
        let mut first = |first: FirstLayers| load_first(path, options, first);
        match self.gpu_layers {
            Some(n_layers) => WgpuBackend::load_last(path, &own, n_layers, &mut first, progress),
            None => WgpuBackend::load_what_fits(path, &own, &mut first, progress),
        }
    }
}

/// Loads the first layers of a model to the CPU.
#[cfg(feature = "gpu")]
fn load_first(
    path: &Path,
    options: &LoadOptions,
    first: FirstLayers,
) -> std::result::Result<Box<dyn TokenModel>, BackendError> {
    let own = LoadOptions {
        n_ctx: Some(first.n_ctx),
        n_seq_max: first.n_seq_max,
        kv_bytes: Some(first.kv_bytes),
        kv_others: Vec::new(),
        adapter_bytes: 0,
        prefix_cache: false,
        cache_dir: None,
        packed_dir: None,
        draft: None,
        first_layers: Some(first.n_layers),
        ..options.clone()
    };
    Ok(Box::new(NativeBackend::load(path, &own, &mut |_| {})?))
}

impl std::fmt::Display for LocalBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.name {
            LocalName::Native => "native",
            #[cfg(feature = "gpu")]
            LocalName::Gpu => "gpu",
            LocalName::Candle => "candle",
        })
    }
}
