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
use ruvllm_api::error::{ApiError, Shape};
use tokio::sync::Notify;
use tower_service::Service;

use crate::call::response::{held, respond};
use crate::router::PROBES;

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

/// Returns the answer to a request that found no place.
fn no_place() -> Response<Body> {
    let line = "all connections of this server are at work; try again later";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("too_many_connections");
    respond(&ApiError { retry_after_s: Some(1), ..error }, Shape::OpenAi)
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
