//! The way of a request: key, body, check against the endpoint's table, handler, and the headers of the answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::ValidBody;
use ruvllm_api::thinking;
use ruvllm_server_state::gate::{self, offload};
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::server::Server;
use ruvllm_server_state::shared::Share;
use serde_json::{Value, json};
use tracing::Instrument as _;

use super::{ANTHROPIC_REQUEST_ID, PROBES, RENAMED, REQUEST_ID, UNHEEDED};
use crate::call::response::{held, respond};
use crate::call::{Call, Endpoint, Handler, HandlerFuture, NewCall, RawCall, ServerCall, body, routing, span};
use crate::handlers::ollama;

/// Answers a request, counts it and writes a line to the log.
pub(super) async fn enter(server: Arc<Server>, endpoint: &'static Endpoint, request: Request<Body>) -> Response<Body> {
    let (start, id) = (Instant::now(), server.new_id());
    let (span, shape) = (span(&id, endpoint.path), endpoint.shape.at(request.uri().path()));
    let result = handle(&server, endpoint, request, &id, &span).instrument(span.clone()).await;
    let refusal = result.as_ref().err().map(|error| {
        server.metrics.rejected(error.reason());
        error.message.clone()
    });
    let mut response = result.unwrap_or_else(|error| respond(&error, shape));
    if let Ok(id) = HeaderValue::from_str(&id) {
        if endpoint.shape == Shape::Anthropic {
            response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let (took, status) = (start.elapsed(), response.status().as_u16());
    server.metrics.answered(endpoint.path, status, took.as_secs_f64());
    let ms = took.as_millis() as u64;
    // Probes come all day long.
    let is_probe = PROBES.contains(&endpoint.path) || endpoint.path == "/metrics";
    span.in_scope(|| match refusal {
        None if is_probe => tracing::debug!(status, ms, "answered"),
        Some(error) => tracing::info!(status, ms, error, "refused"),
        None => tracing::info!(status, ms, "answered"),
    });
    response
}

/// What became of the body or the query of a request.
struct Checked {
    given: ValidBody,
    /// Memory that is kept for a body.
    part: Option<Share>,
    /// Whether the body takes a while to read.
    is_long: bool,
}

/// Reads the body or the query of a request, and checks it against the endpoint's table.
///
/// # Errors
/// As [`body::read`], [`body::parse`] and [`ValidBody::check`].
async fn check(
    server: &Server,
    endpoint: &'static Endpoint,
    caller: &Tenant,
    parts: &Parts,
    body: Body,
) -> Result<Checked, ApiError> {
    if let Method::GET | Method::DELETE = endpoint.method {
        let given = ValidBody::of_query(parts.uri.query().unwrap_or_default(), endpoint.query)?;
        return Ok(Checked { given, part: None, is_long: false });
    }
    body::check_content(&parts.headers)?;
    let mut read = body::read(body, &server.options(), &server.bodies, caller).await?;
    let is_long = read.bytes.len() > body::LONG_BYTES;
    let check = move || {
        // Where no field has to be there, nothing is as good as an empty object.
        let is_none = read.bytes.is_empty() && endpoint.all_fields().iter().all(|field| !field.is_required);
        let body = if is_none { json!({}) } else { body::parse(&mut read)? };
        let body = match (body, endpoint.list_field) {
            (list @ Value::Array(_), Some(name)) => json!({ name: list }),
            (body, _) => body,
        };
        let given = ValidBody::check(body, &endpoint.all_fields(), endpoint.unsupported)?;
        Ok((given, read.part))
    };
    let (given, part) = if is_long { offload(check).await? } else { check()? };
    Ok(Checked { given, part: Some(part), is_long })
}

async fn handle(
    server: &Arc<Server>,
    endpoint: &'static Endpoint,
    request: Request<Body>,
    id: &str,
    span: &tracing::Span,
) -> Result<Response<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    let caller = match endpoint.needs_key {
        true => server.keys.tenant(&parts.headers)?,
        // Some tell those who have a key more.
        false => server.keys.tenant(&parts.headers).unwrap_or_else(|_| Tenant::everybody()),
    };
    let tenant_id = caller.id;
    span.record("tenant", &*caller.name);
    // A tenant has its share of what is asked at once, whatever it is.
    let take = || server.at_work.take(caller.id, 1).ok_or_else(too_much_at_once);
    // What needs no key is answered at once, and beside all connections that are at work.
    let slot = endpoint.needs_key.then(take).transpose()?;
    if let Handler::Form(run) = endpoint.run {
        let call = RawCall { server: Arc::clone(server), tenant: caller, headers: parts.headers, body };
        return Ok(held(run(call).await?, slot));
    }
    let Checked { given, part, is_long } = check(server, endpoint, &caller, &parts, body).await?;
    let (user, metadata) = (given.text("user"), given.get("metadata").map(Value::to_string));
    if user.is_some() || metadata.is_some() {
        tracing::info!(user, metadata, "labels");
    }
    let (mut unheeded, renamed) = (given.unheeded.clone(), given.renamed.join(", "));
    let timeout = given.int("timeout_ms").map(|ms| Duration::from_millis(ms as u64));
    let deadline = server.deadline(timeout);
    let answer = async {
        match endpoint.run {
            Handler::Server(run) => {
                run(ServerCall { server: Arc::clone(server), tenant: caller, body: given, uri: parts.uri, deadline })
                    .await
            }
            Handler::Form(_) => Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "this body was read before")),
            Handler::Model(run) => {
                let shape = endpoint.shape.at(parts.uri.path());
                let new = NewCall { tenant: caller, body: given, deadline, id, span };
                of_model(server, endpoint, new, shape, run, &mut unheeded).await
            }
        }
    };
    let gate = is_long.then(|| server.gates.of(tenant_id));
    let mut response = gate::through(gate, answer).await?;
    for (name, line) in [(UNHEEDED, unheeded.join(", ")), (RENAMED, renamed)] {
        if let Some(line) = HeaderValue::from_str(&line).ok().filter(|value| !value.is_empty()) {
            response.headers_mut().insert(name, line);
        }
    }
    // What the request holds is given back when its answer has been sent.
    Ok(held(response, (slot, part)))
}

/// Answers a request that a model is named in.
pub(super) async fn of_model(
    server: &Arc<Server>,
    endpoint: &'static Endpoint,
    mut new: NewCall<'_>,
    shape: Shape,
    run: fn(Call) -> HandlerFuture,
    unheeded: &mut Vec<String>,
) -> Result<Response<Body>, ApiError> {
    let mut asked = None;
    if endpoint.shape == Shape::Ollama {
        asked = ollama::resolve(server, &new.tenant, &mut new.body)?;
    }
    let mut call = Call::new(server, new).await?;
    (call.asked_name, call.shape) = (asked, shape);
    if let Some(service) = call.model.engine() {
        unheeded.extend(thinking::not_done(&call.body, service.text()).map(str::to_owned));
    }
    let chosen = call.routing.clone().map(|reason| (Arc::clone(&call.model.name), reason));
    let mut response = run(if endpoint.takes_adapters() { call.with_adapters().await? } else { call }).await?;
    if let Some((model, reason)) = chosen {
        routing::tell(response.headers_mut(), &model, &reason);
    }
    Ok(response)
}

fn too_much_at_once() -> ApiError {
    let line = "this key has its share of the requests that the server works on at once; wait for one to end";
    let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, line).code("too_many_requests");
    ApiError { retry_after_s: Some(1), ..error }
}
