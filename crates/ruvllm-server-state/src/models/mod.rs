//! The models that are served: loaded when somebody asks for them, dropped when nobody has for a while.
//!
//! Each is a slot with a name. Who asks for one that is not loaded waits until it is; others are answered meanwhile, and
//! two are never loaded at once. At most [`ServerOptions::models_max`](crate::ServerOptions) lie in memory: the one that
//! was used the longest ago makes room, as soon as nobody uses it.

mod load;
mod remote;
mod slot;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::routing::AUTO;
use ruvllm_engine::{Engine, EngineError, Service, ServiceStats, ServiceThread};
use tokio::sync::Notify;

use crate::adapters::Adapters;
use crate::keys::{Keys, Quota};
use crate::metrics::Metrics;
use crate::options::{LiveOptions, ServerError, stopping};
use crate::witness::Witness;
use slot::{Inner, Labels, Slot, State, Waiting};

pub use remote::{RemoteEnd, RemoteEvent, RemoteJob, RemoteModel, RemoteTicket};
pub use slot::{DraftTextsOptions, Loader, ModelSource, ModelStatus, Responder, ServedModel};

/// New options of a model that is served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelUpdate {
    /// Names that requests may call it by beside its own.
    pub aliases: Vec<String>,
    /// Words for whoever lists models.
    pub tags: Vec<String>,
    /// Names of adapters, and their files.
    pub adapters: Vec<(String, PathBuf)>,
}

/// How long a model that could not be loaded is not tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// All models of a server.
pub struct Models {
    slots: Vec<Arc<Slot>>,
    options: Arc<LiveOptions>,
    metrics: Arc<Metrics>,
    keys: Arc<Keys>,
    witness: Option<Arc<Witness>>,
    /// Held while memory is made room in and filled.
    memory: tokio::sync::Mutex<()>,
    /// Engines that have to be made ready to learn before they are served.
    preparing: Mutex<Vec<(Arc<Slot>, Engine)>>,
    /// How many of them are left.
    n_preparing: AtomicUsize,
    is_stopping: AtomicBool,
    /// What could not be kept at the end, and why.
    unkept: Mutex<Vec<String>>,
}

impl Models {
    /// Starts those that are loaded.
    ///
    /// # Errors
    /// No model, two of one name, or what `Service::start` says.
    pub fn new(
        sources: Vec<ModelSource>,
        options: &Arc<LiveOptions>,
        metrics: &Arc<Metrics>,
        keys: &Arc<Keys>,
        witness: Option<Arc<Witness>>,
    ) -> Result<Models, ServerError> {
        let mut models = Models {
            slots: Vec::new(),
            options: Arc::clone(options),
            metrics: Arc::clone(metrics),
            keys: Arc::clone(keys),
            witness,
            memory: tokio::sync::Mutex::new(()),
            preparing: Mutex::default(),
            n_preparing: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            unkept: Mutex::default(),
        };
        for ModelSource { name, engine, load, remote, adapters, draft_texts, file, labels } in sources {
            let is_taken = |name: &&String| models.is_served(name);
            if let Some(name) = labels.aliases.iter().chain([&name]).find(is_taken) {
                return Err(ServerError::new(format!("two models are called '{name}'; give them different names")));
            }
            let name: Arc<str> = name.into();
            let (load, adapters) = (load.map(Arc::new), Arc::new(Adapters::new(adapters)));
            let (inner, changed, n_waiting) = (Mutex::new(Inner::new()), Notify::new(), AtomicUsize::new(0));
            let (file, labels) = (file.map(Into::into), RwLock::new(Arc::new(labels)));
            let is_remote = remote.is_some();
            let slot = Slot { name, file, labels, load, is_remote, adapters, draft_texts, inner, changed, n_waiting };
            let slot = Arc::new(slot);
            remote.into_iter().for_each(|source| models.put_remote(&slot, source));
            match engine {
                // It reads for a while before it can learn: others hear meanwhile that the server is there.
                Some(engine) if models.options.get().learning.is_some() && !engine.info().is_encoder => {
                    slot.set(State::Loading);
                    models
                        .preparing
                        .get_mut()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push((Arc::clone(&slot), engine));
                    *models.n_preparing.get_mut() += 1;
                }
                Some(engine) => models.put(&slot, engine)?,
                None => {}
            }
            models.slots.push(slot);
        }
        match models.slots.is_empty() {
            true => Err(ServerError::new("there is no model to serve; name one")),
            false => Ok(models),
        }
    }

    /// Returns whether an engine is being made ready to learn.
    pub fn is_preparing(&self) -> bool {
        self.n_preparing.load(Ordering::Acquire) > 0
    }

    /// Gives up what takes long.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Returns how many models are served, loaded or not.
    pub fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns how all models stand.
    pub fn statuses(&self) -> Vec<ModelStatus> {
        self.slots.iter().map(|slot| slot.status(&slot.lock())).collect()
    }

    /// Returns the adapters of all models.
    pub fn adapters(&self) -> Vec<(Arc<str>, Arc<Adapters>)> {
        self.slots.iter().map(|slot| (Arc::clone(&slot.name), Arc::clone(&slot.adapters))).collect()
    }

    /// Splits what a request calls a model into its name and that of an adapter: `model:adapter`, where no model is
    /// called so as a whole.
    pub fn split<'a>(&self, name: Option<&'a str>) -> (Option<&'a str>, Option<&'a str>) {
        let is_model = |name: &str| self.is_served(name);
        match name.and_then(|name| name.rsplit_once(':')) {
            Some((model, adapter)) if !name.is_some_and(is_model) && is_model(model) => (Some(model), Some(adapter)),
            _ => (name, None),
        }
    }

    /// Returns whether the one model there is answers by any name.
    pub fn is_any_name(&self) -> bool {
        self.options.get().any_model_name && self.slots.len() == 1
    }

    /// Returns whether a model is called so.
    pub fn is_served(&self, name: &str) -> bool {
        self.slots.iter().any(|slot| slot.is_called(name))
    }

    /// Returns the model of this name, or the first, loading it if it is not there and `loads` it. Where others have the memory
    /// it waits for one that nobody uses, for [`room_wait`](crate::ServerOptions::room_wait) at most.
    ///
    /// # Errors
    /// 404 for a name that is not served, 503 if it cannot be loaded now, 500 if it cannot be loaded, 400 if it is not to be.
    pub async fn get(self: &Arc<Models>, name: Option<&str>, loads: bool) -> Result<Arc<ServedModel>, ApiError> {
        let slot = self.slot(name)?;
        let (_waiting, give_up) = (Waiting::at(slot), Instant::now() + self.options.get().room_wait);
        loop {
            let changed = slot.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            let is_queued = {
                let mut inner = slot.lock();
                match &inner.state {
                    State::Loaded(..) if inner.is_leaving && Instant::now() >= give_up => return Err(self.no_room()),
                    State::Loaded(..) if inner.is_leaving => true,
                    State::Loaded(model, _) => {
                        let model = Arc::clone(model);
                        inner.used_at = Instant::now();
                        return Ok(model);
                    }
                    State::Failed(line, at) if at.elapsed() < RETRY_AFTER => return Err(not_loaded(line)),
                    State::Queued if Instant::now() >= give_up => return Err(self.no_room()),
                    State::Queued => true,
                    State::Loading => false,
                    State::Unloaded | State::Failed(..) if !loads => {
                        let line = format!("the model '{}' is not loaded; POST /models/load loads it", slot.name);
                        return Err(ApiError::bad("model", line).code("model_not_loaded"));
                    }
                    State::Unloaded | State::Failed(..) if self.is_stopping.load(Ordering::Acquire) => {
                        return Err(stopping());
                    }
                    State::Unloaded | State::Failed(..) => {
                        inner.state = State::Queued;
                        // Whoever asked may go; others wait for the model as well.
                        tokio::spawn(Arc::clone(self).load(Arc::clone(slot)));
                        true
                    }
                }
            };
            // That one is loaded takes as long as it takes.
            match is_queued {
                true => drop(tokio::time::timeout_at(give_up.into(), changed).await),
                false => changed.await,
            }
        }
    }

    /// Returns how the model of this name stands, or the first, and the model itself if it is loaded: it is not for this.
    ///
    /// # Errors
    /// 404 for a name that is not served.
    pub fn look(&self, name: Option<&str>) -> Result<(ModelStatus, Option<Arc<ServedModel>>), ApiError> {
        let slot = self.slot(name)?;
        let inner = slot.lock();
        let model = match &inner.state {
            State::Loaded(model, _) => Some(Arc::clone(model)),
            _ => None,
        };
        Ok((slot.status(&inner), model))
    }

    /// Drops the model of this name, or the first, if it is loaded.
    ///
    /// # Errors
    /// 404 for a name that is not served, 503 while somebody uses it, 400 if it could not be loaded again.
    pub async fn let_go(&self, name: Option<&str>) -> Result<(), ApiError> {
        let slot = self.slot(name)?;
        self.unload(slot).await;
        let is_loaded = matches!(slot.lock().state, State::Loaded(..));
        match (is_loaded, &slot.load) {
            (false, _) => Ok(()),
            (true, None) => Err(ApiError::bad("model", format!("'{}' cannot be loaded again, so it stays", slot.name))),
            (true, Some(_)) => {
                let line = format!("'{}' is in use; try again when its requests are over", slot.name);
                let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("model_in_use");
                Err(ApiError { retry_after_s: Some(1), ..error })
            }
        }
    }

    /// Returns the slot of this name, or the first.
    fn slot(&self, name: Option<&str>) -> Result<&Arc<Slot>, ApiError> {
        match name {
            None => Ok(&self.slots[0]),
            Some(_) if self.is_any_name() => Ok(&self.slots[0]),
            Some(name) => self.slots.iter().find(|slot| slot.is_called(name)).ok_or_else(|| self.unknown(name)),
        }
    }

    /// Returns the error for a name that no model has.
    pub fn unknown(&self, name: &str) -> ApiError {
        let names: Vec<String> = self.slots.iter().map(|slot| format!("'{}'", slot.name)).collect();
        let verb = if names.len() == 1 { "is" } else { "are" };
        let mut line = format!("the model '{name}' is not served here; {} {verb}", names.join(", "));
        if name == AUTO {
            line.push_str(", and --router DIR lets the server choose");
        } else if names.len() == 1 {
            line.push_str(", and with --any-model-name it answers by any");
        }
        let error = ApiError::new(StatusCode::NOT_FOUND, line).code("model_not_found");
        ApiError { param: Some("model".to_owned()), ..error }
    }

    /// Tells the metrics what the engines do.
    pub fn tell_all(&self) {
        for slot in &self.slots {
            let stats = match &slot.lock().state {
                State::Loaded(model, _) => model.engine().map(Service::stats),
                _ => None,
            };
            if let Some(stats) = stats {
                self.tell(slot, &stats);
            }
        }
    }

    fn tell(&self, slot: &Slot, stats: &ServiceStats) {
        let mut inner = slot.lock();
        self.metrics.tell(&slot.name, stats, &inner.told);
        inner.told = stats.clone();
        if let Some(stats) = slot.adapters.stats() {
            self.metrics.tell_adapters(&slot.name, &stats, &inner.told_adapters);
            inner.told_adapters = stats;
        }
    }

    /// Gives models other names, words and adapters, in the order that they are served in. Returns a line for each adapter that
    /// cannot be used. Not for threads that others wait for.
    ///
    /// # Errors
    /// A name that two models would have; nothing has changed then.
    pub fn update(&self, updates: &[ModelUpdate]) -> Result<Vec<String>, String> {
        let mut names: Vec<&str> = self.slots.iter().map(|slot| &*slot.name).collect();
        for alias in updates.iter().flat_map(|update| &update.aliases) {
            if names.contains(&alias.as_str()) {
                return Err(format!("two models are called '{alias}'; give them different names"));
            }
            names.push(alias);
        }
        let mut lines = Vec::new();
        for (slot, ModelUpdate { aliases, tags, adapters }) in self.slots.iter().zip(updates) {
            slot.set_labels(Labels { aliases: aliases.clone(), tags: tags.clone() });
            lines.extend(slot.adapters.set_named(adapters));
        }
        Ok(lines)
    }

    /// Sets how many requests may wait in each engine.
    pub fn set_queue_max(&self, n: usize) {
        self.loaded().iter().filter_map(|model| model.engine()).for_each(|service| service.set_queue_max(n));
    }

    /// Limits what a tenant's requests hold, in all models.
    pub fn set_quotas(&self) {
        let quotas = self.keys.quotas();
        for model in self.loaded() {
            if let Some(service) = model.engine() {
                quotas.iter().for_each(|&(tenant, quota)| service.set_tenant_quota(tenant, quota.kv_bytes));
            }
            model.adapters.set_quotas(&of_adapters(&quotas));
        }
    }

    /// Forgets the earlier texts of a tenant that drafts are made of: of all models, in memory and on disk. Not for threads that
    /// others wait for.
    ///
    /// # Errors
    /// An engine's thread has ended, or a file cannot be written.
    pub fn forget_texts(&self, tenant: u64) -> Result<(), EngineError> {
        let loaded = self.loaded();
        loaded.iter().try_for_each(|model| model.forget_texts(tenant))?;
        let histories = loaded.iter().filter_map(|model| model.draft_history.as_ref());
        let in_use: Vec<PathBuf> = histories.filter_map(|history| Some(history.path()?.to_owned())).collect();
        self.slots.iter().try_for_each(|slot| slot.draft_texts.forget(tenant, &in_use))
    }

    /// Forgets the texts of tenants that have no key any more. Not for threads that others wait for.
    pub fn forget_gone(&self) {
        let tenants = self.keys.tenants();
        for model in self.loaded() {
            if let Err(error) = model.forget_other_texts(&tenants) {
                tracing::error!(model = &*model.name, %error, "texts of a revoked key are not forgotten");
            }
        }
    }

    /// Returns those that are loaded.
    pub fn loaded(&self) -> Vec<Arc<ServedModel>> {
        let model = |slot: &Arc<Slot>| match &slot.lock().state {
            State::Loaded(model, _) => Some(Arc::clone(model)),
            _ => None,
        };
        self.slots.iter().filter_map(model).collect()
    }

    /// Returns what could not be kept when the engines ended.
    pub fn unkept(&self) -> Vec<String> {
        self.unkept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the engines after they were drained, and returns those that are loaded.
    ///
    /// # Errors
    /// An engine's thread broke.
    pub fn join(&self) -> Result<Vec<Engine>, ServerError> {
        let mut engines = Vec::new();
        for slot in &self.slots {
            let state = std::mem::replace(&mut slot.lock().state, State::Unloaded);
            if let State::Loaded(model, thread) = state {
                model.drain(Duration::ZERO);
                let engine = thread.map(ServiceThread::join).transpose();
                model.remote().into_iter().for_each(|remote| remote.wait());
                if let Some(why) = model.save_learned() {
                    let line =
                        format!("what {} learned since it was last kept is lost with this end: {why}", model.name);
                    self.unkept.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
                drop(model);
                engines.extend(engine?);
            }
        }
        Ok(engines)
    }
}

/// Returns what of quotas limits adapters.
fn of_adapters(quotas: &[(u64, Quota)]) -> Vec<(u64, Option<usize>)> {
    quotas.iter().map(|&(tenant, quota)| (tenant, quota.adapter_bytes)).collect()
}

fn not_loaded(line: &str) -> ApiError {
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("the model cannot be loaded: {line}"));
    ApiError { retry_after_s: Some(RETRY_AFTER.as_secs()), ..error.code("model_not_loaded") }
}
