//! Open connections: how many there may be, which of them are idle, and which one goes when another needs its place.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::Notify;
use tower_service::Service;

use crate::error::{ApiError, Shape};

/// Descriptors that are left for files: models, stores, what is loaded later.
const FILES_RESERVED: usize = 16;
/// Fewer connections than this are worth a line in the log.
const CONNECTIONS_FEW: usize = 256;
/// Connections are never fewer than this.
const CONNECTIONS_MIN: usize = 4;

/// The connections of a server.
#[derive(Debug, Default)]
pub(crate) struct Connections(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    all: HashMap<u64, Arc<Connection>>,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Requests that came on it and are not answered to their end.
    n_requests: AtomicUsize,
    /// When the last one ended, or it was opened.
    idle_since: Mutex<Instant>,
    /// It has to close.
    close: Notify,
}

impl Connection {
    /// Ends when it has to close.
    pub(crate) async fn closed(&self) {
        self.close.notified().await;
    }

    fn idle_since(&self) -> MutexGuard<'_, Instant> {
        self.idle_since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection's place among the others, until this is dropped.
#[derive(Debug)]
pub(crate) struct Registered {
    all: Arc<Connections>,
    id: u64,
    pub connection: Arc<Connection>,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection.
    pub(crate) fn add(self: &Arc<Self>) -> Registered {
        let (n_requests, close) = (AtomicUsize::new(0), Notify::new());
        let connection = Arc::new(Connection { n_requests, idle_since: Mutex::new(Instant::now()), close });
        let mut open = self.lock();
        let id = open.next;
        open.next += 1;
        open.all.insert(id, Arc::clone(&connection));
        Registered { all: Arc::clone(self), id, connection }
    }

    /// Closes the connection on which nothing has been asked for the longest time, and returns whether there was one.
    pub(crate) fn shed(&self) -> bool {
        let mut open = self.lock();
        let idle = open.all.iter().filter(|(_, connection)| connection.n_requests.load(Ordering::Acquire) == 0);
        let Some(id) = idle.min_by_key(|(_, connection)| *connection.idle_since()).map(|(id, _)| *id) else {
            return false;
        };
        // It counts no more, so that the next one is not the same.
        let connection = open.all.remove(&id).expect("it was found there");
        connection.close.notify_one();
        true
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.all.lock().all.remove(&self.id);
    }
}

/// The server's endpoints on one connection: counts the requests that are not answered to their end.
#[derive(Clone)]
pub(crate) struct Counted {
    pub app: Router,
    pub connection: Arc<Connection>,
    /// It came when all places were taken, and gets an answer to [`PROBES`] only.
    pub is_spare: bool,
}

/// Paths that are answered even when all places are taken.
pub(crate) const PROBES: [&str; 2] = ["/health", "/ready"];

/// Returns the answer to a request that found no place.
fn no_place() -> Response<Body> {
    let line = "all connections of this server are at work; try again later";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("too_many_connections");
    ApiError { retry_after_s: Some(1), ..error }.response(Shape::OpenAi)
}

/// Has a connection end with this answer.
fn closing(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

impl<B> Service<Request<B>> for Counted
where
    Router: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    <Router as Service<Request<B>>>::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<B>>::poll_ready(&mut self.app, cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if self.is_spare && !PROBES.contains(&request.uri().path()) {
            return Box::pin(async { Ok(closing(no_place())) });
        }
        let guard = InFlight::new(&self.connection);
        let answer = self.app.call(request);
        let is_spare = self.is_spare;
        Box::pin(async move {
            let answer = held(answer.await?, guard);
            Ok(if is_spare { closing(answer) } else { answer })
        })
    }
}

/// A request of a connection, until this is dropped.
struct InFlight(Arc<Connection>);

impl InFlight {
    fn new(connection: &Arc<Connection>) -> InFlight {
        connection.n_requests.fetch_add(1, Ordering::AcqRel);
        InFlight(Arc::clone(connection))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        *self.0.idle_since() = Instant::now();
        self.0.n_requests.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Keeps something until an answer has been sent to its end, or nobody takes it any more.
pub(crate) fn held<G: Send + Unpin + 'static>(response: Response<Body>, guard: G) -> Response<Body> {
    response.map(|body| Body::new(Held { body, _guard: guard }))
}

struct Held<G> {
    body: Body,
    _guard: G,
}

impl<G: Unpin> HttpBody for Held<G> {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns how many connections may be open at once: `wanted`, or as many as the process has descriptors for.
pub(crate) fn fitting(wanted: usize) -> usize {
    let Some(limit) = descriptors_max() else { return wanted };
    let n_open = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count());
    let fit = limit.saturating_sub(n_open + FILES_RESERVED).max(CONNECTIONS_MIN);
    if fit < wanted.min(CONNECTIONS_FEW) {
        tracing::warn!(descriptors = limit, connections = fit, "few descriptors: raise the limit for more connections");
    }
    wanted.min(fit)
}

/// Returns how many descriptors the process may have, where the system tells.
fn descriptors_max() -> Option<usize> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}
