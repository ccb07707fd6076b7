//! Answers the requests of batches while nobody else asks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::http::StatusCode;
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::ValidBody;
use ruvllm_server_state::batches::{Batches, Job};
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::server::Server;
use serde_json::{Value, json};
use tokio::task::{Id, JoinSet};
use tracing::Instrument as _;

use super::endpoints;
use super::enter::of_model;
use crate::call::{Endpoint, Handler, NewCall, span};

/// The most bytes of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Longest time between two looks for something to do.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a request waits that the server could not take.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// How often a request that the engine cannot put off looks whether it is alone.
const IDLE_INTERVAL: Duration = Duration::from_millis(20);

/// Outcome of a request.
enum Outcome {
    /// Its answer: a status and what it says.
    Answer(u16, Value),
    /// The server could not take it now.
    Later,
}

/// Answers the requests of batches until the server stops. When this is dropped those that are at work are given back.
pub(crate) async fn run(server: Arc<Server>) {
    let Some(batches) = server.batches.clone() else { return };
    let (mut tasks, mut jobs) = (JoinSet::new(), HashMap::<Id, Job>::new());
    while !server.is_stopping() {
        while tasks.len() < n_places(&server) {
            let Some(job) = batches.next(|tenant| server.keys.named(tenant).is_some()) else { break };
            let task = answer(Arc::clone(&server), Arc::clone(&batches), job.clone());
            jobs.insert(tasks.spawn(task).id(), job);
        }
        tokio::select! {
            Some(ended) = tasks.join_next_with_id() => match ended {
                Ok((id, outcome)) => keep(&server, &batches, jobs.remove(&id), outcome),
                Err(error) => {
                    let line = "an internal error ended this request; the server's log says more";
                    let body = ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line).body(Shape::OpenAi);
                    keep(&server, &batches, jobs.remove(&error.id()), Outcome::Answer(500, body));
                }
            },
            () = batches.changed() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => batches.settle(),
        }
    }
}

/// Keeps what became of a request, on a thread that nobody waits for.
fn keep(server: &Arc<Server>, batches: &Arc<Batches>, job: Option<Job>, outcome: Outcome) {
    let Some(job) = job else { return };
    match outcome {
        Outcome::Later => batches.put_back(job),
        Outcome::Answer(status, body) => {
            server.metrics.batched(status == 200);
            let (batches, id) = (Arc::clone(batches), server.new_id());
            tokio::task::spawn_blocking(move || batches.record(job, &id, status, &body));
        }
    }
}

/// Returns how many requests may be at work at once: as many as a model computes together.
fn n_places(server: &Server) -> usize {
    server.models.loaded().iter().map(|model| model.n_running_max()).max().unwrap_or(1)
}

/// Answers a request of a batch.
async fn answer(server: Arc<Server>, batches: Arc<Batches>, job: Job) -> Outcome {
    let Some(tenant) = server.keys.named(&job.tenant).map(|tenant| tenant.for_batches()) else {
        tokio::time::sleep(RETRY_AFTER).await;
        return Outcome::Later;
    };
    let id = server.new_id();
    let span = span(&id, "/v1/batches");
    span.record("tenant", &*tenant.name);
    // Embeddings and other servers have no priorities.
    if job.endpoint == "/v1/embeddings" {
        while server.n_inside() > batches.n_in_flight() {
            tokio::time::sleep(IDLE_INTERVAL).await;
        }
    }
    match ask(&server, tenant, &job, &id, &span).instrument(span.clone()).await {
        Ok(body) => Outcome::Answer(200, body),
        Err(error) if is_passing(&error) => {
            tokio::time::sleep(RETRY_AFTER).await;
            Outcome::Later
        }
        Err(error) => Outcome::Answer(error.status.as_u16(), error.body(Shape::OpenAi)),
    }
}

/// Returns whether the same request may be taken later: the server has no room, is about to stop, or the key went.
fn is_passing(error: &ApiError) -> bool {
    [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE, StatusCode::UNAUTHORIZED].contains(&error.status)
}

/// Asks the endpoint as a client would.
async fn ask(
    server: &Arc<Server>,
    tenant: Tenant,
    job: &Job,
    id: &str,
    span: &tracing::Span,
) -> Result<Value, ApiError> {
    let endpoint: &'static Endpoint = endpoints()
        .find(|endpoint| endpoint.path == job.endpoint)
        .ok_or_else(|| ApiError::bad("url", format!("'{}' is no endpoint of batches", job.endpoint)))?;
    let Handler::Model(run) = endpoint.run else {
        return Err(ApiError::bad("url", format!("'{}' is no endpoint of batches", job.endpoint)));
    };
    let body = ValidBody::check(job.body.clone(), &endpoint.all_fields(), endpoint.unsupported)?;
    let new = NewCall { tenant, body, deadline: server.deadline(None), id, span };
    let response = of_model(server, endpoint, new, endpoint.shape, run, &mut Vec::new()).await?;
    let bytes = to_bytes(response.into_body(), ANSWER_BYTES_MAX).await.map_err(|error| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the answer cannot be kept: {error}"))
    })?;
    Ok(serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(String::from_utf8_lossy(&bytes))))
}
