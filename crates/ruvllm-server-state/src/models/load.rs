//! Filling the slots of models, and making room for them.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_engine::tuner::Tuner;
use ruvllm_engine::{Engine, EngineError, ErrorKind, KvPolicy, Service, ServiceOptions, ServiceStats, ServiceThread};
use ruvllm_learning::autotune::Autotuner;
use ruvllm_learning::{CalibrationProgress, DraftHistory, DraftHistoryOptions, Learning};
use ruvllm_lora::manager::ManagerStats;
use ruvllm_sona::policy::NewPolicy;

use super::remote::RemoteModel;
use super::slot::{DraftTextsOptions, RemoteSource, Responder, ServedModel, Slot, State};
use super::{Models, of_adapters};
use crate::grammars::Grammars;
use crate::learning::ModelState;
use crate::options::{ServerError, ServerOptions};
use crate::slots::LastRequests;

/// A calibration is told of each time that so much more of it is done.
const CALIBRATION_PERCENT: usize = 10;

/// How often a model that waits for room looks whether another one is idle.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

impl Models {
    /// Starts the engines that have to be made ready to learn; those who ask for them wait until then.
    ///
    /// # Errors
    /// One cannot be made ready.
    pub fn prepare(&self) -> Result<(), EngineError> {
        let engines = std::mem::take(&mut *self.preparing.lock().unwrap_or_else(PoisonError::into_inner));
        for (slot, engine) in engines {
            let start = Instant::now();
            self.put(&slot, engine).inspect_err(|error| slot.set(State::Failed(error.to_string(), Instant::now())))?;
            self.n_preparing.fetch_sub(1, Ordering::AcqRel);
            tracing::info!(model = &*slot.name, ms = start.elapsed().as_millis() as u64, "ready to learn");
        }
        Ok(())
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

    /// Starts an engine in a slot, unless the server stops meanwhile.
    pub(super) fn put(&self, slot: &Slot, engine: Engine) -> Result<(), EngineError> {
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(stopped());
        }
        let (info, mut engine) = (engine.info().clone(), engine);
        let kv_policies = engine.kv_policies();
        let draft_history = self.open_texts(slot, &mut engine)?;
        let learning = self.options.get().learning.clone().filter(|_| !info.is_encoder);
        let mut told = 0;
        let mut watch = |progress| self.watch(&slot.name, &progress, &mut told);
        let open = |options| Learning::open(&mut engine, options, &mut watch);
        let learning = learning.map(open).transpose()?;
        // Who has what was learned is told now, and not with the first answer.
        learning.iter().try_for_each(|learning| learning.claim("everybody"))?;
        let observer = Box::new(self.metrics.observer(&slot.name));
        let options = self.options.get();
        let ServerOptions { scheduler, queue_max, .. } = &*options;
        let tuner = options.autotune.then(|| self.autotuner(&slot.name, &kv_policies));
        let options = ServiceOptions { scheduler: scheduler.clone(), queue_max: *queue_max, observer, tuner };
        let quotas = self.keys.quotas();
        let adapters = slot.adapters.attach(&engine, &of_adapters(&quotas))?;
        let recorder = self.witness.as_ref().map(|witness| witness.recorder(&engine)).transpose()?;
        let (service, thread) = Service::start(engine, options)?;
        let learning = learning.map(|learning| ModelState::new(learning, service.clone()));
        adapters.iter().try_for_each(|adapters| service.share_memory(adapters))?;
        for (tenant, quota) in quotas {
            service.set_tenant_quota(tenant, quota.kv_bytes);
        }
        self.metrics.loaded(&slot.name);
        let (name, adapters) = (Arc::clone(&slot.name), Arc::clone(&slot.adapters));
        let (grammars, slots) = (Grammars::default(), LastRequests::default());
        let answers = Responder::Engine(service);
        let model = ServedModel { name, answers, grammars, adapters, learning, slots, recorder, draft_history };
        let mut inner = slot.lock();
        (inner.info, inner.told) = (Some(info), ServiceStats::default());
        inner.told_adapters = ManagerStats::default();
        drop(inner);
        // Whoever ends the models either finds this one, or has said before that it is too late.
        match slot.set_unless(&self.is_stopping, State::Loaded(Arc::new(model), Some(thread))) {
            None => Ok(()),
            Some(late) => {
                late.end()?;
                Err(stopped())
            }
        }
    }

    /// Puts a model of another server in a slot.
    pub(super) fn put_remote(&self, slot: &Slot, source: RemoteSource) {
        let recorder = self.witness.as_ref().map(|witness| witness.remote_recorder(source.backend.as_ref()));
        let observer = self.metrics.observer(&slot.name);
        let remote = RemoteModel::new(&slot.name, source, self.options.get().queue_max, observer);
        self.metrics.loaded(&slot.name);
        let (name, adapters) = (Arc::clone(&slot.name), Arc::clone(&slot.adapters));
        let (grammars, slots) = (Grammars::default(), LastRequests::default());
        let (answers, learning) = (Responder::Remote(Arc::new(remote)), None);
        let model = ServedModel { name, answers, grammars, adapters, learning, slots, recorder, draft_history: None };
        slot.set(State::Loaded(Arc::new(model), None));
    }

    /// Gives an engine the earlier texts that its drafts are made of, from the disk if they are kept there.
    fn open_texts(&self, slot: &Slot, engine: &mut Engine) -> Result<Option<DraftHistory>, EngineError> {
        let DraftTextsOptions { bytes_max, folder, key } = &slot.draft_texts;
        engine.runner_mut().set_history_bytes(*bytes_max);
        let Some(folder) = folder.clone().filter(|_| *bytes_max > 0 && !engine.info().is_encoder) else {
            return Ok(None);
        };
        let options = DraftHistoryOptions { folder, key: key.clone(), tenants: self.keys.tenants() };
        let history = DraftHistory::open(engine, &options)?;
        history.notes().iter().for_each(|note| tracing::warn!(model = &*slot.name, "{note}"));
        Ok(Some(history))
    }

    /// Makes what changes how a model's steps are filled. With a log it goes on from what was learned before.
    fn autotuner(&self, model: &str, kv_policies: &[KvPolicy]) -> Box<dyn Tuner> {
        let witness = self.witness.clone();
        let learned = move |policy: NewPolicy| {
            tracing::info!(context = policy.context, value = %policy.value, reason = policy.reason, "learned");
            witness.iter().for_each(|witness| witness.learned(policy.clone()));
        };
        let autotuner = Autotuner::new(model, &self.options.get().scheduler, Box::new(learned));
        let mut autotuner = autotuner.with_kv(model, kv_policies);
        self.witness.iter().for_each(|witness| autotuner.begin_with(witness.policies.as_ref()));
        Box::new(autotuner)
    }

    /// Fills a slot that is queued, when there is room; it stays empty if all who asked are gone by then.
    pub(super) async fn load(self: Arc<Models>, slot: Arc<Slot>) {
        let _memory = self.memory.lock().await;
        let since = Instant::now();
        while !self.is_wanted(&slot) || !self.make_room().await {
            if !self.is_wanted(&slot) {
                self.slots.iter().filter(|other| other.lock().is_leaving).for_each(|other| other.set_leaving(false));
                return slot.set(State::Unloaded);
            }
            if since.elapsed() >= self.options.get().room_patience {
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
            if n_loaded < self.options.get().models_max.max(1) {
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

    pub(super) fn no_room(&self) -> ApiError {
        let options = self.options.get();
        let (n, s) = (options.models_max.max(1), options.room_wait.as_secs_f64());
        let line = format!(
            "no room for the model: {n} at once is the most, and others were in use for {s} s; try again, or start the server \
             with a larger --models-max"
        );
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("no_room_for_model");
        ApiError { retry_after_s: Some(1), ..error }
    }

    /// Drops a model that nobody uses.
    pub(super) async fn unload(&self, slot: &Slot) {
        let Some((model, thread)) = slot.take_unused() else { return };
        model.drain(Duration::ZERO);
        let of_thread = Arc::clone(&model);
        let ended = tokio::task::spawn_blocking(move || {
            let engine = thread.map(ServiceThread::join).transpose();
            // It was logged.
            let _ = of_thread.save_learned();
            // What cannot be written is told by the next look at it, or lost with the model.
            let _ = of_thread.draft_history.as_ref().map(DraftHistory::flush);
            engine.and_then(|engine| engine.map_or(Ok(()), |engine| engine.flush_cache()))
        });
        if let Ok(Err(error)) = ended.await {
            tracing::error!(model = &*slot.name, %error, "not dropped in order");
        }
        let last = model.engine().map(Service::stats).unwrap_or_default();
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
    pub async fn maintenance(&self) -> Result<(), ServerError> {
        for slot in &self.slots {
            let (is_due, has_ended) = {
                let mut inner = slot.lock();
                let is_used = matches!(&inner.state, State::Loaded(model, _) if Arc::strong_count(model) > 1);
                if is_used {
                    inner.used_at = Instant::now();
                }
                let limit = self.options.get().idle_timeout.unwrap_or(Duration::MAX);
                let is_due = slot.unused_since(&inner).is_some_and(|since| since.elapsed() >= limit);
                let is_broken =
                    matches!(&inner.state, State::Loaded(model, _) if model.engine().is_some_and(has_broken));
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
}

fn stopped() -> EngineError {
    EngineError::new(ErrorKind::Stopped, "the server is stopping")
}

/// Returns whether the thread of an engine ended though nobody asked it to.
fn has_broken(service: &Service) -> bool {
    service.has_ended() && !service.is_stopping()
}
