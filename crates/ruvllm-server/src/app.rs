//! The endpoints, and the way of a request through them: key, body, table of fields, handler, answer.

use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use axum::routing::{MethodFilter, on};
use ruvllm_engine::{AdapterSet, Engine};
use ruvllm_learning::{Consolidate, EmbedderName, ModelRouter, Task};
use ruvllm_sona::policy::PolicyKind;
use ruvllm_sona::witness::Event;
use serde_json::{Value, json};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::normalize_path::NormalizePath;
use tracing::Instrument as _;

use crate::adapters::{self, ADAPTER};
use crate::auth::{Keys, Tenant};
use crate::body::{self, BODIES_BYTES_MAX};
use crate::connections::{self, PROBES, held};
use crate::error::{ApiError, Shape, without_numbers};
use crate::fields::{Field, Given, Refused};
use crate::gate::{self, Gates};
use crate::generate::offload;
use crate::grpc;
use crate::learning;
use crate::metrics::Metrics;
use crate::models::{Model, ModelSource, Models};
use crate::ollama;
use crate::openai::stored::{self, Kept};
use crate::options::{ServerError, ServerOptions};
use crate::page;
use crate::routing;
use crate::sessions;
use crate::share::{Part, Shared};
use crate::structure::GRAMMAR_BYTES_MAX;
use crate::thinking;
use crate::witness::{self, Witness};

/// Requests that are at work at once; what their answers need of the model has limits of its own.
const AT_WORK_MAX: usize = 4096;

/// What a handler gives, some time.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send>>;

/// An endpoint: the router, `/openapi.json` and `/v1/capabilities` are made of these.
pub(crate) struct Endpoint {
    pub method: Method,
    pub path: &'static str,
    /// Other paths where clients of other servers look for it.
    pub also: &'static [&'static str],
    /// Summary in a line.
    pub summary: &'static str,
    pub shape: Shape,
    /// Whether it takes a key, where the server has keys.
    pub needs_key: bool,
    /// The fields of the body, in groups; none for GET.
    pub fields: &'static [&'static [Field]],
    /// The fields of the query, for GET; where there are none it is not looked at.
    pub query: &'static [Field],
    /// Fields that the API has and this server does not, with the reason.
    pub refused: &'static Refused,
    /// Fields that an answer has.
    pub answers: &'static [&'static str],
    /// Whether it is a list of objects with these fields.
    pub lists: Lists,
    /// The field that a body is which is a list.
    pub list_field: Option<&'static str>,
    pub run: Run,
}

/// When an answer is a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lists {
    Never,
    /// Where a request asks for several.
    Several,
    Always,
}

/// A handler.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// Of the server as a whole.
    Server(fn(Plain) -> Answer),
    /// Of the model that the field `model` names.
    Model(fn(Call) -> Answer),
}

impl Endpoint {
    /// An endpoint of OpenAI's shape that takes a POST and a key, as those of the tables begin.
    pub(crate) const POST: Endpoint = Endpoint {
        method: Method::POST,
        path: "",
        also: &[],
        summary: "",
        shape: Shape::OpenAi,
        needs_key: true,
        fields: &[],
        query: &[],
        refused: &[],
        answers: &[],
        lists: Lists::Never,
        list_field: None,
        run: Run::Server(no_handler),
    };

    /// Returns whether its requests may name adapters.
    pub(crate) fn takes_adapters(&self) -> bool {
        self.fields.iter().any(|group| group.iter().any(|field| field.name == ADAPTER.name))
    }

    /// Returns all fields of the body.
    pub(crate) fn all_fields(&self) -> Vec<Field> {
        self.fields.iter().flat_map(|group| group.iter().copied()).collect()
    }
}

/// A request on its way through a handler that needs no model.
pub(crate) struct Plain {
    pub server: Arc<Server>,
    pub tenant: Tenant,
    pub given: Given,
    /// The path as it was asked for.
    pub uri: Uri,
    /// When its time is over.
    pub deadline: Option<Instant>,
}

impl Plain {
    /// Returns what stands behind `prefix` in the path.
    pub(crate) fn path_behind(&self, prefix: &str) -> String {
        let path = self.uri.path();
        unescaped(path.strip_prefix(prefix).unwrap_or(path))
    }

    /// Returns the part of the path that stands behind the part `name`; empty if none does.
    pub(crate) fn part_behind(&self, name: &str) -> String {
        unescaped(self.uri.path().split('/').skip_while(|part| *part != name).nth(1).unwrap_or_default())
    }
}

/// A request on its way through a handler.
pub(crate) struct Call {
    pub server: Arc<Server>,
    pub model: Arc<Model>,
    /// The clients that ask at its path.
    pub shape: Shape,
    /// Name of the model in the request, with the adapter that it names there.
    pub model_name: Arc<str>,
    /// Its own word for that, if it may have another.
    pub asked_name: Option<Arc<str>>,
    /// The adapters that change the model for this request.
    pub adapters: AdapterSet,
    pub tenant: Tenant,
    pub given: Given,
    /// Its task, for those who learn from it.
    pub task: Task,
    /// Routing: the chosen model with the reason, if the server chose.
    pub routing: Option<String>,
    /// Names the request in the log and in the header `x-request-id`.
    pub id: String,
    /// Memory that is kept for it until its answers are over.
    pub held: Arc<Mutex<Vec<Part>>>,
    /// When it asked for its model, and when that was there.
    pub asked_at: Instant,
    pub loaded_at: Instant,
    /// When its time is over.
    pub deadline: Option<Instant>,
    /// The request in the log, to which its handler adds what it comes to know.
    pub span: tracing::Span,
}

/// A running server, but for its connections.
pub struct Server {
    pub(crate) models: Arc<Models>,
    pub(crate) options: ServerOptions,
    /// Connections at once: as many as are wanted, or as there are descriptors for.
    pub(crate) n_connections_max: usize,
    pub(crate) metrics: Arc<Metrics>,
    /// When it started, in seconds since 1970.
    pub(crate) created_s: u64,
    pub(crate) keys: Arc<Keys>,
    /// Chooses the model where a request leaves that open.
    pub(crate) router: Option<Arc<ModelRouter>>,
    /// Where answers are put on record.
    pub(crate) witness: Option<Arc<Witness>>,
    /// The answers and conversations that clients may ask for again.
    pub(crate) kept: Arc<Kept>,
    /// Requests that are at work.
    at_work: Arc<Shared>,
    /// Memory for the bodies of requests.
    pub(crate) bodies: Arc<Shared>,
    /// Memory for the grammars of requests.
    pub(crate) grammar_bytes: Arc<Shared>,
    /// Where long texts of tenants wait for each other.
    gates: Gates,
    /// Where the grammars of tenants do.
    pub(crate) grammar_gates: Gates,
    is_stopping: AtomicBool,
    n_calls: AtomicU64,
    /// Makes ids of this process differ from those of others.
    nonce: u64,
}

impl Server {
    /// Puts models behind a server that has no connections yet. The first is meant where a request names none.
    ///
    /// # Errors
    /// No model, keys that cannot be read, an origin that is none, or what `Service::start` says.
    pub fn start(models: Vec<ModelSource>, options: ServerOptions) -> Result<Arc<Server>, ServerError> {
        let keys = Arc::new(check_access(&options)?);
        let metrics = Arc::new(Metrics::new());
        let witness = options.witness.as_ref().map(Witness::open).transpose()?.map(Arc::new);
        let kept = Arc::new(Kept::open(witness.as_ref().and_then(|witness| witness.content_store()))?);
        let models = Arc::new(Models::new(models, &options, &metrics, &keys, witness.clone())?);
        let router = options.router.as_deref().map(|folder| open_router(folder, &models)).transpose()?.map(Arc::new);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nonce = (now.as_nanos() as u64) ^ (u64::from(std::process::id()) << 40);
        let (n_calls, created_s, is_stopping) = (AtomicU64::new(0), now.as_secs(), AtomicBool::new(false));
        // A request has a connection; those of HTTP/2 have many.
        let n_connections_max = connections::fitting(options.connections_max);
        let (at_work, bodies) = (
            Shared::new(n_connections_max.min(AT_WORK_MAX)),
            Shared::new(BODIES_BYTES_MAX.max(4 * options.body_bytes_max)),
        );
        let (gates, grammar_gates) = (Gates::new(), Gates::new());
        let grammar_bytes = Shared::new(GRAMMAR_BYTES_MAX);
        Ok(Arc::new(Server {
            models,
            options,
            n_connections_max,
            metrics,
            created_s,
            keys,
            router,
            witness,
            kept,
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

    /// Takes no requests from now on, and ends after `limit` those that are not over by then.
    pub fn drain(&self, limit: Duration) {
        self.is_stopping.store(true, Ordering::Release);
        self.models.stop();
        self.models.loaded().iter().for_each(|model| model.service.drain(limit));
    }

    /// Returns whether it takes requests no more.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Returns how many requests wait or run.
    pub fn n_inside(&self) -> usize {
        self.models.loaded().iter().map(|model| model.service.n_inside()).sum()
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
        match self.kept.saves.n_lost() {
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
    pub(crate) async fn model(&self, name: Option<&str>, deadline: Option<Instant>) -> Result<Arc<Model>, ApiError> {
        self.model_as(name, deadline, self.options.loads_models).await
    }

    /// Returns a model, once it is loaded; where it is not, it is only if somebody `loads` it.
    ///
    /// # Errors
    /// As [`Server::model`].
    pub(crate) async fn model_as(
        &self,
        name: Option<&str>,
        deadline: Option<Instant>,
        loads: bool,
    ) -> Result<Arc<Model>, ApiError> {
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
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        let timeout = [timeout, self.options.request_timeout].into_iter().flatten().min();
        timeout.and_then(|timeout| Instant::now().checked_add(timeout))
    }

    /// Returns the router of all endpoints.
    pub fn app(self: &Arc<Server>) -> Router {
        let mut router = Router::new();
        for endpoint in endpoints() {
            let filter = match endpoint.method {
                Method::GET => MethodFilter::GET,
                Method::DELETE => MethodFilter::DELETE,
                _ => MethodFilter::POST,
            };
            let server = Arc::clone(self);
            let enter = move |request: Request<Body>| enter(Arc::clone(&server), endpoint, request);
            for path in endpoint.also {
                router = router.route(path, on(filter, enter.clone()));
            }
            router = router.route(endpoint.path, on(filter, enter));
        }
        router = if self.options.has_page { page::add(router) } else { router };
        router = grpc::add(router, self).fallback(not_found).method_not_allowed_fallback(not_allowed);
        // A body that is packed is read within the limits of one that is not. What is packed otherwise is refused there.
        let unpack = RequestDecompressionLayer::new().pass_through_unaccepted(true);
        let router = router.layer(unpack).layer(CatchPanicLayer::custom(panicked));
        let router = match self.cors() {
            Some(cors) => router.layer(cors),
            None => router,
        };
        // A path with a slash at its end is the same path.
        Router::new().fallback_service(NormalizePath::trim_trailing_slash(router))
    }

    fn cors(&self) -> Option<CorsLayer> {
        let origins = &self.options.cors_origins;
        let origins = match origins.iter().any(|origin| origin == "*") {
            true => AllowOrigin::any(),
            false if origins.is_empty() => return None,
            false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
        };
        Some(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([Method::GET, Method::POST, Method::DELETE])
                // The SDKs of the APIs send headers of their own, of every version others. No cookie goes with them.
                .allow_headers(AllowHeaders::mirror_request())
                .expose_headers([
                    REQUEST_ID,
                    ANTHROPIC_REQUEST_ID,
                    UNHEEDED,
                    RENAMED,
                    header::RETRY_AFTER,
                    routing::CHOSEN,
                    routing::REASON,
                ])
                .max_age(Duration::from_secs(3600)),
        )
    }

    /// Puts something on record that is not an answer, if the server keeps a log.
    pub(crate) fn note(&self, tenant: &Tenant, event: Event) {
        self.witness.iter().for_each(|witness| witness.note(tenant, event.clone()));
    }

    /// Does what is due for those who taught the models, on threads that nobody waits for.
    pub(crate) fn keep_up(self: &Arc<Self>) {
        for model in self.models.loaded() {
            if model.learning.is_none() {
                continue;
            }
            let server = Arc::clone(self);
            tokio::task::spawn_blocking(move || {
                /// Returns what records call a tenant.
                fn named(tenant: &str) -> &str {
                    learning::key_of(tenant).unwrap_or(crate::witness::NOBODY)
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
                model.learning.iter().for_each(|learning| learning.keep_up(&model.name, &how, &tell));
            });
        }
    }

    /// Returns whether answers are scored.
    pub(crate) fn scores(&self) -> bool {
        self.witness.as_ref().is_some_and(|witness| witness.scorer.is_some())
    }

    /// Returns a name that no other call of this or another process has.
    pub(crate) fn new_id(&self) -> String {
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
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same, as Anthropic's SDK looks for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// What a request said that changes nothing.
const UNHEEDED: HeaderName = HeaderName::from_static("x-ruvllm-unheeded");

/// Old names of fields that a request used, with the new ones.
const RENAMED: HeaderName = HeaderName::from_static("x-ruvllm-renamed");

/// Every endpoint.
pub(crate) fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    let own = crate::native::ENDPOINTS
        .iter()
        .chain(crate::llamacpp::ENDPOINTS)
        .chain(adapters::ENDPOINTS)
        .chain(witness::ENDPOINTS)
        .chain(routing::ENDPOINTS)
        .chain(sessions::ENDPOINTS)
        .chain(learning::endpoints());
    let openai = crate::openai::ENDPOINTS.iter().chain(stored::ENDPOINTS);
    openai.chain(crate::anthropic::ENDPOINTS).chain(ollama::ENDPOINTS).chain(own)
}

/// Answers a request, counts it and writes a line to the log.
async fn enter(server: Arc<Server>, endpoint: &'static Endpoint, request: Request<Body>) -> Response<Body> {
    let (start, id) = (Instant::now(), server.new_id());
    let (span, shape) = (span(&id, endpoint.path), endpoint.shape.at(request.uri().path()));
    let result = handle(&server, endpoint, request, &id, &span).instrument(span.clone()).await;
    let refusal = result.as_ref().err().map(|error| {
        server.metrics.rejected(error.reason());
        error.message.clone()
    });
    let mut response = result.unwrap_or_else(|error| error.response(shape));
    if let Ok(id) = HeaderValue::from_str(&id) {
        if endpoint.shape == Shape::Anthropic {
            response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let (took, status) = (start.elapsed(), response.status().as_u16());
    server.metrics.answered(endpoint.path, status, took.as_secs_f64());
    let ms = took.as_millis() as u64;
    // Probes come all day long.
    let is_probe = PROBES.contains(&endpoint.path) || endpoint.path == "/metrics";
    span.in_scope(|| match refusal {
        None if is_probe => tracing::debug!(status, ms, "answered"),
        Some(error) => tracing::info!(status, ms, error, "refused"),
        None => tracing::info!(status, ms, "answered"),
    });
    response
}

/// Returns the span of a request: what is written to the log within it is known to belong to it, and what it came to is
/// exported with it.
pub(crate) fn span(id: &str, path: &str) -> tracing::Span {
    use tracing::field::Empty;
    tracing::info_span!(
        "request",
        id,
        path,
        tenant = Empty,
        model = Empty,
        prompt_tokens = Empty,
        cached_tokens = Empty,
        answer_tokens = Empty,
        queue_ms = Empty,
        ttft_ms = Empty,
        finish = Empty,
    )
}

async fn handle(
    server: &Arc<Server>,
    endpoint: &'static Endpoint,
    request: Request<Body>,
    id: &str,
    span: &tracing::Span,
) -> Result<Response<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let caller = match endpoint.needs_key {
        true => server.keys.tenant(&parts.headers)?,
        // Some tell those who have a key more.
        false => server.keys.tenant(&parts.headers).unwrap_or_else(|_| Tenant::everybody()),
    };
    let tenant_id = caller.id;
    span.record("tenant", &*caller.name);
    // A tenant has its share of what is asked at once, whatever it is.
    let take = || server.at_work.take(caller.id, 1).ok_or_else(too_much_at_once);
    // What needs no key is answered at once, and beside all connections that are at work.
    let place = endpoint.needs_key.then(take).transpose()?;
    let (mut of_body, mut is_long) = (None, false);
    let given = match endpoint.method {
        Method::GET | Method::DELETE => Given::of_query(parts.uri.query().unwrap_or_default(), endpoint.query)?,
        _ => {
            body::check_content(&parts.headers)?;
            let mut read = body::read(body, &server.options, &server.bodies, &caller).await?;
            is_long = read.bytes.len() > body::LONG_BYTES;
            let check = move || {
                // Where no field has to be there, nothing is as good as an empty object.
                let is_none = read.bytes.is_empty() && endpoint.all_fields().iter().all(|field| !field.is_required);
                let body = if is_none { json!({}) } else { body::parse(&mut read)? };
                let body = match (body, endpoint.list_field) {
                    (list @ Value::Array(_), Some(name)) => json!({ name: list }),
                    (body, _) => body,
                };
                let given = Given::check(body, &endpoint.all_fields(), endpoint.refused)?;
                Ok((given, read.part))
            };
            let (given, part) = if is_long { offload(check).await? } else { check()? };
            of_body = Some(part);
            given
        }
    };
    let (user, metadata) = (given.text("user"), given.get("metadata").map(Value::to_string));
    if user.is_some() || metadata.is_some() {
        tracing::info!(user, metadata, "labels");
    }
    let (mut unheeded, renamed) = (given.unheeded.clone(), given.renamed.join(", "));
    let timeout = given.int("timeout_ms").map(|ms| Duration::from_millis(ms as u64));
    let deadline = server.deadline(timeout);
    let answer = async {
        match endpoint.run {
            Run::Server(run) => {
                run(Plain { server: Arc::clone(server), tenant: caller, given, uri: parts.uri, deadline }).await
            }
            Run::Model(run) => {
                let (mut given, mut asked) = (given, None);
                if endpoint.shape == Shape::Ollama {
                    asked = ollama::resolve(server, &caller, &mut given)?;
                }
                let mut call = Call::new(server, caller, given, deadline, (id, span)).await?;
                (call.asked_name, call.shape) = (asked, endpoint.shape.at(parts.uri.path()));
                unheeded.extend(thinking::not_done(&call.given, call.model.service.text()).map(str::to_owned));
                let chosen = call.routing.clone().map(|reason| (Arc::clone(&call.model.name), reason));
                let mut response =
                    run(if endpoint.takes_adapters() { call.with_adapters().await? } else { call }).await?;
                if let Some((model, reason)) = chosen {
                    routing::tell(response.headers_mut(), &model, &reason);
                }
                Ok(response)
            }
        }
    };
    let gate = is_long.then(|| server.gates.of(tenant_id));
    let mut response = gate::through(gate, answer).await?;
    for (name, line) in [(UNHEEDED, unheeded.join(", ")), (RENAMED, renamed)] {
        if let Some(line) = HeaderValue::from_str(&line).ok().filter(|value| !value.is_empty()) {
            response.headers_mut().insert(name, line);
        }
    }
    // What the request holds is given back when its answer has been sent.
    Ok(held(response, (place, of_body)))
}

impl Call {
    /// Finds the model that a request names.
    ///
    /// # Errors
    /// As [`Server::model`]; 404 for an adapter that the model does not have.
    pub(crate) async fn new(
        server: &Arc<Server>,
        tenant: Tenant,
        given: Given,
        deadline: Option<Instant>,
        (id, span): (&str, &tracing::Span),
    ) -> Result<Call, ApiError> {
        let asked_at = Instant::now();
        let decision = match server.is_routed(given.text("model")) {
            true => Some(server.decide((&tenant, &given), deadline).await?),
            false => None,
        };
        let (name, adapter) = match &decision {
            Some(decision) => (Some(decision.model.as_str()), None),
            None => server.models.split(given.text("model")),
        };
        let model = server.model(name, deadline).await?;
        let loaded_at = Instant::now();
        let model_name = match adapter {
            None => Arc::clone(&model.name),
            Some(adapter) => {
                model.adapters.check(adapter, &tenant)?;
                format!("{}:{adapter}", model.name).into()
            }
        };
        span.record("model", &*model_name);
        learning::open(&model, &tenant).await;
        let routing = decision.map(|decision| decision.choice.reason);
        let (server, id, span, adapters) = (Arc::clone(server), id.to_owned(), span.clone(), AdapterSet::default());
        // Of several prompts none is what all answers are about.
        let is_one = given.list("prompt").is_none_or(|prompts| prompts.len() == 1);
        let task = Task { question: routing::query_of(&given).filter(|_| is_one), ..Task::default() };
        let held = Arc::default();
        Ok(Call {
            server,
            model,
            shape: Shape::OpenAi,
            model_name,
            asked_name: None,
            adapters,
            tenant,
            given,
            task,
            routing,
            id,
            held,
            asked_at,
            loaded_at,
            deadline,
            span,
        })
    }

    /// Brings the adapters that the request names.
    ///
    /// # Errors
    /// One is not there, cannot be used, or finds no room in time.
    pub(crate) async fn with_adapters(self) -> Result<Call, ApiError> {
        let adapters = adapters::of_request(&self).await?;
        Ok(Call { adapters, ..self })
    }
}

/// Reads the keys, and checks who may ask and read what.
///
/// # Errors
/// The keys cannot be read, an origin is none, or the metrics are for a key that there is not.
pub(crate) fn check_access(options: &ServerOptions) -> Result<Keys, ServerError> {
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

/// Returns a text with its percent escapes resolved (RFC 3986, 2.1); what is no escape stays.
pub(crate) fn unescaped(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.filter(|_| first == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn too_much_at_once() -> ApiError {
    let line = "this key has its share of the requests that the server works on at once; wait for one to end";
    let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, line).code("too_many_requests");
    ApiError { retry_after_s: Some(1), ..error }
}

/// The server takes no requests any more.
pub(crate) fn stopping() -> ApiError {
    let line = "the server is stopping and takes no requests";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("stopping")
}

/// Stands where an endpoint of the tables names no handler.
fn no_handler(_: Plain) -> Answer {
    Box::pin(async { Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "this endpoint has no handler")) })
}

async fn not_found(uri: Uri) -> Response<Body> {
    let line = format!("there is nothing at {}; /v1/capabilities lists what there is", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, line).code("not_found").response(Shape::of_path(uri.path()))
}

async fn not_allowed(method: Method, uri: Uri) -> Response<Body> {
    let line = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, line).code("method_not_allowed").response(Shape::of_path(uri.path()))
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!("a handler broke; its request is answered with 500");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the server's log tells more")
        .response(Shape::OpenAi)
}
