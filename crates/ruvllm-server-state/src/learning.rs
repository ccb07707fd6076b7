//! Learning: who learns from what is asked, and the endpoints by which people judge, correct and look.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ruvllm_api::error::without_numbers;
use ruvllm_engine::{EngineError, Service};
use ruvllm_learning as learning;
use ruvllm_learning::{Consolidate, Learning, MaintenanceOutcome};

use crate::keys::Tenant;

/// Learning of a model, and its tenants.
pub struct ModelState {
    learning: Learning,
    /// Reads again what is to be learned again.
    service: Service,
    /// Tenants that have switched it off.
    off: Mutex<HashSet<u64>>,
    /// Somebody does what is due.
    is_kept_up: AtomicBool,
}

/// Whoever does what is due for a model's tenants.
struct KeepingUp<'a>(&'a ModelState);

impl Drop for KeepingUp<'_> {
    fn drop(&mut self) {
        self.0.is_kept_up.store(false, Ordering::Release);
    }
}

impl ModelState {
    /// Joins what is learned to the service of its model.
    pub fn new(learning: Learning, service: Service) -> ModelState {
        ModelState { learning, service, off: Mutex::default(), is_kept_up: AtomicBool::new(false) }
    }

    fn off(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.off.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a tenant's requests teach, and see what they taught.
    pub fn is_on(&self, tenant: &Tenant) -> bool {
        !self.off().contains(&tenant.id)
    }

    /// Has a tenant's requests teach, or not.
    pub fn set(&self, tenant: &Tenant, is_on: bool) {
        match is_on {
            true => self.off().remove(&tenant.id),
            false => self.off().insert(tenant.id),
        };
    }

    /// Returns what a tenant has learned, if somebody has opened it.
    pub fn opened(&self, tenant: &Tenant) -> Option<Arc<learning::TenantLearning>> {
        self.learning.opened(&name_of(tenant))
    }

    /// Returns the generation of what a tenant's requests see.
    pub fn generation(&self, tenant: &Tenant) -> u64 {
        self.opened(tenant).map_or(0, |tenant| tenant.generation())
    }

    /// Returns what a tenant has learned. The first time it is read, and the model may have to read again what was learned last: not for
    /// threads that others wait for.
    ///
    /// # Errors
    /// It cannot be read, or another process has it.
    pub fn tenant(&self, tenant: &Tenant) -> Result<Arc<learning::TenantLearning>, EngineError> {
        self.learning.tenant(&mut self.service.clone(), &name_of(tenant))
    }

    /// Does what is due for those who have taught, if nobody is at it: the background loop, and the question whether what was learned is
    /// good. What the model has to read for that waits while anybody else needs it. `how` says how a tenant's is merged, if a policy
    /// does. Not for threads that others wait for.
    pub fn maintain(&self, model: &str, how: &dyn Fn(&str) -> Option<Consolidate>, tell: &dyn Fn(&str, &str)) {
        if self.is_kept_up.swap(true, Ordering::AcqRel) {
            return;
        }
        let _keeping = KeepingUp(self);
        for tenant in self.learning.tenants() {
            let mut service = self.service.clone();
            let of_watch = service.clone();
            let mut watch = |_| loop {
                if of_watch.is_stopping() || of_watch.has_ended() {
                    return ControlFlow::Break(());
                }
                if of_watch.n_inside() == 0 {
                    return ControlFlow::Continue(());
                }
                std::thread::sleep(LOOK_AGAIN);
            };
            let name = tenant.name();
            tenant.consolidate_by(how(name));
            match tenant.maintain(&mut service, &mut watch) {
                Ok(done) => done.iter().for_each(|outcome| told(model, name, outcome, tell)),
                Err(error) if of_watch.is_stopping() => tracing::debug!(model, tenant = name, %error, "not judged"),
                Err(error) => tracing::error!(model, tenant = name, %error, "what was learned is not judged"),
            }
        }
    }

    /// Waits until everything is taken in, and keeps it; returns why it could not.
    pub fn save(&self, model: &str) -> Option<String> {
        let error = self.learning.save().err()?;
        tracing::error!(model, %error, "what was learned is not kept");
        Some(without_numbers(&error.to_string()))
    }
}

/// How often one who wants the model to himself looks whether it is free.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Logs what was done for a tenant, and puts on record what changed what is served.
fn told(model: &str, tenant: &str, outcome: &MaintenanceOutcome, tell: &dyn Fn(&str, &str)) {
    match outcome {
        MaintenanceOutcome::Consolidated => tracing::debug!(model, tenant, "consolidated"),
        MaintenanceOutcome::Unsure(judgement) => {
            tracing::info!(model, tenant, why = judgement.why, "not yet published")
        }
        MaintenanceOutcome::Published(number, judgement) => {
            tracing::info!(model, tenant, generation = number, why = judgement.why, "published");
            tell(tenant, &format!("{model}: generation {number} was published: {}", judgement.why));
        }
        MaintenanceOutcome::Discarded(judgement) => {
            tracing::warn!(model, tenant, why = judgement.why, "discarded");
            tell(tenant, &format!("{model}: what was read was taken back: {}", judgement.why));
        }
    }
}

/// Returns what a tenant is called where it is kept: its name, or a number where that makes no name of a file.
fn name_of(tenant: &Tenant) -> String {
    let is_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match &*tenant.name {
        "" => "everybody".to_owned(),
        name if name.len() <= 40 && name.chars().all(is_char) => format!("key.{name}"),
        _ => format!("id.{:016x}", tenant.id),
    }
}

/// Returns the name of the key of a tenant that is kept as this; `None` if it is everybody's.
pub fn key_of(kept: &str) -> Option<&str> {
    (kept != "everybody").then(|| kept.strip_prefix("key.").unwrap_or(kept))
}
