//! The context of every command: settings, output, and loading models with a progress bar.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ruvllm_engine::{Engine, EngineError, ErrorKind, LoadOptions, LoadProgress, ModelInfo};
use ruvllm_hub::{FetchContext, Progress, Registry, Store, StoreOptions};

use crate::args::cache::CacheArgs;
use crate::backend::LocalBackend;
use crate::config::Invocation;
use crate::error::{Result, one_line};
use crate::folders::Folders;
use crate::output::Ui;
use crate::settings::ProcessSettings;

/// Listener to long work, for a program that shows it by itself.
pub type Listener = Arc<dyn Progress + Send + Sync>;

/// Context of every command.
pub struct App {
    /// The environment's settings.
    pub settings: ProcessSettings,
    /// Where to write.
    pub ui: Ui,
    /// Takes the progress of long work in place of `ui`.
    listener: Option<Listener>,
    /// The command line.
    pub invocation: Invocation,
    /// The settings file of this process, if there is one.
    pub config: Option<PathBuf>,
    registry: OnceLock<Registry>,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("settings", &self.settings).field("ui", &self.ui).finish_non_exhaustive()
    }
}

impl App {
    /// Asks the standard streams and keeps the settings.
    pub fn new(settings: ProcessSettings, invocation: Invocation, config: Option<PathBuf>) -> App {
        let ui = Ui::new(settings.no_color);
        App { settings, ui, invocation, config, listener: None, registry: OnceLock::new() }
    }

    /// Returns the same context, whose progress is told to `listener`.
    pub fn listened_by(self, listener: Listener) -> App {
        App { listener: Some(listener), ..self }
    }

    /// Returns the same context, whose lines go to the log of a server.
    pub fn in_log(&self) -> App {
        App {
            settings: self.settings.clone(),
            ui: self.ui.in_log(),
            invocation: self.invocation.clone(),
            config: self.config.clone(),
            listener: self.listener.clone(),
            registry: self.registry.clone(),
        }
    }

    /// Returns the names of models. A file of the person's own that cannot be used costs a warning.
    pub fn registry(&self) -> &Registry {
        self.registry.get_or_init(|| {
            let registry = Registry::load(self.settings.registry_file.as_deref());
            registry.problem().into_iter().for_each(|line| self.ui.warn(line));
            registry
        })
    }

    fn progress(&self) -> &dyn Progress {
        match &self.listener {
            Some(listener) => &**listener,
            None => &self.ui,
        }
    }

    /// Returns the folder of pulled models.
    pub fn store(&self) -> Store<'_> {
        self.store_as(false)
    }

    /// Returns the folder of pulled models; offline, nobody is asked for what is not on this machine.
    pub fn store_as(&self, is_offline: bool) -> Store<'_> {
        let context = self.fetch_context(is_offline);
        Store::new(StoreOptions {
            dir: self.settings.models_dir(),
            ollama_dir: self.settings.ollama_dir.as_deref(),
            sources: self.settings.sources.as_deref(),
            registry: self.registry(),
            context,
        })
    }

    /// Returns the file of a model that is on this machine: one that is still to be pulled is none that an output could replace.
    pub fn model_file(&self, spec: &str) -> Option<PathBuf> {
        self.store().find(spec, false).ok()
    }

    /// Returns what sources of models need.
    pub fn fetch_context(&self, is_offline: bool) -> FetchContext<'_> {
        FetchContext { hub: &self.settings.hub, converter: &Folders, progress: self.progress(), is_offline }
    }

    /// Loads a model with a progress bar, and with the cache as `cache` says. A folder on disk that cannot be used, and
    /// was not asked for, costs a line on standard error.
    ///
    /// # Errors
    /// The engine's.
    pub fn load_cached(
        &self,
        backend: LocalBackend,
        path: &Path,
        options: LoadOptions,
        cache: &CacheArgs,
    ) -> Result<Engine> {
        let options = cache.apply(options, &self.settings);
        let engine = match self.try_load(backend, path, &options) {
            Err(error) if error.kind() == ErrorKind::Cache && !cache.must_have_disk() => {
                eprintln!("warning: nothing is kept of this run: {}", one_line(&error.to_string()));
                // Repacked weights are there for any number of processes.
                let packed_dir = options.cache_dir.clone();
                self.load_on(backend, path, &LoadOptions { cache_dir: None, packed_dir, ..options })
            }
            loaded => Ok(loaded?),
        }?;
        self.warn_context(engine.info());
        Ok(engine)
    }

    /// Warns where a context is longer than the model was trained for.
    pub fn warn_context(&self, info: &ModelInfo) {
        if info.n_ctx > info.n_ctx_train {
            let (n_ctx, n_ctx_train) = (info.n_ctx, info.n_ctx_train);
            self.ui.warn(&format!(
                "a context of {n_ctx} tokens, and {} was trained with {n_ctx_train}: beyond them answers may make no sense",
                info.name
            ));
        }
    }

    /// Loads a model on the native backend with a progress bar.
    ///
    /// # Errors
    /// The engine's.
    pub fn load(&self, path: &Path, options: &LoadOptions) -> Result<Engine> {
        self.load_on(LocalBackend::NATIVE, path, options)
    }

    /// Loads a model on a backend with a progress bar.
    ///
    /// # Errors
    /// The backend's.
    pub fn load_on(&self, backend: LocalBackend, path: &Path, options: &LoadOptions) -> Result<Engine> {
        Ok(self.try_load(backend, path, options)?)
    }

    fn try_load(&self, backend: LocalBackend, path: &Path, options: &LoadOptions) -> Result<Engine, EngineError> {
        let gpu = self.settings.gpu.as_deref();
        if let Some(listener) = &self.listener {
            let mut task = None;
            let mut tell = |progress: LoadProgress| {
                let task = task.get_or_insert_with(|| listener.begin("loading", Some(progress.total_bytes)));
                task.set(progress.done_bytes);
            };
            unless_cancelled(&**listener)?;
            let engine = backend.load(path, options, gpu, &mut tell)?;
            return unless_cancelled(&**listener).map(|()| engine);
        }
        let n_bytes = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let bar = self.ui.bytes_bar("loading", n_bytes).of(path.display().to_string());
        let loaded = backend.load(path, options, gpu, &mut |progress| {
            bar.set_length(progress.total_bytes);
            bar.set_position(progress.done_bytes);
        });
        bar.finish_and_clear();
        loaded
    }
}

/// Goes on unless somebody has ended the loading.
///
/// # Errors
/// With kind `Cancelled` where nobody wants the model any more.
fn unless_cancelled(listener: &dyn Progress) -> Result<(), EngineError> {
    match listener.is_cancelled() {
        true => Err(EngineError::new(ErrorKind::Cancelled, "the loading was ended")),
        false => Ok(()),
    }
}
