//! A server without connections, for a program that has the models in its own process.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use http_body::Body as _;
use ruvllm_api::error::ApiError;
use ruvllm_engine::{AdapterSet, Engine, Readout};
use ruvllm_learning::{PublicKey, SigningKey, TenantLearning};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::models::ModelSource;
use ruvllm_server_state::options::{ServerError, ServerOptions};
use ruvllm_server_state::server::Server;
use tokio::task::AbortHandle;
use tower_service::Service;

use super::{Hangup, Kept, maintenance};
use crate::call::embed::Reading;
use crate::call::learning::model_state;
use crate::router::app;

/// A server without connections: requests are values, and their answers streams of bytes. Everything else is as [`run`](super::run)
/// has it: checks, batching, limits, learning, the record and the metrics.
///
/// Dropping it ends what runs; [`Embedded::stop`] also waits, and keeps what was learned.
#[derive(Debug)]
pub struct Embedded {
    server: Arc<Server>,
    app: Router,
    maintenance: AbortHandle,
}

impl Embedded {
    /// Starts a server. What it does between requests runs on the tokio runtime that calls this.
    ///
    /// # Errors
    /// As [`Server::start`].
    ///
    /// # Panics
    /// There is no tokio runtime with a timer.
    pub fn start(models: Vec<ModelSource>, options: ServerOptions) -> Result<Embedded, ServerError> {
        let server = Server::start(models, options)?;
        let maintenance =
            tokio::spawn(maintenance(Arc::clone(&server), Kept::default(), Hangup::never())).abort_handle();
        Ok(Embedded { app: app(&server), server, maintenance })
    }

    /// Makes the models ready to learn, where they are to; requests wait for it. It takes seconds, and blocks the thread.
    ///
    /// # Errors
    /// A model could not be made ready.
    pub fn prepare(&self) -> Result<(), ServerError> {
        Ok(self.server.models.prepare()?)
    }

    /// Gives up what [`Embedded::prepare`] does: it ends with an error.
    pub fn give_up(&self) {
        self.server.models.stop();
    }

    /// Answers a request. Dropping the future or the answer's body ends the request within a step of the engine.
    pub async fn call(&self, request: Request<Bytes>) -> Response<AnswerBody> {
        let mut app = self.app.clone();
        let Ok(()) = poll_fn(|cx| Service::<Request<Body>>::poll_ready(&mut app, cx)).await;
        let Ok(response) = app.call(request.map(Body::from)).await;
        response.map(|body| AnswerBody(Box::pin(body)))
    }

    /// Returns the logits after each of the last `n_last` tokens of a text, all of whose tokens are given: `[n_last, n_vocab]`. Of the
    /// model of this name, or the first.
    ///
    /// # Errors
    /// The model is not served, writes no text or has not such tokens; they do not fit its context.
    pub async fn logits(&self, model: Option<&str>, tokens: Vec<u32>, n_last: usize) -> Result<Vec<f32>, ApiError> {
        let model = self.server.model(model, None).await?;
        let reading = Reading { model: &model, tenant: Tenant::everybody().id, adapters: AdapterSet::default() };
        reading.read_out(tokens, Readout::Logits { n_last }).await
    }

    /// Returns all that the first model has learned as a signed file.
    ///
    /// # Errors
    /// It learns nothing, or keeps nothing of it.
    pub async fn export_learned(&self, key: SigningKey) -> Result<Vec<u8>, ApiError> {
        self.with_learned(move |tenant| Ok(tenant.export(&key)?)).await
    }

    /// Puts what a signed file says in the place of all that the first model has learned, and returns the generation's number.
    ///
    /// # Errors
    /// It learns nothing; the file was changed, is of another model, or signed by nobody of `trusted`.
    pub async fn import_learned(&self, file: Vec<u8>, trusted: Vec<PublicKey>) -> Result<u64, ApiError> {
        let import = move |tenant: &TenantLearning| match tenant.import(&file, &trusted) {
            Ok((generation, _)) => Ok(generation),
            Err(error) => Err(ApiError::bad("", error.to_string())),
        };
        self.with_learned(import).await
    }

    async fn with_learned<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TenantLearning) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let model = self.server.model(None, None).await?;
        offload(move || work(&*model_state(&model)?.tenant(&Tenant::everybody())?)).await
    }

    /// Takes no requests from now on, ends after `limit` those that are not over by then, and returns the engines that were
    /// loaded. It blocks the thread until they are over.
    ///
    /// # Errors
    /// An engine's thread broke, or something could not be kept.
    pub fn stop(&self, limit: Duration) -> Result<Vec<Engine>, ServerError> {
        self.maintenance.abort();
        self.server.drain(limit);
        self.server.join()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.maintenance.abort();
        self.server.drain(Duration::ZERO);
    }
}

/// The body of an answer, in the chunks in which it comes.
#[derive(Debug)]
pub struct AnswerBody(Pin<Box<Body>>);

impl AnswerBody {
    /// Waits for the next bytes and returns them, with those that are there already, up to about `most`; `None` at the end.
    pub async fn next(&mut self, most: usize) -> Option<Bytes> {
        let first = poll_fn(|cx| self.poll_bytes(cx)).await?;
        let mut cx = Context::from_waker(Waker::noop());
        let mut all = Vec::new();
        while all.len() + first.len() < most
            && let Poll::Ready(Some(more)) = self.poll_bytes(&mut cx)
        {
            all.extend_from_slice(&more);
        }
        match all.is_empty() {
            true => Some(first),
            false => Some([&first[..], &all].concat().into()),
        }
    }

    fn poll_bytes(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let Poll::Ready(frame) = self.0.as_mut().poll_frame(cx) else { return Poll::Pending };
            // Bodies of this server do not fail, and trailers say nothing here.
            let Some(Ok(frame)) = frame else { return Poll::Ready(None) };
            if let Ok(bytes) = frame.into_data() {
                return Poll::Ready(Some(bytes));
            }
        }
    }
}
