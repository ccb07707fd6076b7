//! The witness log of a server: one record for each answer that a model writes, in a chain that shows when it was touched.

use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use ruvllm_api::error::{ApiError, without_numbers};
use ruvllm_api::session::SESSION_DIM;
use ruvllm_backend::Completions;
use ruvllm_engine::{Engine, EngineError};
use ruvllm_sona::policy::{NewPolicy, Policy, PolicyKind, PolicyLimits, PolicyStore as _, StoredPolicies, Wanted};
use ruvllm_sona::quality::{Scorer, ScorerOptions};
use ruvllm_sona::session::SessionIndex;
use ruvllm_sona::store::Store;
use ruvllm_sona::witness::{Event, LogOptions, LogStats, WitnessLog};
use ruvllm_sona::{SonaError, now_ms};
use ruvllm_witness::{ANCHOR_FILE, NOBODY, Recorder, WitnessOptions, open_store};

use crate::keys::Tenant;
use crate::options::ServerError;
use crate::saves::Saves;

/// The log of a server, and the store it lies in.
pub struct Witness {
    /// Store of the records.
    pub store: Arc<dyn Store>,
    /// The chain of records.
    pub log: Arc<WitnessLog>,
    /// Scores answers, if they are to be.
    pub scorer: Option<Arc<Mutex<Scorer>>>,
    /// Policies, in the same store.
    pub policies: Arc<StoredPolicies>,
    /// The conversations, in the same store.
    pub sessions: Arc<SessionIndex>,
    /// Held while a turn is added to one of them.
    pub adding_turns: Arc<Mutex<()>>,
    /// Options of the record.
    pub options: WitnessOptions,
    /// Counters of turns of sessions that were to be saved.
    pub saves: Arc<Saves>,
    /// One verification at a time: it reads everything.
    pub verifying: tokio::sync::Mutex<()>,
}

impl Witness {
    /// Opens the log and goes on with its chain.
    ///
    /// # Errors
    /// As [`open_store`]; also if the anchor cannot be written, or the one that is there does not fit the chain.
    pub fn open(options: &WitnessOptions) -> Result<Witness, ServerError> {
        let store = open_store(options)?;
        let anchor = options.anchor.clone().unwrap_or_else(|| options.folder.join(ANCHOR_FILE));
        let syncs_each_batch = options.syncs_each_batch;
        let log_options = LogOptions { anchor: Some(anchor), syncs_each_batch, ..LogOptions::default() };
        let tell = |error: &SonaError| tracing::error!(%error, "the witness log or its anchor waits for another try");
        let log = Arc::new(WitnessLog::start_telling(Arc::clone(&store), log_options, tell)?);
        let policies = Arc::new(StoredPolicies::open(Arc::clone(&store), PolicyLimits::default())?);
        let scorer = options.scores.then(|| Arc::new(Mutex::new(Scorer::new(ScorerOptions::default()))));
        let sessions = Arc::new(SessionIndex::open(Arc::clone(&store), SESSION_DIM)?);
        let saves = Arc::new(Saves::new("turns of sessions"));
        let (adding_turns, verifying) = (Arc::default(), tokio::sync::Mutex::default());
        let options = options.clone();
        Ok(Witness { store, log, scorer, policies, sessions, adding_turns, saves, options, verifying })
    }

    /// Returns the store, where texts may lie in it: it is encrypted, or the log keeps tokens as well.
    pub fn content_store(&self) -> Option<Arc<dyn Store>> {
        let may_hold_text = self.options.key.is_some() || self.options.keeps_tokens;
        may_hold_text.then(|| Arc::clone(&self.store))
    }

    /// Returns the policy that counts for a tenant, by the name that records have, whatever the workload.
    pub fn policy(&self, kind: PolicyKind, tenant: &str) -> Option<Policy> {
        self.policies.best(&Wanted::new(kind, "").of_tenant(tenant), now_ms())
    }

    /// Makes the recorder of a model.
    ///
    /// # Errors
    /// The model's file cannot be read again.
    pub fn recorder(&self, engine: &Engine) -> Result<Recorder, EngineError> {
        let recorder = Recorder::new(engine, Arc::clone(&self.log), self.options.keeps_tokens)?;
        Ok(match &self.scorer {
            Some(scorer) => recorder.with_scorer(Arc::clone(scorer)),
            None => recorder,
        })
    }

    /// Makes the recorder of a model that another server answers for.
    pub fn remote_recorder(&self, backend: &dyn Completions) -> Recorder {
        let (model, device) = backend.info();
        Recorder::of_remote(&device.name, model, Arc::clone(&self.log))
    }

    /// Puts on record that a policy was learned, and keeps it; on the log's thread, so that nobody waits for the disk.
    pub fn learned(&self, policy: NewPolicy) {
        let (policies, value, context) = (Arc::clone(&self.policies), &policy.value, &policy.context);
        let what = format!("policy of {}: {context}: {value}: {}", policy.kind.as_str(), policy.reason);
        let keep = move |_: &mut Event| {
            // Those that have expired make room.
            let at = now_ms();
            if let Err(error) = policies.expire(at).and_then(|_| policies.put(policy, at)) {
                tracing::warn!(%error, "a policy that was learned is not kept");
            }
        };
        self.log.record_then("", Event::Learning { what }, keep);
    }

    /// Forgets what earlier answers of a tenant new ones are compared with.
    pub fn forget_answers(&self, tenant: &str) {
        let scorer = self.scorer.iter();
        scorer.for_each(|scorer| scorer.lock().unwrap_or_else(PoisonError::into_inner).forget(tenant));
    }

    /// Puts something on record that is not an answer.
    pub fn note(&self, tenant: &Tenant, event: Event) {
        self.log.record(tenant_name(tenant), event);
    }

    /// Returns how many answers are not on record now, and why, while the log cannot be written.
    pub fn failing(&self) -> Option<String> {
        let stats = self.log.stats();
        let why = stats.failing.as_ref()?;
        let why = without_numbers(why);
        Some(match stats.n_queued as u64 + stats.n_lost {
            0 => why,
            n => format!("{n} answers are not on record: {why}"),
        })
    }

    /// Refuses what could not be put on record, where the log is required.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn check(&self) -> Result<(), ApiError> {
        match self.options.is_required.then(|| self.failing()).flatten() {
            None => Ok(()),
            Some(why) => {
                let line = format!("the witness log cannot be written, and nothing is answered without it: {why}");
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("witness_unavailable"))
            }
        }
    }

    /// Returns what the log has done.
    pub fn stats(&self) -> LogStats {
        self.log.stats()
    }
}

/// Returns whose records a caller's are.
pub fn tenant_name(tenant: &Tenant) -> &str {
    if tenant.name.is_empty() { NOBODY } else { &tenant.name }
}
