//! The witness log of a server: one record for each answer that a model writes, in a chain that shows when it was touched.

mod endpoints;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::StatusCode;
use ruvllm_engine::{Engine, EngineError, GenerateRequest, ServiceEvent};
use ruvllm_sona::policy::{NewPolicy, Policy, PolicyKind, PolicyLimits, PolicyStore as _, StoredPolicies, Wanted};
use ruvllm_sona::quality::{Scorer, ScorerOptions};
use ruvllm_sona::session::SessionIndex;
use ruvllm_sona::store::{self, MasterKey, OpenOptions, Store};
use ruvllm_sona::witness::{Event, LogOptions, LogStats, WitnessLog};
use ruvllm_sona::{SonaError, now_ms};
use ruvllm_witness::{About, Record, Recorder};

use crate::app::Call;
use crate::auth::Tenant;
use crate::error::{ApiError, without_numbers};
use crate::options::ServerError;
use crate::routing::query_of;
use crate::sessions::{SESSION_DIM, Saves};

pub(crate) use endpoints::ENDPOINTS;
pub use endpoints::{fault_name, policy_json, record_json};

/// The file of the store in its folder.
pub const STORE_FILE: &str = "witness.redb";
/// The file of the newest anchor beside it.
pub const ANCHOR_FILE: &str = "anchor";
/// Whose the records of a server without keys are: no key has such a name.
pub const NOBODY: &str = "no key";

/// Options of the witness log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WitnessOptions {
    /// The folder with the store and the newest anchor; it is made if it is not there.
    pub folder: PathBuf,
    /// Where the newest anchor is put instead of the folder: best on another disk, or another machine's. One that is there
    /// already has to fit the log.
    pub anchor: Option<PathBuf>,
    /// Keep the tokens of prompts and answers, not only their digests: without them nothing can be replayed.
    pub keeps_tokens: bool,
    /// Score each answer behind its end, and put the scores on record.
    pub scores: bool,
    /// A file with the store's key, 32 bytes or 64 hexadecimal digits: what lies on the disk is encrypted then.
    pub key: Option<PathBuf>,
    /// Whether each batch is on disk when it is written, or only each tenth.
    pub syncs_each_batch: bool,
    /// Refuse requests while the log cannot be written, rather than answer them without a record.
    pub is_required: bool,
}

/// Opens the store of a folder that a server with these options writes to.
///
/// # Errors
/// One line: the folder or the key cannot be read, or another process has the store.
pub fn open_store(options: &WitnessOptions) -> Result<Arc<dyn Store>, ServerError> {
    let cannot = |path: &std::path::Path, error: std::io::Error| {
        ServerError::new(format!("the witness log: {}: {error}", path.display()))
    };
    std::fs::create_dir_all(&options.folder).map_err(|error| cannot(&options.folder, error))?;
    let key = match &options.key {
        None => None,
        Some(path) => {
            let bytes = std::fs::read(path).map_err(|error| cannot(path, error))?;
            Some(MasterKey::parse(&bytes).map_err(|error| ServerError::new(format!("{}: {error}", path.display())))?)
        }
    };
    let open = OpenOptions { key: key.as_ref(), ..OpenOptions::default() };
    Ok(store::open(&options.folder.join(STORE_FILE), &open).map_err(SonaError::from)?)
}

/// The log of a server, and the store it lies in.
pub(crate) struct Witness {
    pub store: Arc<dyn Store>,
    pub log: Arc<WitnessLog>,
    /// Scores answers, if they are to be.
    pub scorer: Option<Arc<Mutex<Scorer>>>,
    /// Policies, in the same store.
    pub policies: Arc<StoredPolicies>,
    /// The conversations, in the same store.
    pub sessions: Arc<SessionIndex>,
    /// Held while a turn is added to one of them.
    pub adding_turns: Arc<Mutex<()>>,
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
    pub(crate) fn open(options: &WitnessOptions) -> Result<Witness, ServerError> {
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
    pub(crate) fn content_store(&self) -> Option<Arc<dyn Store>> {
        let may_hold_text = self.options.key.is_some() || self.options.keeps_tokens;
        may_hold_text.then(|| Arc::clone(&self.store))
    }

    /// Returns the policy that counts for a tenant, by the name that records have, whatever the workload.
    pub(crate) fn policy(&self, kind: PolicyKind, tenant: &str) -> Option<Policy> {
        self.policies.best(&Wanted::new(kind, "").of_tenant(tenant), now_ms())
    }

    /// Makes the recorder of a model.
    ///
    /// # Errors
    /// The model's file cannot be read again.
    pub(crate) fn recorder(&self, engine: &Engine) -> Result<Recorder, EngineError> {
        let recorder = Recorder::new(engine, Arc::clone(&self.log), self.options.keeps_tokens)?;
        Ok(match &self.scorer {
            Some(scorer) => recorder.with_scorer(Arc::clone(scorer)),
            None => recorder,
        })
    }

    /// Puts on record that a policy was learned, and keeps it; on the log's thread, so that nobody waits for the disk.
    pub(crate) fn learned(&self, policy: NewPolicy) {
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
    pub(crate) fn forget_answers(&self, tenant: &str) {
        let scorer = self.scorer.iter();
        scorer.for_each(|scorer| scorer.lock().unwrap_or_else(PoisonError::into_inner).forget(tenant));
    }

    /// Puts something on record that is not an answer.
    pub(crate) fn note(&self, tenant: &Tenant, event: Event) {
        self.log.record(tenant_name(tenant), event);
    }

    /// Returns how many answers are not on record now, and why, while the log cannot be written.
    pub(crate) fn failing(&self) -> Option<String> {
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
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        match self.options.is_required.then(|| self.failing()).flatten() {
            None => Ok(()),
            Some(why) => {
                let line = format!("the witness log cannot be written, and nothing is answered without it: {why}");
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("witness_unavailable"))
            }
        }
    }

    /// Returns what the log has done.
    pub(crate) fn stats(&self) -> LogStats {
        self.log.stats()
    }
}

/// Returns whose records a caller's are.
pub(crate) fn tenant_name(tenant: &Tenant) -> &str {
    if tenant.name.is_empty() { NOBODY } else { &tenant.name }
}

/// Returns the number by which a request stands on record: the first 16 hexadecimal digits of its id.
pub fn number_of(id: &str) -> Option<u64> {
    let digits = id.rsplit(['-', '_']).next().unwrap_or(id);
    u64::from_str_radix(digits.get(..16)?, 16).ok()
}

/// The record of an answer, wherever it ends: with the engine's last event, or before the engine takes it.
#[derive(Clone, Default)]
pub(crate) struct Pending(Option<Arc<Mutex<Option<Record>>>>);

impl Pending {
    /// Begins the record of answer `i` to a call, if the server keeps a log.
    pub(crate) fn begin(call: &Call, i: usize, request: &mut GenerateRequest) -> Pending {
        let Some(recorder) = &call.model.recorder else { return Pending::default() };
        let about = About {
            // The answers of one request count up from it.
            request: number_of(&call.id).unwrap_or_default().wrapping_add(i as u64),
            tenant: tenant_name(&call.tenant).to_owned(),
            routing: call.routing.clone().unwrap_or_default(),
            generation: request
                .logits_processor
                .as_ref()
                .and(call.model.learning.as_ref())
                .map_or(0, |learning| learning.generation(&call.tenant)),
            question: call.server.scores().then(|| query_of(&call.given)).flatten(),
        };
        Pending(Some(Arc::new(Mutex::new(Some(recorder.begin(request, about))))))
    }

    fn take(&self) -> Option<Record> {
        self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sees what happens to the request, on the engine's thread.
    pub(crate) fn see(&self, event: &ServiceEvent) {
        if let ServiceEvent::Done(result) = event
            && let Some(record) = self.take()
        {
            record.end(result.as_ref());
        }
    }

    /// Records that the engine did not take it.
    pub(crate) fn refused(&self, error: EngineError) -> EngineError {
        match self.take() {
            None => error,
            Some(record) => {
                record.end(Err(&error));
                error
            }
        }
    }
}
