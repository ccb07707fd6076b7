//! The models that are served: loaded when somebody asks for them, dropped when nobody has for a while.
//!
//! Each is a slot with a name. Who asks for one that is not loaded waits until it is; others are answered meanwhile, and
//! two are never loaded at once. At most [`ServerOptions::models_max`](crate::ServerOptions) lie in memory: the one that
//! was used the longest ago makes room, as soon as nobody uses it.

mod slot;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use ruvllm_engine::tuner::Tuner;
use ruvllm_engine::{Engine, EngineError, KvPolicy, Service, ServiceOptions, ServiceStats};
use ruvllm_learning::autotune::Autotuner;
use ruvllm_learning::{CalibrationProgress, Learning};
use ruvllm_lora::manager::ManagerStats;
use ruvllm_sona::policy::NewPolicy;
use tokio::sync::Notify;

use crate::adapters::Adapters;
use crate::app::stopping;
use crate::auth::{Keys, Quota};
use crate::error::ApiError;
use crate::learning::OfModel;
use crate::llamacpp::Places;
use crate::metrics::Metrics;
use crate::options::{ServerError, ServerOptions};
use crate::routing::AUTO;
use crate::structure::Grammars;
use crate::witness::Witness;
use slot::{Inner, Slot, State, Waiting};

pub use slot::{Loader, ModelSource};
pub(crate) use slot::{Model, Standing};

/// A calibration is told of each time that so much more of it is done.
const CALIBRATION_PERCENT: usize = 10;

/// How long a model that could not be loaded is not tried again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// How often a model that waits for room looks whether another one is idle.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// All models of a server.
pub(crate) struct Models {
    slots: Vec<Arc<Slot>>,
    options: ServerOptions,
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
    pub(crate) fn new(
        sources: Vec<ModelSource>,
        options: &ServerOptions,
        metrics: &Arc<Metrics>,
        keys: &Arc<Keys>,
        witness: Option<Arc<Witness>>,
    ) -> Result<Models, ServerError> {
        let mut models = Models {
            slots: Vec::new(),
            options: options.clone(),
            metrics: Arc::clone(metrics),
            keys: Arc::clone(keys),
            witness,
            memory: tokio::sync::Mutex::new(()),
            preparing: Mutex::default(),
            n_preparing: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            unkept: Mutex::default(),
        };
        for ModelSource { name, engine, load, adapters, file, labels } in sources {
            let is_taken = |name: &&String| models.is_served(name);
            if let Some(name) = labels.aliases.iter().chain([&name]).find(is_taken) {
                return Err(ServerError::new(format!("two models are called '{name}'; give them different names")));
            }
            let name: Arc<str> = name.into();
            let (load, adapters) = (load.map(Arc::new), Arc::new(Adapters::new(adapters)));
            let (inner, changed, n_waiting) = (Mutex::new(Inner::new()), Notify::new(), AtomicUsize::new(0));
            let (file, labels) = (file.map(Into::into), Arc::new(labels));
            let slot = Arc::new(Slot { name, file, labels, load, adapters, inner, changed, n_waiting });
            match engine {
                // It reads for a while before it can learn: others hear meanwhile that the server is there.
                Some(engine) if models.options.learning.is_some() && !engine.info().is_encoder => {
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

    /// Starts the engines that have to be made ready to learn; those who ask for them wait until then.
    ///
    /// # Errors
    /// One cannot be made ready.
    pub(crate) fn prepare(&self) -> Result<(), EngineError> {
        let engines = std::mem::take(&mut *self.preparing.lock().unwrap_or_else(PoisonError::into_inner));
        for (slot, engine) in engines {
            let start = Instant::now();
            self.put(&slot, engine).inspect_err(|error| slot.set(State::Failed(error.to_string(), Instant::now())))?;
            self.n_preparing.fetch_sub(1, Ordering::AcqRel);
            tracing::info!(model = &*slot.name, ms = start.elapsed().as_millis() as u64, "ready to learn");
        }
        Ok(())
    }

    /// Returns whether an engine is being made ready to learn.
    pub(crate) fn is_preparing(&self) -> bool {
        self.n_preparing.load(Ordering::Acquire) > 0
    }

    /// Gives up what takes long.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
    }

    /// Tells how far a calibration is, from time to time, and ends it when the server stops.
    fn watch(&self, name: &str, progress: &CalibrationProgress, told: &mut usize) -> ControlFlow<()> {
        let percent = 100 * progress.n_done / progress.n_tokens.max(1);
        if percent >= *told + CALIBRATION_PERCENT {
            *told = percent;
            tracing::info!(model = name, percent, "calibrating");
        }
        if self.is_stopping.load(Ordering::Acquire) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Starts an engine in a slot.
    fn put(&self, slot: &Slot, engine: Engine) -> Result<(), EngineError> {
        let (info, mut engine) = (engine.info().clone(), engine);
        let kv_policies = engine.kv_policies();
        let learning = self.options.learning.clone().filter(|_| !info.is_encoder);
        let mut told = 0;
        let mut watch = |progress| self.watch(&slot.name, &progress, &mut told);
        let open = |options| Learning::open(&mut engine, options, &mut watch);
        let learning = learning.map(open).transpose()?;
        // Who has what was learned is told now, and not with the first answer.
        learning.iter().try_for_each(|learning| learning.claim("everybody"))?;
        let observer = Box::new(self.metrics.observer(&slot.name));
        let ServerOptions { scheduler, queue_max, .. } = &self.options;
        let tuner = self.options.autotune.then(|| self.autotuner(&slot.name, &kv_policies));
        let options = ServiceOptions { scheduler: scheduler.clone(), queue_max: *queue_max, observer, tuner };
        let quotas = self.keys.quotas();
        let adapters = slot.adapters.attach(&engine, &of_adapters(&quotas))?;
        let recorder = self.witness.as_ref().map(|witness| witness.recorder(&engine)).transpose()?;
        let (service, thread) = Service::start(engine, options)?;
        let learning = learning.map(|learning| OfModel::new(learning, service.clone()));
        adapters.iter().try_for_each(|adapters| service.share_memory(adapters))?;
        for (tenant, quota) in quotas {
            service.set_tenant_quota(tenant, quota.kv_bytes);
        }
        self.metrics.loaded(&slot.name);
        let (name, adapters) = (Arc::clone(&slot.name), Arc::clone(&slot.adapters));
        let (grammars, places) = (Grammars::default(), Places::default());
        let model = Model { name, service, grammars, adapters, learning, places, recorder };
        let mut inner = slot.lock();
        (inner.info, inner.told) = (Some(info), ServiceStats::default());
        inner.told_adapters = ManagerStats::default();
        drop(inner);
        slot.set(State::Loaded(Arc::new(model), thread));
        Ok(())
    }

    /// Makes what changes how a model's steps are filled. With a log it goes on from what was learned before.
    fn autotuner(&self, model: &str, kv_policies: &[KvPolicy]) -> Box<dyn Tuner> {
        let witness = self.witness.clone();
        let learned = move |policy: NewPolicy| {
            tracing::info!(context = policy.context, value = %policy.value, reason = policy.reason, "learned");
            witness.iter().for_each(|witness| witness.learned(policy.clone()));
        };
        let autotuner = Autotuner::new(model, &self.options.scheduler, Box::new(learned));
        let mut autotuner = autotuner.with_kv(model, kv_policies);
        self.witness.iter().for_each(|witness| autotuner.begin_with(witness.policies.as_ref()));
        Box::new(autotuner)
    }

    /// Returns how many models are served, loaded or not.
    pub(crate) fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns how all models stand.
    pub(crate) fn standings(&self) -> Vec<Standing> {
        self.slots.iter().map(|slot| slot.standing(&slot.lock())).collect()
    }

    /// Returns the adapters of all models.
    pub(crate) fn adapters(&self) -> Vec<(Arc<str>, Arc<Adapters>)> {
        self.slots.iter().map(|slot| (Arc::clone(&slot.name), Arc::clone(&slot.adapters))).collect()
    }

    /// Splits what a request calls a model into its name and that of an adapter: `model:adapter`, where no model is
    /// called so as a whole.
    pub(crate) fn split<'a>(&self, name: Option<&'a str>) -> (Option<&'a str>, Option<&'a str>) {
        let is_model = |name: &str| self.is_served(name);
        match name.and_then(|name| name.rsplit_once(':')) {
            Some((model, adapter)) if !name.is_some_and(is_model) && is_model(model) => (Some(model), Some(adapter)),
            _ => (name, None),
        }
    }

    /// Returns whether the one model there is answers by any name.
    pub(crate) fn is_any_name(&self) -> bool {
        self.options.any_model_name && self.slots.len() == 1
    }

    /// Returns whether a model is called so.
    pub(crate) fn is_served(&self, name: &str) -> bool {
        self.slots.iter().any(|slot| slot.is_called(name))
    }

    /// Returns the model of this name, or the first, loading it if it is not there and `loads` it. Where others have the memory
    /// it waits for one that nobody uses, for [`ServerOptions::room_wait`] at most.
    ///
    /// # Errors
    /// 404 for a name that is not served, 503 if it cannot be loaded now, 500 if it cannot be loaded, 400 if it is not to be.
    pub(crate) async fn get(self: &Arc<Models>, name: Option<&str>, loads: bool) -> Result<Arc<Model>, ApiError> {
        let slot = self.slot(name)?;
        let (_waiting, give_up) = (Waiting::at(slot), Instant::now() + self.options.room_wait);
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
    pub(crate) fn look(&self, name: Option<&str>) -> Result<(Standing, Option<Arc<Model>>), ApiError> {
        let slot = self.slot(name)?;
        let inner = slot.lock();
        let model = match &inner.state {
            State::Loaded(model, _) => Some(Arc::clone(model)),
            _ => None,
        };
        Ok((slot.standing(&inner), model))
    }

    /// Drops the model of this name, or the first, if it is loaded.
    ///
    /// # Errors
    /// 404 for a name that is not served, 503 while somebody uses it, 400 if it could not be loaded again.
    pub(crate) async fn let_go(&self, name: Option<&str>) -> Result<(), ApiError> {
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

    pub(crate) fn unknown(&self, name: &str) -> ApiError {
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

    /// Fills a slot that is queued, when there is room; it stays empty if all who asked are gone by then.
    async fn load(self: Arc<Models>, slot: Arc<Slot>) {
        let _memory = self.memory.lock().await;
        let since = Instant::now();
        while !self.is_wanted(&slot) || !self.make_room().await {
            if !self.is_wanted(&slot) {
                self.slots.iter().filter(|other| other.lock().is_leaving).for_each(|other| other.set_leaving(false));
                return slot.set(State::Unloaded);
            }
            if since.elapsed() >= self.options.room_patience {
                self.have_one_leave();
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        slot.set(State::Loading);
        let (models, of_slot) = (Arc::clone(&self), Arc::clone(&slot));
        let load = move || {
            let load = of_slot.load.as_ref().expect("a model that cannot be loaded is never dropped");
            models.put(&of_slot, load()?)
        };
        let start = Instant::now();
        let result = tokio::task::spawn_blocking(load).await;
        tracing::info!(model = &*slot.name, ms = start.elapsed().as_millis() as u64, "loaded");
        let result =
            result.map_err(|_| "internal error".to_owned()).and_then(|result| result.map_err(|e| e.to_string()));
        if let Err(line) = result {
            tracing::error!(model = &*slot.name, error = %line, "not loaded");
            slot.set(State::Failed(line, Instant::now()));
        }
    }

    /// Returns whether somebody waits for a model still.
    fn is_wanted(&self, slot: &Slot) -> bool {
        slot.n_waiting.load(Ordering::Acquire) > 0 && !self.is_stopping.load(Ordering::Acquire)
    }

    /// Drops models until one more may be loaded; returns false if others use as many as there may be.
    async fn make_room(&self) -> bool {
        loop {
            let (mut n_loaded, mut oldest) = (0, None::<(Instant, &Arc<Slot>)>);
            for slot in &self.slots {
                let inner = slot.lock();
                n_loaded += usize::from(matches!(inner.state, State::Loaded(..)));
                if let Some(since) = slot.unused_since(&inner).filter(|at| oldest.is_none_or(|(old, _)| *at < old)) {
                    oldest = Some((since, slot));
                }
            }
            if n_loaded < self.options.models_max.max(1) {
                return true;
            }
            let Some((_, slot)) = oldest else { return false };
            self.unload(slot).await;
        }
    }

    /// Has the model that was asked for the longest ago take no new requests, unless one of them does so already.
    fn have_one_leave(&self) {
        let loaded = |slot: &&Arc<Slot>| slot.load.is_some() && matches!(slot.lock().state, State::Loaded(..));
        let loaded: Vec<&Arc<Slot>> = self.slots.iter().filter(loaded).collect();
        if loaded.iter().any(|slot| slot.lock().is_leaving) {
            return;
        }
        if let Some(slot) = loaded.into_iter().min_by_key(|slot| slot.lock().used_at) {
            tracing::info!(model = &*slot.name, "takes no new requests until another model has had its turn");
            slot.set_leaving(true);
        }
    }

    fn no_room(&self) -> ApiError {
        let (n, s) = (self.options.models_max.max(1), self.options.room_wait.as_secs_f64());
        let line = format!(
            "no room for the model: {n} at once is the most, and others were in use for {s} s; try again, or start the server \
             with a larger --models-max"
        );
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("no_room_for_model");
        ApiError { retry_after_s: Some(1), ..error }
    }

    /// Drops a model that nobody uses.
    async fn unload(&self, slot: &Slot) {
        let Some((model, thread)) = slot.take_unused() else { return };
        model.service.drain(Duration::ZERO);
        let of_thread = Arc::clone(&model);
        let ended = tokio::task::spawn_blocking(move || {
            let engine = thread.join();
            // It was logged.
            let _ = of_thread.save_learned();
            engine.and_then(|engine| engine.flush_cache())
        });
        if let Ok(Err(error)) = ended.await {
            tracing::error!(model = &*slot.name, %error, "not dropped in order");
        }
        let last = model.service.stats();
        self.tell(slot, &last);
        slot.adapters.detach();
        drop(model);
        self.metrics.unloaded(&slot.name, &last);
        slot.set(State::Unloaded);
        tracing::info!(model = &*slot.name, "dropped");
    }

    /// Drops what was not used for [`ServerOptions::idle_timeout`], and lets go of engines that broke. Called once in a
    /// while.
    ///
    /// # Errors
    /// An engine broke that cannot be loaded again.
    pub(crate) async fn upkeep(&self) -> Result<(), ServerError> {
        for slot in &self.slots {
            let (is_due, has_ended) = {
                let mut inner = slot.lock();
                let is_used = matches!(&inner.state, State::Loaded(model, _) if Arc::strong_count(model) > 1);
                if is_used {
                    inner.used_at = Instant::now();
                }
                let limit = self.options.idle_timeout.unwrap_or(Duration::MAX);
                let is_due = slot.unused_since(&inner).is_some_and(|since| since.elapsed() >= limit);
                let is_broken = matches!(&inner.state, State::Loaded(model, _) if model.service.has_ended() && !model.service.is_stopping());
                (is_due, is_broken)
            };
            if has_ended {
                tracing::error!(model = &*slot.name, "the engine has ended by an internal error");
                if slot.load.is_none() {
                    return Err(ServerError::new("the engine's thread ended by an internal error"));
                }
                let last = slot.lock().told.clone();
                slot.adapters.detach();
                self.metrics.unloaded(&slot.name, &last);
                slot.set(State::Unloaded);
            } else if is_due {
                self.unload(slot).await;
            }
        }
        Ok(())
    }

    /// Tells the metrics what the engines do.
    pub(crate) fn tell_all(&self) {
        for slot in &self.slots {
            let stats = match &slot.lock().state {
                State::Loaded(model, _) => Some(model.service.stats()),
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

    /// Limits what a tenant's requests hold, in all models.
    pub(crate) fn set_quotas(&self) {
        let quotas = self.keys.quotas();
        for model in self.loaded() {
            quotas.iter().for_each(|&(tenant, quota)| model.service.set_tenant_quota(tenant, quota.kv_bytes));
            model.adapters.set_quotas(&of_adapters(&quotas));
        }
    }

    /// Returns those that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Arc<Model>> {
        let model = |slot: &Arc<Slot>| match &slot.lock().state {
            State::Loaded(model, _) => Some(Arc::clone(model)),
            _ => None,
        };
        self.slots.iter().filter_map(model).collect()
    }

    /// Returns what could not be kept when the engines ended.
    pub(crate) fn unkept(&self) -> Vec<String> {
        self.unkept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for the engines after they were drained, and returns those that are loaded.
    ///
    /// # Errors
    /// An engine's thread broke.
    pub(crate) fn join(&self) -> Result<Vec<Engine>, ServerError> {
        let mut engines = Vec::new();
        for slot in &self.slots {
            let state = std::mem::replace(&mut slot.lock().state, State::Unloaded);
            if let State::Loaded(model, thread) = state {
                model.service.drain(Duration::ZERO);
                let engine = thread.join();
                if let Some(why) = model.save_learned() {
                    let line =
                        format!("what {} learned since it was last kept is lost with this end: {why}", model.name);
                    self.unkept.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                }
                drop(model);
                engines.push(engine?);
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
