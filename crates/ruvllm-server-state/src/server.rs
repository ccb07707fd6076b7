//! A running server: its models, keys, memory and record, and the way to a stop.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use http::{HeaderValue, StatusCode};
use ruvllm_api::error::{ApiError, without_numbers};
use ruvllm_engine::Engine;
use ruvllm_learning::{Consolidate, EmbedderName, ModelRouter};
use ruvllm_sona::policy::PolicyKind;
use ruvllm_sona::witness::Event;
use ruvllm_witness::NOBODY;

use super::batches::Batches;
use super::gate::Gates;
use super::grammars::GRAMMAR_BYTES_MAX;
use super::keys::{Keys, Tenant};
use super::learning;
use super::mcp::Mcp;
use super::metrics::Metrics;
use super::models::{ModelSource, Models, ServedModel};
use super::options::{LiveOptions, ServerError, ServerOptions, stopping};
use super::shared::Shared;
use super::stored::StoredDocuments;
use super::witness::Witness;

/// Memory for the bodies of all requests at once, and for what becomes of them.
const BODIES_BYTES_MAX: usize = 384 << 20;
/// Requests that are at work at once; what their answers need of the model has limits of its own.
const AT_WORK_MAX: usize = 4096;

/// A running server, but for its connections.
pub struct Server {
    /// All models, loaded or not.
    pub models: Arc<Models>,
    options: Arc<LiveOptions>,
    /// Connections at once: as many as are wanted, or as there are descriptors for.
    pub n_connections_max: usize,
    /// All that is counted and measured.
    pub metrics: Arc<Metrics>,
    /// When it started, in seconds since 1970.
    pub created_s: u64,
    /// Keys and their tenants.
    pub keys: Arc<Keys>,
    /// Chooses the model where a request leaves that open.
    pub router: Option<Arc<ModelRouter>>,
    /// Where answers are put on record.
    pub witness: Option<Arc<Witness>>,
    /// The answers and conversations that clients may ask for again.
    pub stored: Arc<StoredDocuments>,
    /// Files and batches, if they are kept.
    pub batches: Option<Arc<Batches>>,
    /// MCP servers, if there are some.
    pub mcp: Option<Arc<Mcp>>,
    /// Requests that are at work.
    pub at_work: Arc<Shared>,
    /// Memory for the bodies of requests.
    pub bodies: Arc<Shared>,
    /// Memory for the grammars of requests.
    pub grammar_bytes: Arc<Shared>,
    /// Where long texts of tenants wait for each other.
    pub gates: Gates,
    /// Where the grammars of tenants do.
    pub grammar_gates: Gates,
    is_stopping: AtomicBool,
    n_calls: AtomicU64,
    /// Makes ids of this process differ from those of others.
    nonce: u64,
}

impl Server {
    /// Puts models behind a server that has no connections yet. The first is meant where a request names none.
    ///
    /// # Errors
    /// No model, keys that cannot be read, an origin that is none, an MCP server that does not start, or what `Service::start`
    /// says.
    pub fn start(models: Vec<ModelSource>, options: ServerOptions) -> Result<Arc<Server>, ServerError> {
        let keys = Arc::new(check_access(&options)?);
        let metrics = Arc::new(Metrics::default());
        let witness = options.witness.as_ref().map(Witness::open).transpose()?.map(Arc::new);
        let stored = Arc::new(StoredDocuments::open(witness.as_ref().and_then(|witness| witness.content_store()))?);
        let live = Arc::new(LiveOptions::new(options));
        let options = live.get();
        let models = Arc::new(Models::new(models, &live, &metrics, &keys, witness.clone())?);
        let router = options.router.as_deref().map(|folder| open_router(folder, &models)).transpose()?.map(Arc::new);
        let batches = options.batches.clone().map(Batches::open).transpose()?.map(Arc::new);
        // The last, so that no process is started for a server that does not come.
        let mcp = options.mcp.as_ref().map(Mcp::start).transpose()?.map(Arc::new);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nonce = (now.as_nanos() as u64) ^ (u64::from(std::process::id()) << 40);
        let (n_calls, created_s, is_stopping) = (AtomicU64::new(0), now.as_secs(), AtomicBool::new(false));
        // A request has a connection; those of HTTP/2 have many.
        let n_connections_max = super::descriptors::fitting(options.connections_max);
        let (at_work, bodies) = (
            Shared::new(n_connections_max.min(AT_WORK_MAX)),
            Shared::new(BODIES_BYTES_MAX.max(4 * options.body_bytes_max)),
        );
        let (gates, grammar_gates) = (Gates::default(), Gates::default());
        let grammar_bytes = Shared::new(GRAMMAR_BYTES_MAX);
        Ok(Arc::new(Server {
            models,
            options: live,
            n_connections_max,
            metrics,
            created_s,
            keys,
            router,
            witness,
            stored,
            batches,
            mcp,
            at_work,
            bodies,
            grammar_bytes,
            gates,
            grammar_gates,
            is_stopping,
            n_calls,
            nonce,
        }))
    }

    /// Returns the options as they are now; they may be others at the next call.
    pub fn options(&self) -> Arc<ServerOptions> {
        self.options.get()
    }

    /// Replaces the options.
    pub(super) fn set_options(&self, options: ServerOptions) {
        self.options.set(options);
    }

    /// Takes no requests from now on, and ends after `limit` those that are not over by then.
    pub fn drain(&self, limit: Duration) {
        self.is_stopping.store(true, Ordering::Release);
        self.models.stop();
        self.models.loaded().iter().for_each(|model| model.drain(limit));
    }

    /// Returns whether it takes requests no more.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Returns how many requests wait or run.
    pub fn n_inside(&self) -> usize {
        self.models.loaded().iter().map(|model| model.n_inside()).sum()
    }

    /// Ends the engines, and returns those that are loaded.
    ///
    /// # Errors
    /// An engine's thread broke, or something waits for the disk still: what, how much of it, and why.
    pub fn join(&self) -> Result<Vec<Engine>, ServerError> {
        let engines = self.models.join();
        let mut lost = self.models.unkept();
        if let Some(witness) = &self.witness {
            lost.extend(unwritten(witness));
            let n = witness.saves.n_lost();
            if n > 0 {
                tracing::warn!(turns = n, "turns of sessions were not saved while the disk failed");
            }
        }
        match self.stored.saves.n_lost() {
            0 => {}
            n => tracing::warn!(answers = n, "answers were not kept while the disk failed"),
        }
        match engines {
            Ok(_) if !lost.is_empty() => Err(ServerError::new(lost.join("; "))),
            engines => engines,
        }
    }

    /// Returns a request's model, once it is loaded.
    ///
    /// # Errors
    /// A model that is not served or cannot be loaded, a server that stops, or a time that is over.
    pub async fn model(&self, name: Option<&str>, deadline: Option<Instant>) -> Result<Arc<ServedModel>, ApiError> {
        self.model_as(name, deadline, self.options().loads_models).await
    }

    /// Returns a model, once it is loaded; where it is not, it is only if somebody `loads` it.
    ///
    /// # Errors
    /// As [`Server::model`].
    pub async fn model_as(
        &self,
        name: Option<&str>,
        deadline: Option<Instant>,
        loads: bool,
    ) -> Result<Arc<ServedModel>, ApiError> {
        if self.is_stopping() {
            return Err(stopping());
        }
        self.witness.as_ref().map_or(Ok(()), |witness| witness.check())?;
        let loading = self.models.get(name, loads);
        let Some(deadline) = deadline else { return loading.await };
        tokio::time::timeout_at(deadline.into(), loading).await.unwrap_or_else(|_| {
            let line = "the request's time was over before its model was loaded; allow more of it";
            Err(ApiError::new(StatusCode::GATEWAY_TIMEOUT, line).code("timeout"))
        })
    }

    /// Returns when the time of a request is over that may take this long and came just now.
    pub fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        let timeout = [timeout, self.options().request_timeout].into_iter().flatten().min();
        timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }

    /// Puts something on record that is not an answer, if the server keeps a log.
    pub fn note(&self, tenant: &Tenant, event: Event) {
        self.witness.iter().for_each(|witness| witness.note(tenant, event.clone()));
    }

    /// Does what is due for those who taught the models, on threads that nobody waits for.
    pub fn maintain(self: &Arc<Self>) {
        for model in self.models.loaded() {
            if model.learning.is_none() {
                continue;
            }
            let server = Arc::clone(self);
            tokio::task::spawn_blocking(move || {
                /// Returns what records call a tenant.
                fn named(tenant: &str) -> &str {
                    learning::key_of(tenant).unwrap_or(NOBODY)
                }
                let how = |tenant: &str| {
                    let policy = server.witness.as_ref()?.policy(PolicyKind::Ewc, named(tenant))?;
                    policy.read().ok().filter(Consolidate::is_sound)
                };
                let tell = |tenant: &str, what: &str| {
                    let event = Event::Learning { what: what.to_owned() };
                    if let Some(witness) = &server.witness {
                        witness.log.record(named(tenant), event.clone());
                    }
                };
                model.learning.iter().for_each(|learning| learning.maintain(&model.name, &how, &tell));
            });
        }
    }

    /// Returns whether answers are scored.
    pub fn scores(&self) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.scorer.is_some())
    }

    /// Returns a name that no other call of this or another process has.
    pub fn new_id(&self) -> String {
        let n = self.n_calls.fetch_add(1, Ordering::Relaxed) + 1;
        // A round of splitmix64 (Steele 2014): names that follow each other do not look alike.
        let mut x = self.nonce.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        format!("{:016x}{:08x}", x ^ (x >> 31), n as u32)
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("options", &self.options()).finish_non_exhaustive()
    }
}

/// Reads the keys, and checks who may ask and read what.
///
/// # Errors
/// The keys cannot be read, an origin is none, or the metrics are for a key that there is not.
pub fn check_access(options: &ServerOptions) -> Result<Keys, ServerError> {
    let keys = Keys::new(options.keys.clone()).map_err(ServerError::new)?;
    if let Some(origin) = options.cors_origins.iter().find(|origin| HeaderValue::from_str(origin).is_err()) {
        return Err(ServerError::new(format!("'{origin}' is no origin; use one like https://example.org, or *")));
    }
    match options.metrics_key.as_deref().filter(|name| !keys.has(name)) {
        Some(name) => Err(ServerError::new(format!("no key is called '{name}', which alone may read the metrics"))),
        None => Ok(keys),
    }
}

/// Returns what of the witness log is not on the disk at the end, after a second try.
fn unwritten(witness: &Witness) -> Option<String> {
    witness.log.flush().err()?;
    // A store that failed opens itself again after a second.
    std::thread::sleep(Duration::from_millis(1100));
    let error = witness.log.flush().err()?;
    let stats = witness.stats();
    let n = stats.n_queued;
    Some(format!("the witness log: {n} records are lost with this end: {}", without_numbers(&error.to_string())))
}

/// Reads a router, and checks that all that it can choose is served.
fn open_router(folder: &Path, models: &Models) -> Result<ModelRouter, ServerError> {
    let router = ModelRouter::open(folder)?;
    let embedder = match &router.embedder {
        EmbedderName::Hashed(_) => None,
        EmbedderName::Model(name, _) => Some(name),
    };
    let mut needed = router.models.iter().map(|model| &model.name).chain(embedder);
    match needed.find(|name| !models.is_served(name)) {
        None => Ok(router),
        Some(name) => {
            let line = format!(
                "the router in {} needs the model '{name}', which is not served; add it by that name",
                folder.display()
            );
            Err(ServerError::new(line))
        }
    }
}
