//! The endpoints, and the way of a request through them: key, body, table of fields, handler, answer.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use axum::routing::{MethodFilter, on};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use ruvllm_engine::{Engine, Service, ServiceOptions, ServiceThread};
use serde_json::Value;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::auth::{Keys, Tenant};
use crate::error::{ApiError, Shape};
use crate::fields::{Field, Given, Refused};
use crate::metrics::Metrics;
use crate::options::{ServerError, ServerOptions};
use crate::page;
use crate::structure::Grammars;

/// What a handler gives, some time.
pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, ApiError>> + Send>>;

/// An endpoint: the router, `/openapi.json` and `/v1/capabilities` are made of these.
pub(crate) struct Endpoint {
    pub method: Method,
    pub path: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    pub shape: Shape,
    /// Whether it takes a key, where the server has keys.
    pub needs_key: bool,
    /// The fields of the body, in groups; none for GET.
    pub fields: &'static [&'static [Field]],
    /// Fields that the API has and this server does not, with the reason.
    pub refused: &'static Refused,
    /// Fields that an answer has.
    pub answers: &'static [&'static str],
    pub run: fn(Call) -> Answer,
}

impl Endpoint {
    /// Returns all fields of the body.
    pub(crate) fn all_fields(&self) -> Vec<Field> {
        self.fields.iter().flat_map(|group| group.iter().copied()).collect()
    }
}

/// A request on its way through a handler.
pub(crate) struct Call {
    pub server: Arc<Server>,
    pub tenant: Tenant,
    pub given: Given,
    /// The path as it was asked for.
    pub uri: Uri,
    /// Names the request in the log and in the header `x-request-id`.
    pub id: String,
}

/// A running server, but for its connections.
pub struct Server {
    pub(crate) service: Service,
    pub(crate) options: ServerOptions,
    pub(crate) metrics: Metrics,
    pub(crate) grammars: Grammars,
    /// When it started, in seconds since 1970.
    pub(crate) created_s: u64,
    keys: Keys,
    n_calls: AtomicU64,
    /// Makes ids of this process differ from those of others.
    nonce: u64,
}

impl Server {
    /// Puts an engine behind a server that has no connections yet.
    ///
    /// # Errors
    /// Keys that cannot be read, an origin that is none, or what `Service::start` says.
    pub fn start(engine: Engine, options: ServerOptions) -> Result<(Arc<Server>, ServiceThread), ServerError> {
        let keys = Keys::new(options.keys.clone()).map_err(ServerError::new)?;
        if let Some(origin) = options.cors_origins.iter().find(|origin| HeaderValue::from_str(origin).is_err()) {
            return Err(ServerError::new(format!("'{origin}' is no origin; use one like https://example.org, or *")));
        }
        let metrics = Metrics::new();
        let observer = Box::new(metrics.observer());
        let service = ServiceOptions { scheduler: options.scheduler.clone(), queue_max: options.queue_max, observer };
        let (service, thread) = Service::start(engine, service)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nonce = (now.as_nanos() as u64) ^ (u64::from(std::process::id()) << 40);
        let (n_calls, created_s) = (AtomicU64::new(0), now.as_secs());
        let grammars = Grammars::default();
        let server = Server { service, options, metrics, grammars, created_s, keys, n_calls, nonce };
        Ok((Arc::new(server), thread))
    }

    /// Returns the engine's service.
    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Returns the router of all endpoints.
    pub fn app(self: &Arc<Server>) -> Router {
        let mut router = Router::new();
        for endpoint in endpoints() {
            let filter = match endpoint.method {
                Method::GET => MethodFilter::GET,
                _ => MethodFilter::POST,
            };
            let server = Arc::clone(self);
            let enter = move |request: Request<Body>| enter(Arc::clone(&server), endpoint, request);
            router = router.route(endpoint.path, on(filter, enter));
        }
        router = page::add(router).fallback(not_found).method_not_allowed_fallback(not_allowed);
        let router = router.layer(CatchPanicLayer::custom(panicked));
        match self.cors() {
            Some(cors) => router.layer(cors),
            None => router,
        }
    }

    fn cors(&self) -> Option<CorsLayer> {
        let origins = &self.options.cors_origins;
        let origins = match origins.iter().any(|origin| origin == "*") {
            true => AllowOrigin::any(),
            false if origins.is_empty() => return None,
            false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
        };
        let own = ["x-api-key", "anthropic-version", "anthropic-beta"].map(HeaderName::from_static);
        let headers = [header::AUTHORIZATION, header::CONTENT_TYPE].into_iter().chain(own);
        Some(
            CorsLayer::new()
                .allow_origin(origins)
                .allow_methods([Method::GET, Method::POST])
                .allow_headers(headers.collect::<Vec<_>>())
                .expose_headers([REQUEST_ID, header::RETRY_AFTER])
                .max_age(Duration::from_secs(3600)),
        )
    }

    /// Returns a name that no other call of this or another process has.
    fn new_id(&self) -> String {
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
        f.debug_struct("Server").field("service", &self.service).finish_non_exhaustive()
    }
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Every endpoint.
pub(crate) fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    crate::openai::ENDPOINTS.iter().chain(crate::anthropic::ENDPOINTS).chain(crate::native::ENDPOINTS)
}

/// Answers a request, counts it and writes a line to the log.
async fn enter(server: Arc<Server>, endpoint: &'static Endpoint, request: Request<Body>) -> Response<Body> {
    let (start, id) = (Instant::now(), server.new_id());
    let mut tenant = None;
    let result = handle(&server, endpoint, request, &id, &mut tenant).await;
    let refusal = result.as_ref().err().map(|error| error.message.clone());
    let mut response = result.unwrap_or_else(|error| error.response(endpoint.shape));
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let (took, status) = (start.elapsed(), response.status().as_u16());
    server.metrics.answered(endpoint.path, status, took.as_secs_f64());
    let tenant: &str = tenant.as_ref().map_or("", |tenant: &Tenant| &tenant.name);
    let ms = took.as_millis() as u64;
    match refusal {
        Some(error) => tracing::info!(id, tenant, path = endpoint.path, status, ms, error, "refused"),
        None => tracing::info!(id, tenant, path = endpoint.path, status, ms, "answered"),
    }
    response
}

async fn handle(
    server: &Arc<Server>,
    endpoint: &'static Endpoint,
    request: Request<Body>,
    id: &str,
    tenant: &mut Option<Tenant>,
) -> Result<Response<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let caller = match endpoint.needs_key {
        true => server.keys.tenant(&parts.headers)?,
        false => Tenant::everybody(),
    };
    *tenant = Some(caller.clone());
    let given = match endpoint.method {
        Method::GET => Given::default(),
        _ => {
            check_content_type(&parts.headers)?;
            let bytes = read(body, &server.options).await?;
            Given::check(parse(&bytes)?, &endpoint.all_fields(), endpoint.refused)?
        }
    };
    let (user, metadata) = (given.text("user"), given.get("metadata").map(Value::to_string));
    if user.is_some() || metadata.is_some() {
        tracing::info!(id, user, metadata, "labels");
    }
    let call = Call { server: Arc::clone(server), tenant: caller, given, uri: parts.uri, id: id.to_owned() };
    (endpoint.run)(call).await
}

/// A page elsewhere can make a browser send anything but JSON without asking first; this is why only JSON is read.
fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    if essence.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let line = format!("the body's content type is '{essence}'; send application/json");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, line))
}

/// Reads a body, within its limits of bytes and time.
async fn read(mut body: Body, options: &ServerOptions) -> Result<Bytes, ApiError> {
    let limit = options.body_bytes_max;
    let too_large = || {
        let line = format!("the body is larger than {limit} bytes; send less");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, line)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let read = async {
        let mut bytes = BytesMut::new();
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, format!("the body ended before its end: {error}"))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes.freeze())
    };
    tokio::time::timeout(options.body_timeout, read).await.unwrap_or_else(|_| {
        let line = format!("the body did not come within {} s", options.body_timeout.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, line))
    })
}

fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes).map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")).code("invalid_json")
    })
}

async fn not_found(uri: Uri) -> Response<Body> {
    let line = format!("there is nothing at {}; /v1/capabilities lists what there is", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, line).code("not_found").response(Shape::OpenAi)
}

async fn not_allowed(method: Method, uri: Uri) -> Response<Body> {
    let line = format!("{} does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, line).code("method_not_allowed").response(Shape::OpenAi)
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!("a handler broke; its request is answered with 500");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the server's log tells more")
        .response(Shape::OpenAi)
}
