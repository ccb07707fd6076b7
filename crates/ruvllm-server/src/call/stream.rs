//! Answers that come in pieces: server-sent events, or lines of JSON. What keeps the connection alive is no part of them.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

/// How long an answer may say nothing before a comment is sent.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Events that wait for a slow reader; the answer is written on meanwhile.
const N_EVENTS: usize = 64;

/// The form of a stream: how pieces are told apart.
pub(crate) struct Format {
    content_type: &'static str,
    /// Sent where nothing was for a while.
    still_here: &'static [u8],
}

/// Server-sent events.
pub(crate) const EVENTS: Format =
    Format { content_type: "text/event-stream; charset=utf-8", still_here: b": still here\n\n" };
/// The same with pings, which clients of Anthropic's API wait for.
pub(crate) const PINGED: Format = Format { still_here: b"event: ping\ndata: {\"type\": \"ping\"}\n\n", ..EVENTS };
/// Lines of JSON. White space in front of a value is no part of it.
pub(crate) const LINES: Format = Format { content_type: "application/x-ndjson", still_here: b" " };

/// Takes the events of an answer.
pub(crate) struct Events(mpsc::Sender<Bytes>);

/// The client is gone.
#[derive(Debug)]
pub(crate) struct Disconnected;

impl Events {
    /// Sends an event without a name.
    pub(crate) async fn send(&self, data: &Value) -> Result<(), Disconnected> {
        self.send_text(format!("data: {data}\n\n")).await
    }

    /// Sends an event of this name.
    pub(crate) async fn send_named(&self, name: &str, data: &Value) -> Result<(), Disconnected> {
        self.send_text(format!("event: {name}\ndata: {data}\n\n")).await
    }

    /// Sends what ends a stream of OpenAI's.
    pub(crate) async fn send_done(&self) -> Result<(), Disconnected> {
        self.send_text("data: [DONE]\n\n".to_owned()).await
    }

    /// Sends a line of its own.
    pub(crate) async fn send_line(&self, data: &Value) -> Result<(), Disconnected> {
        self.send_text(format!("{data}\n")).await
    }

    async fn send_text(&self, text: String) -> Result<(), Disconnected> {
        self.0.send(Bytes::from(text)).await.map_err(|_| Disconnected)
    }

    /// Ends when the client is gone.
    pub(crate) async fn gone(&self) {
        self.0.closed().await;
    }
}

/// Returns an answer whose events `write` sends. When the client goes, `write` is dropped where it waits.
pub(crate) fn respond<F>(format: &'static Format, write: impl FnOnce(std::sync::Arc<Events>) -> F) -> Response<Body>
where
    F: Future<Output = Result<(), Disconnected>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(N_EVENTS);
    let events = std::sync::Arc::new(Events(sender));
    let writing = write(std::sync::Arc::clone(&events));
    tokio::spawn(async move {
        tokio::select! {
            _ = writing => {}
            () = events.gone() => {}
        }
    });
    let mut keep_alive = tokio::time::interval_at(tokio::time::Instant::now() + KEEP_ALIVE, KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut response = Response::new(Body::new(EventBody { receiver, keep_alive, still_here: format.still_here }));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect answers are asked not to.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct EventBody {
    receiver: mpsc::Receiver<Bytes>,
    keep_alive: Interval,
    still_here: &'static [u8],
}

impl http_body::Body for EventBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(event) = self.receiver.poll_recv(cx) {
            self.keep_alive.reset();
            return Poll::Ready(event.map(|event| Ok(Frame::data(event))));
        }
        if self.keep_alive.poll_tick(cx).is_ready() {
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(self.still_here)))));
        }
        Poll::Pending
    }
}
