//! How a server runs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_engine::{SamplingParams, SchedulerOptions, Speculation};
use ruvllm_learning::LearningOptions;
use ruvllm_witness::WitnessOptions;

use crate::batches::BatchOptions;
use crate::keys::KeyOptions;
use crate::mcp::McpOptions;

/// Options of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerOptions {
    /// Where it listens; port 0 takes a free one.
    pub address: SocketAddr,
    /// Sampling parameters where a request does not say.
    pub sampling: SamplingParams,
    /// Whether tokens are drafted; answers are the same.
    pub speculation: Speculation,
    /// Options of learning from requests, each tenant for itself; `None` learns nothing.
    pub learning: Option<LearningOptions>,
    /// Limits of the engine's steps.
    pub scheduler: SchedulerOptions,
    /// Whether that is changed by what it was measured to cost; answers are the same.
    pub autotune: bool,
    /// Requests that may wait beside those that run; more are answered with 429.
    pub queue_max: usize,
    /// Whether the model answers by any name, where exactly one is served.
    pub any_model_name: bool,
    /// Whether answers tell all that is known of them, the prompt as the model read it too (`__verbose`).
    pub is_verbose: bool,
    /// Whether `/slots` tells which places are taken.
    pub has_slots: bool,
    /// Whether there is a page at `/`.
    pub has_page: bool,
    /// Whether a prompt that is too long loses its oldest tokens where a request does not say.
    pub truncates: bool,
    /// Whether a request loads the model that it asks for; otherwise `/models/load` does.
    pub loads_models: bool,
    /// The most models in memory at once; more that are asked for make the least recently used go.
    pub models_max: usize,
    /// Longest time that a request waits for a model that others leave no room for; then it is answered with 503.
    pub room_wait: Duration,
    /// Longest time that a request waits for such a model before others take no new requests: it is its turn when theirs are over.
    pub room_patience: Duration,
    /// Longest time that a model may be used by nobody before it is dropped; `None` keeps it.
    pub idle_timeout: Option<Duration>,
    /// Who may ask.
    pub keys: KeyOptions,
    /// The name of the key that alone may read the metrics; `None` lets each key do so.
    pub metrics_key: Option<String>,
    /// The folder of a router that chooses among the models for requests of the model `auto`; `None` for none.
    pub router: Option<PathBuf>,
    /// Where each answer is put on record; `None` for nowhere.
    pub witness: Option<WitnessOptions>,
    /// Where files and batches are kept; `None` keeps none.
    pub batches: Option<BatchOptions>,
    /// MCP servers whose tools requests may call; `None` for none.
    pub mcp: Option<McpOptions>,
    /// Encrypts connections.
    pub tls: Option<TlsOptions>,
    /// Web pages of these origins may ask, `*` for all; none by default.
    pub cors_origins: Vec<String>,
    /// The most bytes of a request's body.
    pub body_bytes_max: usize,
    /// The most connections at once; more wait to be accepted.
    pub connections_max: usize,
    /// Longest time that a client may take for the head of a request, or be silent between two.
    pub header_timeout: Duration,
    /// Longest time that a client may take for the body of a request.
    pub body_timeout: Duration,
    /// Longest time that a client may take no byte of its answer.
    pub write_timeout: Duration,
    /// Longest time that a request may take in all; `None` for as long as it needs.
    pub request_timeout: Option<Duration>,
    /// Longest time that requests may go on after the server was asked to stop.
    pub drain_timeout: Duration,
}

impl Default for ServerOptions {
    /// 127.0.0.1:8080, open to whoever reaches it, 256 waiting requests, 8 MiB a body.
    fn default() -> ServerOptions {
        ServerOptions {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080),
            sampling: SamplingParams::default(),
            speculation: Speculation::default(),
            learning: None,
            scheduler: SchedulerOptions::default(),
            autotune: false,
            queue_max: 256,
            any_model_name: false,
            is_verbose: false,
            has_slots: true,
            has_page: true,
            truncates: false,
            loads_models: true,
            models_max: usize::MAX,
            room_wait: Duration::from_secs(30),
            room_patience: Duration::from_secs(10),
            idle_timeout: None,
            keys: KeyOptions::default(),
            metrics_key: None,
            router: None,
            witness: None,
            batches: None,
            mcp: None,
            tls: None,
            cors_origins: Vec::new(),
            body_bytes_max: 8 << 20,
            connections_max: 1024,
            header_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(60),
            request_timeout: None,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

/// Options that may be replaced while requests run. Whoever reads them sees one state of them.
#[derive(Debug)]
pub struct LiveOptions(RwLock<Arc<ServerOptions>>);

impl LiveOptions {
    /// Returns the options as they are at the start.
    pub fn new(options: ServerOptions) -> LiveOptions {
        LiveOptions(RwLock::new(Arc::new(options)))
    }

    /// Returns the options as they are now.
    pub fn get(&self) -> Arc<ServerOptions> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces them.
    pub fn set(&self, options: ServerOptions) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(options);
    }
}

/// Why a server does not start, or ends: one line.
#[derive(Debug)]
pub struct ServerError {
    line: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ServerError {
    /// Returns an error of one line.
    pub fn new(line: impl Into<String>) -> ServerError {
        ServerError { line: line.into(), source: None }
    }
}

impl std::fmt::Display for ServerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.line)
    }
}

impl std::error::Error for ServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}

impl From<ruvllm_sona::SonaError> for ServerError {
    fn from(error: ruvllm_sona::SonaError) -> ServerError {
        ServerError { line: format!("the witness log: {error}"), source: Some(Box::new(error)) }
    }
}

impl From<ruvllm_witness::WitnessError> for ServerError {
    fn from(error: ruvllm_witness::WitnessError) -> ServerError {
        ServerError { line: error.to_string(), source: Some(Box::new(error)) }
    }
}

impl From<ruvllm_mcp::McpError> for ServerError {
    fn from(error: ruvllm_mcp::McpError) -> ServerError {
        ServerError { line: error.to_string(), source: Some(Box::new(error)) }
    }
}

impl From<ruvllm_engine::EngineError> for ServerError {
    fn from(error: ruvllm_engine::EngineError) -> ServerError {
        ServerError { line: error.to_string(), source: Some(Box::new(error)) }
    }
}

/// Where the certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// PEM: the server's certificate, then those that vouch for it.
    pub cert: PathBuf,
    /// PEM: its private key.
    pub key: PathBuf,
}

/// Returns the error for a request that comes while the server stops.
pub fn stopping() -> ApiError {
    let line = "the server is stopping and takes no requests";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("stopping")
}
