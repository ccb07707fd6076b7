//! `--backend`: what runs a model.

use std::path::Path;

use clap::{Args, ValueEnum};
use ruvllm_backend::BackendError;
use ruvllm_candle::{CandleBackend, CandleOptions};
use ruvllm_engine::{Engine, EngineError, KvPolicy, LoadOptions, LoadProgress, ModelRunner, Vocabulary};

use crate::tools::args::LoadArgs;
use crate::tools::error::{Error, Result};

/// Names of backends that run a model in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LocalBackend {
    /// This machine's CPU, by kernels for its instruction set
    #[default]
    Native,
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
        let unkept = [
            ("--threads", load.threads.is_some(), "set RAYON_NUM_THREADS"),
            ("--kv", load.kv != KvPolicy::F16, "it keeps keys and values as f32"),
            ("--no-head-shortlist", load.no_head_shortlist, "it has no such copy"),
        ];
        match unkept.into_iter().find(|&(_, is_given, _)| is_given && self == LocalBackend::Candle) {
            Some((name, _, why)) => Err(Error::usage(format_args!("{name} is not for --backend candle: {why}"))),
            None => Ok(()),
        }
    }

    /// Loads a model's file.
    ///
    /// # Errors
    /// The backend's; the options ask for what only native has.
    pub fn load(
        self,
        path: &Path,
        options: &LoadOptions,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> std::result::Result<Engine, EngineError> {
        if self == LocalBackend::Native {
            return Engine::load(path, options, progress);
        }
        let native_only = [
            ("a draft model", options.draft.is_some()),
            ("a size of the KV cache", options.kv_bytes.is_some()),
            ("a choice of KV policies", !options.kv_others.is_empty()),
        ];
        if let Some((what, _)) = native_only.into_iter().find(|(_, is_asked)| *is_asked) {
            return Err(BackendError::unsupported(format!("backend candle has no use for {what}; use native")).into());
        }
        let own = CandleOptions { n_ctx: options.n_ctx, n_seq_max: options.n_seq_max, ..CandleOptions::default() };
        let model = CandleBackend::load(path, &own, progress)?;
        let vocabulary = Vocabulary::of_gguf(model.file())?;
        Ok(Engine::new(ModelRunner::new(Box::new(model), vocabulary)))
    }
}
