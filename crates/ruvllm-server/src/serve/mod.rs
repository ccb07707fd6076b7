//! Connections: accepting them, their limits of time, and the way to a stop.

mod connections;
mod embedded;
mod embedded_call;
mod tls;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use ruvllm_api::error::without_numbers;
use ruvllm_engine::{Engine, Service};
use ruvllm_server_state::models::ModelSource;
use ruvllm_server_state::options::{ServerError, ServerOptions};
use ruvllm_server_state::reload::Reload;
use ruvllm_server_state::server::{Server, check_access};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::router::app;
use crate::serve::connections::{Connections, Counted};
use crate::serve::tls::Tls;

pub use embedded::{AnswerBody, Embedded};
pub use embedded_call::EmbeddedCall;

/// How often it is looked what has changed: keys, certificates, models that nobody uses.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// How many looks later metrics put away what they were told.
const LOOKS_PER_UPKEEP: u64 = 10;
/// Looks between two times that what was learned is kept, if something was.
const LOOKS_PER_SAVE: u64 = 120;
/// Threads that read and write; what computes has its own.
const N_THREADS: usize = 2;
/// How long connections may take to close after the last answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long accepting rests when there are no descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How long a new connection waits for the place of another one; those that come after it wait as well.
const PLACE_TIMEOUT: Duration = Duration::from_millis(250);
/// Connections beyond all places: they get an answer to `/health`, and have this long for it.
const SPARE_MAX: usize = 4;
const SPARE_TIMEOUT: Duration = Duration::from_secs(5);
/// Threads for work that takes a while: reading texts, files, what was learned.
const BLOCKING_THREADS: usize = 64;
/// Bytes after which it is known what a connection speaks: those that HTTP/2 begins with.
const N_PREFACE: u64 = 24;
/// How often the other side of an HTTP/2 connection is asked whether it is there, and how long it may take to say so.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// What the first prompts of coding agents have, and room for what follows.
const AGENT_TOKENS: usize = 32 << 10;
/// Requests at once on an HTTP/2 connection.
const STREAMS_MAX: u32 = 256;

/// Serves models until `stop` is over and all requests are, or the time for that is; then gives the engines back that
/// are loaded. The first model is meant where a request names none. `ready` is told the address once requests are taken.
///
/// # Errors
/// The address cannot be had, the keys or the certificate cannot be read, or an engine's thread broke.
pub fn run(
    models: Vec<ModelSource>,
    options: ServerOptions,
    ready: &dyn Fn(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<Vec<Engine>, ServerError> {
    run_reloading(models, options, None, ready, stop)
}

/// Serves models as [`run`] does, with options that may be replaced meanwhile.
///
/// # Errors
/// As [`run`].
pub fn run_reloading(
    models: Vec<ModelSource>,
    options: ServerOptions,
    reload: Option<Arc<dyn Reload>>,
    ready: &dyn Fn(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<Vec<Engine>, ServerError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(N_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| ServerError::new(format!("cannot start the server's threads: {error}")))?;
    let server = Server::start(models, options)?;
    for model in server.models.loaded() {
        let Some(info) = model.engine().map(Service::info) else { continue };
        if info.n_ctx < info.n_ctx_train.min(AGENT_TOKENS) {
            let (n_ctx, n_ctx_train) = (info.n_ctx, info.n_ctx_train);
            tracing::info!(model = &*model.name, n_ctx, n_ctx_train, "coding agents need a larger context: see --ctx");
        }
    }
    runtime.block_on(async {
        let address = server.options().address;
        let cannot = |error: io::Error| ServerError::new(format!("cannot listen on {address}: {}", reason(&error)));
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        let tls = server.options().tls.clone().map(Tls::new).transpose().map_err(ServerError::new)?;
        // Signals are heard from here on: whoever knows the address may send one.
        let hangup = Hangup::listen();
        tokio::pin!(stop);
        let is_over = poll_fn(|cx| Poll::Ready(stop.as_mut().poll(cx).is_ready())).await;
        let stop = async {
            if !is_over {
                stop.await;
            }
        };
        ready(listener.local_addr().map_err(cannot)?);
        let kept = Kept { tls: tls.map(Arc::new), reload };
        serve(Serving { listener, kept, hangup, server: Arc::clone(&server) }, stop).await
    })?;
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    server.join()
}

/// Checks what a server's options name: keys, certificate, origins, the router's folder, the address. Before models are brought
/// and loaded, since that takes long; [`run`] checks it again.
///
/// # Errors
/// One of them cannot be used.
pub fn check(options: &ServerOptions) -> Result<(), ServerError> {
    check_access(options)?;
    options.sampling.validate()?;
    options.tls.clone().map(Tls::new).transpose().map_err(ServerError::new)?;
    options.router.as_deref().map(ruvllm_learning::ModelRouter::open).transpose()?;
    let address = options.address;
    let cannot = |error: io::Error| ServerError::new(format!("cannot listen on {address}: {}", reason(&error)));
    std::net::TcpListener::bind(address).map(drop).map_err(cannot)
}

/// Returns the reason of an error without its number.
fn reason(error: &io::Error) -> String {
    without_numbers(&error.to_string()).to_lowercase()
}

/// What takes connections.
struct Serving {
    listener: TcpListener,
    kept: Kept,
    hangup: Hangup,
    server: Arc<Server>,
}

/// Takes connections until `stop` is over; where there is no place for one, the one that is idle the longest makes room. Then it
/// lets what runs end within [`ServerOptions::drain_timeout`], and returns when
/// all connections are closed. SIGHUP has it read its keys again.
///
/// # Errors
/// A model could not be made ready to learn.
async fn serve(serving: Serving, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
    let Serving { listener, kept, hangup, server } = serving;
    let (app, graceful, tls) = (app(&server), GracefulShutdown::new(), kept.tls.clone());
    let places_max = server.n_connections_max;
    let (places, connections) = (Arc::new(Semaphore::new(places_max)), Arc::new(Connections::default()));
    let spare = Arc::new(Semaphore::new(SPARE_MAX));
    let mut maintenance = tokio::spawn(maintenance(Arc::clone(&server), kept, hangup));
    let batches = tokio::spawn(crate::router::batches::run(Arc::clone(&server)));
    let of_preparing = Arc::clone(&server);
    let mut preparing = tokio::task::spawn_blocking(move || of_preparing.models.prepare());
    let (mut is_prepared, mut result) = (false, Ok(()));
    tokio::pin!(stop);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            prepared = &mut preparing, if !is_prepared => {
                is_prepared = true;
                result = prepared.unwrap_or_else(|_| Ok(())).map_err(ServerError::from);
                if result.is_err() {
                    break;
                }
                continue;
            }
            () = &mut stop => break,
            _ = &mut maintenance => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: who is idle gives one up.
                tracing::error!(%error, "cannot accept a connection");
                if !connections.shed() {
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                tokio::task::yield_now().await;
                continue;
            }
        };
        let Some(place) = place(&places, &connections).await else {
            let Ok(place) = Arc::clone(&spare).try_acquire_owned() else {
                tracing::warn!(connections = places_max, "too many connections at work; a new one is closed");
                continue;
            };
            let registered = connections.add();
            let app = Counted { app: app.clone(), connection: Arc::clone(&registered.connection), is_spare: true };
            let (server, watcher, tls) = (Arc::clone(&server), graceful.watcher(), tls.clone());
            tokio::spawn(async move {
                let options = server.options();
                let ended = connection(stream, tls, app, &options, watcher);
                // Whoever is too slow for it is closed.
                let _ = tokio::time::timeout(SPARE_TIMEOUT, ended).await;
                drop((place, registered));
            });
            continue;
        };
        server.metrics.connections(places_max - places.available_permits());
        let registered = connections.add();
        let app = Counted { app: app.clone(), connection: Arc::clone(&registered.connection), is_spare: false };
        let (server, watcher) = (Arc::clone(&server), graceful.watcher());
        let (tls, places) = (tls.clone(), Arc::clone(&places));
        tokio::spawn(async move {
            let (closing, options) = (Arc::clone(&registered.connection), server.options());
            tokio::select! {
                // A client that goes, or breaks the protocol, ends its own connection only.
                ended = connection(stream, tls, app, &options, watcher) => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                },
                () = closing.closed() => tracing::debug!("an idle connection was closed for another one"),
            }
            drop((place, registered));
            server.metrics.connections(places_max - places.available_permits());
        });
    }
    drop(listener);
    // What is not answered yet is after the next start.
    batches.abort();
    let limit = server.options().drain_timeout;
    server.drain(limit);
    tracing::info!(requests = server.n_inside(), seconds = limit.as_secs(), "stopping");
    if tokio::time::timeout(limit + CLOSE_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections were still open when the time was over");
    }
    maintenance.abort();
    result
}

/// Returns the place of a connection; where none is left, the one that is idle the longest makes room. `None` if all are at
/// work and none ends soon.
async fn place(places: &Arc<Semaphore>, connections: &Connections) -> Option<OwnedSemaphorePermit> {
    if let Ok(place) = Arc::clone(places).try_acquire_owned() {
        return Some(place);
    }
    connections.shed();
    let place = tokio::time::timeout(PLACE_TIMEOUT, Arc::clone(places).acquire_owned()).await;
    place.ok()?.ok()
}

/// SIGHUP, where there is such a signal.
struct Hangup {
    #[cfg(unix)]
    signal: Option<tokio::signal::unix::Signal>,
}

impl Hangup {
    #[cfg(unix)]
    fn listen() -> Hangup {
        let signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
        Hangup { signal: signal.map_err(|error| tracing::warn!(%error, "SIGHUP is not listened to")).ok() }
    }

    #[cfg(not(unix))]
    fn listen() -> Hangup {
        Hangup {}
    }

    /// Returns one that never comes: the signal belongs to the program.
    fn never() -> Hangup {
        Hangup {
            #[cfg(unix)]
            signal: None,
        }
    }

    /// Waits for the next one.
    async fn come(&mut self) {
        #[cfg(unix)]
        if let Some(signal) = &mut self.signal
            && signal.recv().await.is_some()
        {
            return;
        }
        std::future::pending().await
    }
}

/// Files that are read again when they change, beside that of the keys.
#[derive(Default)]
struct Kept {
    tls: Option<Arc<Tls>>,
    reload: Option<Arc<dyn Reload>>,
}

/// Looks for new options on a thread that nobody waits for, one time after the other.
struct Reloading {
    reload: Arc<dyn Reload>,
    running: Option<tokio::task::JoinHandle<()>>,
    /// Somebody asked while it was looked.
    is_asked: bool,
}

impl Reloading {
    fn look(&mut self, server: &Arc<Server>, is_asked: bool) {
        self.is_asked |= is_asked;
        if self.running.as_ref().is_some_and(|running| !running.is_finished()) {
            return;
        }
        let (reload, server, asked) =
            (Arc::clone(&self.reload), Arc::clone(server), std::mem::take(&mut self.is_asked));
        self.running = Some(tokio::task::spawn_blocking(move || {
            let Some(update) = reload.look(asked) else { return };
            server.update(update).iter().for_each(|line| tracing::error!("a new setting cannot be used: {line}"));
        }));
    }
}

/// Looks after keys, certificate, settings, models and metrics; ends when there is nothing left to serve with.
async fn maintenance(server: Arc<Server>, kept: Kept, mut hangup: Hangup) {
    let mut interval = tokio::time::interval(LOOK_INTERVAL);
    let tls = kept.tls;
    let mut reloading = kept.reload.map(|reload| Reloading { reload, running: None, is_asked: false });
    for n in 1_u64.. {
        let is_asked = tokio::select! {
            _ = interval.tick() => false,
            () = hangup.come() => true,
        };
        if is_asked {
            tracing::info!("SIGHUP: the keys are read again, and the settings file if there is one");
        }
        let has_changed = if is_asked { server.keys.read_again() } else { server.keys.look() };
        if has_changed {
            server.models.set_quotas();
            let of_thread = Arc::clone(&server);
            tokio::task::spawn_blocking(move || of_thread.models.forget_gone());
        }
        if let Some(tls) = &tls {
            tls.look();
        }
        if let Some(reloading) = &mut reloading {
            reloading.look(&server, is_asked);
        }
        if server.models.maintenance().await.is_err() {
            return;
        }
        if n.is_multiple_of(LOOKS_PER_UPKEEP) {
            server.metrics.maintenance();
        }
        server.maintain();
        if n.is_multiple_of(LOOKS_PER_SAVE) {
            let models = server.models.loaded();
            // Files are written where nobody waits for it.
            let kept = Arc::clone(&server.stored);
            tokio::task::spawn_blocking(move || {
                models.iter().for_each(|model| drop(model.save_learned()));
                models.iter().for_each(|model| model.tell_unkept_texts());
                kept.expire();
            });
        }
    }
}

/// Serves a connection to its end.
async fn connection(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    app: Counted,
    options: &ServerOptions,
    watcher: Watcher,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // Tokens are small and should not wait for each other.
    let _ = stream.set_nodelay(true);
    match tls {
        None => speak(stream, app, options, watcher).await,
        Some(tls) => {
            let stream = tokio::time::timeout(options.header_timeout, tls.acceptor().accept(stream)).await??;
            speak(stream, app, options, watcher).await
        }
    }
}

/// Speaks HTTP/1.1 or HTTP/2, as the client begins.
async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    app: Counted,
    options: &ServerOptions,
    watcher: Watcher,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let begin = Box::pin(sleep_until(Instant::now() + options.header_timeout));
    let io = TokioIo::new(Patient { stream, limit: options.write_timeout, deadline: None, begin, n_read: 0 });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_buf_size(64 << 10)
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(64 << 10);
    let connection = builder.serve_connection(io, TowerToHyperService::new(app));
    watcher.watch(connection).await
}

/// A stream whose reader may not stop reading for longer than a limit.
struct Patient<S> {
    stream: S,
    limit: Duration,
    /// While a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
    /// When so much must have come that it is known what is spoken.
    begin: Pin<Box<Sleep>>,
    /// Bytes that came.
    n_read: u64,
}

impl<S> Patient<S> {
    /// Fails a write that waits for too long.
    fn watch<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.deadline = None;
            return result;
        }
        let limit = self.limit;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + limit)));
        match deadline.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let n_before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.n_read += (buf.filled().len() - n_before) as u64;
        if result.is_pending() && self.n_read < N_PREFACE && self.begin.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not begin")));
        }
        result
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
