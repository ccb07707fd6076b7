//! Connections: accepting them, their limits of time, and the way to a stop.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use ruvllm_engine::Engine;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::app::Server;
use crate::options::{ServerError, ServerOptions};

/// How often metrics put away what they were told.
const UPKEEP: Duration = Duration::from_secs(5);
/// How often it is looked whether the engine lives.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Threads that read and write; what computes has its own.
const N_THREADS: usize = 2;
/// How long connections may take to close after the last answer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves an engine until `stop` is over and all requests are, or the time for that is; then gives the engine back.
/// `ready` is told the address once requests are taken.
///
/// # Errors
/// The address cannot be had, the keys cannot be read, or the engine's thread broke.
pub fn run(
    engine: Engine,
    options: ServerOptions,
    ready: &dyn Fn(SocketAddr),
    stop: impl Future<Output = ()>,
) -> Result<Engine, ServerError> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(N_THREADS).enable_all().build();
    let runtime = runtime.map_err(|error| ServerError::new(format!("cannot start the server's threads: {error}")))?;
    let (server, thread) = Server::start(engine, options)?;
    runtime.block_on(async {
        let address = server.options.address;
        let cannot = |error: io::Error| ServerError::new(format!("cannot listen on {address}: {}", reason(&error)));
        let listener = TcpListener::bind(address).await.map_err(cannot)?;
        ready(listener.local_addr().map_err(cannot)?);
        serve(listener, Arc::clone(&server), stop).await;
        Ok::<(), ServerError>(())
    })?;
    runtime.shutdown_timeout(CLOSE_TIMEOUT);
    Ok(thread.join()?)
}

/// Returns the reason of an error without its number.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

/// Takes connections until `stop` is over, lets what runs end within [`ServerOptions::drain_timeout`], and returns when
/// all connections are closed.
pub async fn serve(listener: TcpListener, server: Arc<Server>, stop: impl Future<Output = ()>) {
    let (app, graceful) = (server.app(), GracefulShutdown::new());
    let places = Arc::new(Semaphore::new(server.options.connections_max));
    let upkeep = tokio::spawn(upkeep(Arc::clone(&server)));
    tokio::pin!(stop);
    loop {
        let accept = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accept => accepted,
            () = &mut stop => break,
            () = ended(&server) => {
                tracing::error!("the engine has ended by an internal error");
                break;
            }
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = graceful.watch(connection(stream, app.clone(), &server.options));
                tokio::spawn(async move {
                    // A client that goes, or breaks the protocol, ends its own connection only.
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection ended early");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                // Out of files, most likely: some will be closed.
                tracing::error!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    let limit = server.options.drain_timeout;
    server.service().drain(limit);
    tracing::info!(requests = server.service().n_inside(), seconds = limit.as_secs(), "stopping");
    if tokio::time::timeout(limit + CLOSE_TIMEOUT, graceful.shutdown()).await.is_err() {
        tracing::warn!("connections were still open when the time was over");
    }
    upkeep.abort();
}

/// Ends when the engine's thread has.
async fn ended(server: &Server) {
    while !server.service().has_ended() {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

async fn upkeep(server: Arc<Server>) {
    let mut interval = tokio::time::interval(UPKEEP);
    loop {
        interval.tick().await;
        server.metrics.upkeep();
    }
}

type Connection = http1::Connection<TokioIo<Patient>, TowerToHyperService<Router>>;

fn connection(stream: TcpStream, app: Router, options: &ServerOptions) -> Connection {
    // Tokens are small and should not wait for each other.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Patient { stream, limit: options.write_timeout, deadline: None });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_buf_size(64 << 10)
        .serve_connection(io, TowerToHyperService::new(app))
}

/// A stream whose reader may not stop reading for longer than a limit.
struct Patient {
    stream: TcpStream,
    limit: Duration,
    /// While a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Patient {
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

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
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
