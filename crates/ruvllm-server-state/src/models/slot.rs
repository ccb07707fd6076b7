//! A place for a model, with a name: what is known of it, loaded or not, and what fills it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ruvllm_api::error::ApiError;
use ruvllm_api::remote::missing;
use ruvllm_backend::Completions;
use ruvllm_engine::{Engine, EngineError, ModelInfo, Service, ServiceStats, ServiceThread};
use ruvllm_learning::{DraftHistory, DraftHistoryFile};
use ruvllm_lora::manager::ManagerStats;
use ruvllm_witness::Recorder;
use tokio::sync::Notify;

use super::remote::RemoteModel;
use crate::adapters::{AdapterOptions, Adapters};
use crate::grammars::Grammars;
use crate::learning::ModelState;
use crate::slots::LastRequests;

/// Loads an engine, on a thread of its own.
pub type Loader = Box<dyn Fn() -> Result<Engine, EngineError> + Send + Sync>;

/// A model to serve.
pub struct ModelSource {
    pub(super) name: String,
    pub(super) engine: Option<Engine>,
    pub(super) load: Option<Loader>,
    pub(super) remote: Option<RemoteSource>,
    pub(super) adapters: AdapterOptions,
    pub(super) draft_texts: DraftTextsOptions,
    pub(super) file: Option<String>,
    pub(super) labels: Labels,
}

/// The other server that answers for a model.
pub(super) struct RemoteSource {
    pub(super) backend: Arc<dyn Completions>,
    /// Requests that are sent to it at once.
    pub(super) n_running_max: usize,
}

/// Earlier prompts and answers of tenants, of which a model's drafts are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DraftTextsOptions {
    /// The most bytes of memory for them; 0 makes drafts of the request's own text alone.
    pub bytes_max: usize,
    /// Folder that keeps them for the next start; `None` keeps them in memory.
    pub folder: Option<PathBuf>,
    /// File with the key that they are encrypted with there.
    pub key: Option<PathBuf>,
}

impl Default for DraftTextsOptions {
    /// 32 MiB in memory.
    fn default() -> DraftTextsOptions {
        DraftTextsOptions { bytes_max: 32 << 20, folder: None, key: None }
    }
}

impl DraftTextsOptions {
    /// Removes a tenant's texts from the files of models that are not loaded: those that are have a file of `loaded`.
    ///
    /// # Errors
    /// A file cannot be opened or written.
    pub(super) fn forget(&self, tenant: u64, loaded: &[PathBuf]) -> Result<(), EngineError> {
        let files = self.folder.as_deref().map(DraftHistoryFile::list).unwrap_or_default();
        let mut others = files.iter().filter(|file| !loaded.contains(&file.path));
        others.try_for_each(|file| file.forget(tenant, self.key.as_deref()))
    }
}

/// Other names of a model, and words about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Labels {
    /// Names that requests may call it by as well.
    pub aliases: Vec<String>,
    /// Words for whoever lists models.
    pub tags: Vec<String>,
}

impl ModelSource {
    /// A model that `load` loads whenever it is asked for and not there.
    pub fn new(name: impl Into<String>, load: Loader) -> ModelSource {
        ModelSource { load: Some(load), ..ModelSource::named(name.into()) }
    }

    /// A model that is loaded already. It is never dropped, unless [`ModelSource::with_engine`] gave it to one that can be
    /// loaded again.
    pub fn loaded(name: impl Into<String>, engine: Engine) -> ModelSource {
        ModelSource { engine: Some(engine), ..ModelSource::named(name.into()) }
    }

    /// A model that another server answers for: so many requests are sent to it at once, and others wait here. It is never
    /// dropped.
    pub fn remote(name: impl Into<String>, backend: Arc<dyn Completions>, n_running_max: usize) -> ModelSource {
        let remote = Some(RemoteSource { backend, n_running_max: n_running_max.max(1) });
        ModelSource { remote, ..ModelSource::named(name.into()) }
    }

    fn named(name: String) -> ModelSource {
        ModelSource {
            name,
            engine: None,
            load: None,
            remote: None,
            adapters: AdapterOptions::default(),
            draft_texts: DraftTextsOptions::default(),
            file: None,
            labels: Labels::default(),
        }
    }

    /// Tells clients what the file is called; where it lies they need not know.
    pub fn with_file(self, file: impl Into<String>) -> ModelSource {
        ModelSource { file: Some(file.into()), ..self }
    }

    /// Lets requests call it by other names as well.
    pub fn with_aliases(mut self, aliases: Vec<String>) -> ModelSource {
        self.labels.aliases = aliases;
        self
    }

    /// Tells clients these words about it; nothing depends on them.
    pub fn with_tags(mut self, tags: Vec<String>) -> ModelSource {
        self.labels.tags = tags;
        self
    }

    /// Begins with an engine that is loaded already.
    pub fn with_engine(self, engine: Engine) -> ModelSource {
        ModelSource { engine: Some(engine), ..self }
    }

    /// Gives it adapters, and memory for them.
    pub fn with_adapters(self, adapters: AdapterOptions) -> ModelSource {
        ModelSource { adapters, ..self }
    }

    /// Says what is kept of earlier prompts and answers, of which drafts are made.
    pub fn with_draft_texts(self, draft_texts: DraftTextsOptions) -> ModelSource {
        ModelSource { draft_texts, ..self }
    }
}

impl std::fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelSource").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A loaded model.
pub struct ServedModel {
    /// Its name in requests.
    pub name: Arc<str>,
    /// The end that answers: an engine here, or another server.
    pub answers: Responder,
    /// Compiled grammars of the model.
    pub grammars: Grammars,
    /// Adapters by name.
    pub adapters: Arc<Adapters>,
    /// Learned state, if it is to learn.
    pub learning: Option<ModelState>,
    /// The last requests of its slots.
    pub slots: LastRequests,
    /// Puts its answers on record.
    pub recorder: Option<Recorder>,
    /// Earlier texts that drafts are made of, on disk.
    pub draft_history: Option<DraftHistory>,
}

/// The side that answers for a model.
pub enum Responder {
    /// An engine of this process.
    Engine(Service),
    /// Another server.
    Remote(Arc<RemoteModel>),
}

impl ServedModel {
    /// Returns the engine that runs it.
    ///
    /// # Errors
    /// 501: another server answers for it, and gives no tokens.
    pub fn service(&self) -> Result<&Service, ApiError> {
        self.engine().ok_or_else(|| missing(&self.name, "tokens"))
    }

    /// Returns the engine that runs it, if one of this process does.
    pub fn engine(&self) -> Option<&Service> {
        match &self.answers {
            Responder::Engine(service) => Some(service),
            Responder::Remote(_) => None,
        }
    }

    /// Returns the other server that answers for it, if one does.
    pub fn remote(&self) -> Option<&Arc<RemoteModel>> {
        match &self.answers {
            Responder::Engine(_) => None,
            Responder::Remote(remote) => Some(remote),
        }
    }

    /// Returns how many requests can run at once.
    pub fn n_running_max(&self) -> usize {
        match &self.answers {
            Responder::Engine(service) => service.n_running_max(),
            Responder::Remote(remote) => remote.n_running_max(),
        }
    }

    /// Returns how many requests can wait and run together.
    pub fn n_inside_max(&self) -> usize {
        match &self.answers {
            Responder::Engine(service) => service.n_inside_max(),
            Responder::Remote(remote) => remote.n_inside_max(),
        }
    }

    /// Returns how many requests wait or run.
    pub fn n_inside(&self) -> usize {
        match &self.answers {
            Responder::Engine(service) => service.n_inside(),
            Responder::Remote(remote) => remote.n_inside(),
        }
    }

    /// Takes nothing new from now on, and ends after `limit` what is not over by then.
    pub fn drain(&self, limit: Duration) {
        match &self.answers {
            Responder::Engine(service) => service.drain(limit),
            Responder::Remote(remote) => remote.drain(limit),
        }
    }

    /// Returns after how many seconds a request that was refused is likely to be taken.
    pub fn retry_after_s(&self) -> u64 {
        match &self.answers {
            Responder::Engine(service) => service.retry_after_s(),
            Responder::Remote(_) => 1,
        }
    }

    /// Keeps what was learned; returns why it could not.
    pub fn save_learned(&self) -> Option<String> {
        self.learning.as_ref()?.save(&self.name)
    }

    /// Logs why earlier texts could not be kept on disk lately.
    pub fn tell_unkept_texts(&self) {
        if let Some(error) = self.draft_history.as_ref().and_then(DraftHistory::take_failure) {
            tracing::error!(model = &*self.name, error, "texts for drafts were not written, and are in memory only");
        }
    }

    /// Forgets the earlier texts of a tenant that drafts are made of, in memory and on disk. Not for threads that others wait for.
    ///
    /// # Errors
    /// The engine's thread has ended, or the file cannot be written.
    pub fn forget_texts(&self, tenant: u64) -> Result<(), EngineError> {
        self.engine().map_or(Ok(()), |service| service.forget_history(tenant))?;
        self.draft_history.as_ref().map_or(Ok(()), |history| history.forget(tenant))
    }

    /// Forgets the earlier texts of all other tenants, as [`ServedModel::forget_texts`] does.
    ///
    /// # Errors
    /// As [`ServedModel::forget_texts`].
    pub fn forget_other_texts(&self, tenants: &[u64]) -> Result<(), EngineError> {
        self.engine().map_or(Ok(()), |service| service.forget_other_histories(tenants.to_vec()))?;
        self.draft_history.as_ref().map_or(Ok(()), |history| history.forget_others(tenants))
    }
}

/// State of a slot, for those who ask.
pub struct ModelStatus {
    /// Name that requests give.
    pub name: Arc<str>,
    /// `loaded`, `loading`, `unloaded` or `failed`.
    pub state: &'static str,
    /// As it was when it was last loaded.
    pub info: Option<ModelInfo>,
    /// Whether another server answers for it.
    pub is_remote: bool,
    /// Adapters by name.
    pub adapters: Arc<Adapters>,
    /// The name of its file, if that is known.
    pub file: Option<Arc<str>>,
    /// Labels of the model in metrics.
    pub labels: Arc<Labels>,
}

impl ModelStatus {
    /// Returns whether requests may call it so.
    pub fn is_called(&self, name: &str) -> bool {
        *self.name == *name || self.labels.aliases.iter().any(|alias| alias == name)
    }
}

/// A place for a model.
pub(super) struct Slot {
    pub(super) name: Arc<str>,
    pub(super) file: Option<Arc<str>>,
    pub(super) labels: RwLock<Arc<Labels>>,
    pub(super) load: Option<Arc<Loader>>,
    pub(super) is_remote: bool,
    pub(super) adapters: Arc<Adapters>,
    pub(super) draft_texts: DraftTextsOptions,
    pub(super) inner: Mutex<Inner>,
    /// The state has changed.
    pub(super) changed: Notify,
    /// Requests that wait for it.
    pub(super) n_waiting: AtomicUsize,
}

/// Counts a request among those that wait for a slot, for as long as it lives.
pub(super) struct Waiting<'s>(&'s AtomicUsize);

impl Waiting<'_> {
    pub(super) fn at(slot: &Slot) -> Waiting<'_> {
        slot.n_waiting.fetch_add(1, Ordering::AcqRel);
        Waiting(&slot.n_waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What of a slot changes.
pub(super) struct Inner {
    pub(super) state: State,
    pub(super) info: Option<ModelInfo>,
    pub(super) used_at: Instant,
    /// Whether it is to make room for another one: it takes no new requests.
    pub(super) is_leaving: bool,
    /// What the metrics know of the engine that is loaded, and of its adapters.
    pub(super) told: ServiceStats,
    pub(super) told_adapters: ManagerStats,
}

impl Inner {
    pub(super) fn new() -> Inner {
        Inner {
            state: State::Unloaded,
            info: None,
            used_at: Instant::now(),
            is_leaving: false,
            told: ServiceStats::default(),
            told_adapters: ManagerStats::default(),
        }
    }
}

/// Whether a slot is filled.
pub(super) enum State {
    Unloaded,
    /// It is to be loaded when there is room.
    Queued,
    Loading,
    /// With the thread of its engine, if it has one.
    Loaded(Arc<ServedModel>, Option<ServiceThread>),
    Failed(String, Instant),
}

impl State {
    /// Ends a model that nobody has asked anything yet.
    pub(super) fn end(self) -> Result<(), EngineError> {
        let State::Loaded(model, thread) = self else { return Ok(()) };
        model.drain(Duration::ZERO);
        thread.map(ServiceThread::join).transpose().map(drop)
    }
}

impl Slot {
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, state: State) {
        self.fill(self.lock(), state);
    }

    /// Sets the state, or gives it back where a flag was set before.
    pub(super) fn set_unless(&self, is_late: &AtomicBool, state: State) -> Option<State> {
        let inner = self.lock();
        if is_late.load(Ordering::Acquire) {
            return Some(state);
        }
        self.fill(inner, state);
        None
    }

    fn fill(&self, mut inner: MutexGuard<'_, Inner>, state: State) {
        (inner.state, inner.used_at, inner.is_leaving) = (state, Instant::now(), false);
        drop(inner);
        self.changed.notify_waiters();
    }

    pub(super) fn status(&self, inner: &Inner) -> ModelStatus {
        let state = match inner.state {
            State::Unloaded => "unloaded",
            State::Queued | State::Loading => "loading",
            State::Loaded(..) => "loaded",
            State::Failed(..) => "failed",
        };
        let (name, adapters) = (Arc::clone(&self.name), Arc::clone(&self.adapters));
        ModelStatus {
            name,
            state,
            info: inner.info.clone(),
            is_remote: self.is_remote,
            adapters,
            file: self.file.clone(),
            labels: self.labels(),
        }
    }

    /// Returns its other names, and words about it.
    pub(super) fn labels(&self) -> Arc<Labels> {
        Arc::clone(&self.labels.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives it other names and words.
    pub(super) fn set_labels(&self, labels: Labels) {
        *self.labels.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(labels);
    }

    /// Returns whether requests may call it so.
    pub(super) fn is_called(&self, name: &str) -> bool {
        *self.name == *name || self.labels().aliases.iter().any(|alias| alias == name)
    }

    /// Has it take no new requests, or take them again.
    pub(super) fn set_leaving(&self, is_leaving: bool) {
        self.lock().is_leaving = is_leaving;
        self.changed.notify_waiters();
    }

    /// Returns since when nobody uses it or is about to, if it is loaded and can be loaded again. Uses begin under the lock, so
    /// that nobody begins one meanwhile.
    pub(super) fn unused_since(&self, inner: &Inner) -> Option<Instant> {
        // Those who wait for one that leaves wait until it is back.
        let is_awaited = !inner.is_leaving && self.n_waiting.load(Ordering::Acquire) > 0;
        match &inner.state {
            State::Loaded(model, _) if self.load.is_some() && Arc::strong_count(model) == 1 && !is_awaited => {
                (model.n_inside() == 0).then_some(inner.used_at)
            }
            _ => None,
        }
    }

    /// Takes out what is loaded, if nobody uses it.
    pub(super) fn take_unused(&self) -> Option<(Arc<ServedModel>, Option<ServiceThread>)> {
        let mut inner = self.lock();
        self.unused_since(&inner)?;
        // Who asks now waits until it is gone: two of them would need twice the memory.
        match std::mem::replace(&mut inner.state, State::Loading) {
            State::Loaded(model, thread) => Some((model, thread)),
            _ => None,
        }
    }
}
