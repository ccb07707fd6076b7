//! A request to a server in the same process, for callers that wait on one thread and end it from another.

use std::sync::Arc;

use axum::http::Request;
use axum::http::response::Parts;
use bytes::Bytes;
use tokio::sync::{Mutex, watch};

use super::embedded::{AnswerBody, Embedded};

/// A request under way: its answer's head, its body in chunks, and its end from outside.
#[derive(Debug)]
pub struct EmbeddedCall {
    state: Mutex<CallState>,
    is_cancelled: watch::Sender<bool>,
}

#[derive(Debug)]
enum CallState {
    /// The server is needed to begin only, and is not kept from being freed after that.
    Made(Box<(Arc<Embedded>, Request<Bytes>)>),
    Answering(AnswerBody),
    Ended,
}

impl EmbeddedCall {
    /// Makes a call of a request; [`EmbeddedCall::head`] begins it.
    pub fn new(embedded: Arc<Embedded>, request: Request<Bytes>) -> EmbeddedCall {
        let made = CallState::Made(Box::new((embedded, request)));
        EmbeddedCall { state: Mutex::new(made), is_cancelled: watch::Sender::new(false) }
    }

    /// Begins the request and waits for the head of its answer; `None` if it was begun before or cancelled.
    pub async fn head(&self) -> Option<Parts> {
        let parts = self.begin().await;
        self.unless_cancelled(parts)
    }

    async fn begin(&self) -> Option<Parts> {
        let mut state = self.state.lock().await;
        let (embedded, request) = match std::mem::replace(&mut *state, CallState::Ended) {
            CallState::Made(made) => *made,
            other => {
                *state = other;
                return None;
            }
        };
        let response = tokio::select! {
            biased;
            () = self.cancelled() => return None,
            response = embedded.call(request) => response,
        };
        let (parts, body) = response.into_parts();
        *state = CallState::Answering(body);
        Some(parts)
    }

    /// Waits for bytes of the answer and returns those that are there, up to about `most`; `None` at the end, and if it was
    /// cancelled.
    pub async fn next(&self, most: usize) -> Option<Bytes> {
        let bytes = self.read(most).await;
        self.unless_cancelled(bytes)
    }

    async fn read(&self, most: usize) -> Option<Bytes> {
        let mut state = self.state.lock().await;
        let CallState::Answering(body) = &mut *state else { return None };
        let next = tokio::select! {
            biased;
            () = self.cancelled() => None,
            bytes = body.next(most) => bytes,
        };
        if next.is_none() {
            *state = CallState::Ended;
        }
        next
    }

    /// Ends the request: it leaves the engine within a step.
    pub fn cancel(&self) {
        self.is_cancelled.send_replace(true);
        // Where somebody waits for the answer, that one sees it and ends the request.
        self.end();
    }

    /// Ends the request, unless somebody waits for its answer.
    fn end(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            *state = CallState::Ended;
        }
    }

    /// Ends what was cancelled while an answer was on its way to who waited, and gives that to nobody.
    fn unless_cancelled<T>(&self, answer: Option<T>) -> Option<T> {
        if *self.is_cancelled.borrow() {
            self.end();
            return None;
        }
        answer
    }

    /// Waits until the call is cancelled.
    async fn cancelled(&self) {
        // The sender lives as long as this.
        let _ = self.is_cancelled.subscribe().wait_for(|is_cancelled| *is_cancelled).await;
    }
}
