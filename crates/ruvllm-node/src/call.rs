//! A request under way: its answer's head, its body in chunks, and its end from outside.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use ruvllm_server::{AnswerBody, Embedded};
use tokio::sync::{Mutex, watch};

use crate::error::internal;

/// The most bytes that are given at once, where more are there.
const CHUNK_BYTES: usize = 64 << 10;

/// Head of an answer.
#[napi(object)]
pub struct ResponseHead {
    /// Status of HTTP.
    pub status: u32,
    /// Names and values of headers.
    pub headers: Vec<Vec<String>>,
}

/// A request under way.
#[napi]
pub struct NativeCall {
    embedded: Arc<Embedded>,
    state: Mutex<State>,
    is_cancelled: watch::Sender<bool>,
}

enum State {
    Made(Request<Bytes>),
    Answering(AnswerBody),
    Ended,
}

impl NativeCall {
    pub(crate) fn new(embedded: Arc<Embedded>, request: Request<Bytes>) -> NativeCall {
        NativeCall { embedded, state: Mutex::new(State::Made(request)), is_cancelled: watch::Sender::new(false) }
    }

    /// Waits until the call is cancelled.
    async fn cancelled(&self) {
        // The sender lives as long as this.
        let _ = self.is_cancelled.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }
}

#[napi]
impl NativeCall {
    /// Begins the request and waits for the head of its answer; `None` if it was cancelled.
    ///
    /// # Errors
    /// The call was begun before.
    #[napi]
    pub async fn head(&self) -> napi::Result<Option<ResponseHead>> {
        let mut state = self.state.lock().await;
        let request = match std::mem::replace(&mut *state, State::Ended) {
            State::Made(request) => request,
            State::Answering(_) => return Err(internal("a call is begun once")),
            State::Ended => return Ok(None),
        };
        let response = tokio::select! {
            biased;
            () = self.cancelled() => return Ok(None),
            response = self.embedded.call(request) => response,
        };
        let (parts, body) = response.into_parts();
        *state = State::Answering(body);
        let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            vec![name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()]
        };
        Ok(Some(ResponseHead {
            status: parts.status.as_u16().into(),
            headers: parts.headers.iter().map(header).collect(),
        }))
    }

    /// Waits for bytes of the answer and returns all that are there; `None` at the end, and if it was cancelled.
    #[napi]
    pub async fn next(&self) -> Option<Buffer> {
        let mut state = self.state.lock().await;
        let State::Answering(body) = &mut *state else { return None };
        let next = tokio::select! {
            biased;
            () = self.cancelled() => None,
            bytes = body.next(CHUNK_BYTES) => bytes,
        };
        if next.is_none() {
            *state = State::Ended;
        }
        next.map(|bytes| Vec::from(bytes).into())
    }

    /// Ends the request: it leaves the engine within a step.
    #[napi]
    pub fn cancel(&self) {
        self.is_cancelled.send_replace(true);
        // Where somebody waits for the answer, that one sees it and ends the request.
        if let Ok(mut state) = self.state.try_lock() {
            *state = State::Ended;
        }
    }
}
