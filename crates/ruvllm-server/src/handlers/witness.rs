//! `/v1/witness`: a caller's own records, and whether the chain stands.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use ruvllm_api::record::{policy_json, record_json};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::witness::{Witness, tenant_name};
use ruvllm_sona::SonaErrorKind;
use ruvllm_sona::policy::{Policy, PolicyStore as _};
use ruvllm_sona::witness::{Anchor, Event, Query, Recorded, Served, search, verify};
use ruvllm_witness::{fault_name, number_of};
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, ServerCall};

const MS_MAX: i64 = 1 << 53;
/// Records in one answer.
const LIMIT_MAX: i64 = 10_000;
const LIMIT: usize = 100;
/// Faults that are listed.
const FAULTS_MAX: usize = 1000;

const SEARCH: &[Field] = &[
    optional("from_ms", Kind::Int(0, MS_MAX), "recorded from this time on, in Unix milliseconds"),
    optional("to_ms", Kind::Int(0, MS_MAX), "recorded before this time"),
    optional("model", Kind::Text, "of the model of this hash: 64 hexadecimal digits, or how they begin"),
    optional("request", Kind::Text, "of this request: its x-request-id, or the id of its answer"),
    optional("quality_min", Kind::Number(0.0, 1.0), "of at least this quality"),
    optional("quality_max", Kind::Number(0.0, 1.0), "of at most this quality"),
    optional("failed", Kind::Bool, "that failed, or that did not"),
    optional("error", Kind::Text, "that failed with a line which has this in it"),
    optional("limit", Kind::Int(1, LIMIT_MAX), "the most records, the newest; 100 if it is left out"),
];

const VERIFY: &[Field] =
    &[optional("anchor", Kind::Text, "an anchor that was kept elsewhere: what was cut off since shows against it")];

const FEEDBACK: &[Field] = &[
    required("request", Kind::Text, "the request: its x-request-id, or the id of its answer"),
    required("quality", Kind::Number(0.0, 1.0), "how good its answer was"),
];

const GET: Endpoint = Endpoint {
    method: Method::GET,
    path: "/v1/witness",
    summary: "Lists the newest records of the caller's requests",
    answers: &["object", "data"],
    run: Handler::Server(list),
    ..Endpoint::POST
};

const POST: Endpoint = Endpoint { method: Method::POST, ..GET };

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    GET,
    Endpoint {
        path: "/v1/witness/search",
        summary: "Finds records of the caller's requests by time, model, quality or error",
        fields: &[SEARCH],
        run: Handler::Server(find),
        ..POST
    },
    Endpoint {
        path: "/v1/witness/verify",
        summary: "Checks the whole chain of records: what was edited, removed or swapped",
        fields: &[VERIFY],
        answers: &["sound", "records", "erased", "lost", "anchor", "faults"],
        run: Handler::Server(check),
        ..POST
    },
    Endpoint {
        path: "/v1/witness/feedback",
        summary: "Puts on record how good an answer was",
        fields: &[FEEDBACK],
        answers: &["request", "quality"],
        run: Handler::Server(feedback),
        ..POST
    },
    Endpoint {
        path: "/v1/policies",
        summary: "Lists the policies that count for the caller: what was learned of how to compute, and what was said",
        run: Handler::Server(policies),
        ..GET
    },
    Endpoint {
        method: Method::DELETE,
        summary: "Erases the contents of the caller's records; the chain over them stands",
        answers: &["erased"],
        run: Handler::Server(erase),
        ..GET
    },
];

/// Returns the server's log.
///
/// # Errors
/// 404: it keeps none.
pub(super) fn witness(call: &ServerCall) -> Result<Arc<Witness>, ApiError> {
    call.server.witness.clone().ok_or_else(|| {
        let line = "this server keeps no witness log; start it with --witness DIR";
        ApiError::new(StatusCode::NOT_FOUND, line).code("no_witness")
    })
}

/// Does what reads or writes the log where it holds up nobody.
fn with_log(
    call: ServerCall,
    work: impl FnOnce(&Witness, &ServerCall) -> Result<Value, ApiError> + Send + 'static,
) -> HandlerFuture {
    Box::pin(async move {
        let witness = witness(&call)?;
        offload(move || Ok(json_response(StatusCode::OK, &work(&witness, &call)?))).await
    })
}

fn sona(error: ruvllm_sona::SonaError) -> ApiError {
    let status = match error.kind() {
        SonaErrorKind::Limit => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    ApiError::new(status, format!("the witness log: {error}"))
}

fn found(
    witness: &Witness,
    call: &ServerCall,
    query: &Query,
    keeps: impl Fn(&Recorded) -> bool,
) -> Result<Value, ApiError> {
    // What was answered before this is found by it.
    witness.log.flush().map_err(sona)?;
    let records = search(witness.store.as_ref(), tenant_name(&call.tenant), query).map_err(sona)?;
    let data: Vec<Value> = records.iter().filter(|record| keeps(record)).map(record_json).collect();
    Ok(json!({ "object": "list", "data": data }))
}

fn list(call: ServerCall) -> HandlerFuture {
    with_log(call, |witness, call| found(witness, call, &Query { n_max: LIMIT, ..Query::default() }, |_| true))
}

/// Those for everybody and one's own.
fn policies(call: ServerCall) -> HandlerFuture {
    with_log(call, |witness, call| {
        // What was learned before this is listed.
        witness.log.flush().map_err(sona)?;
        let is_own = |policy: &Policy| policy.tenant.as_deref().is_none_or(|name| name == tenant_name(&call.tenant));
        let data: Vec<Value> =
            witness.policies.list().iter().filter(|policy| is_own(policy)).map(policy_json).collect();
        Ok(json!({ "object": "list", "data": data }))
    })
}

fn find(call: ServerCall) -> HandlerFuture {
    with_log(call, |witness, call| {
        let given = &call.body;
        let ms = |name: &str, default: u64| given.int(name).map_or(default, |ms| ms as u64);
        let request = given.text("request").map(number).transpose()?;
        let begins = given.text("model").map(str::to_lowercase);
        if begins.as_ref().is_some_and(|begins| begins.len() > 64 || !begins.bytes().all(|b| b.is_ascii_hexdigit())) {
            return Err(ApiError::bad("model", "'model' is no hash; a record shows it, in hexadecimal digits"));
        }
        let quality = |name: &str| given.number(name);
        let query = Query {
            from_ms: ms("from_ms", 0),
            to_ms: ms("to_ms", u64::MAX),
            request,
            quality_min: quality("quality_min"),
            quality_max: quality("quality_max"),
            has_failed: given.get("failed").and_then(Value::as_bool),
            error: given.text("error").map(str::to_owned),
            n_max: given.count("limit").unwrap_or(LIMIT),
            ..Query::default()
        };
        let is_of_model = |record: &Recorded| match (&begins, &record.event) {
            (None, _) => true,
            (Some(begins), Event::Served(served)) => hex::encode(served.model).starts_with(begins),
            (Some(_), _) => false,
        };
        found(witness, call, &query, is_of_model)
    })
}

/// Returns the record of a tenant's answer.
///
/// # Errors
/// 404: there is none; the log cannot be read.
pub(super) fn one_record(witness: &Witness, tenant: &Tenant, request: u64) -> Result<Box<Served>, ApiError> {
    witness.log.flush().map_err(sona)?;
    let query = Query { request: Some(request), ..Query::default() };
    let found = search(witness.store.as_ref(), tenant_name(tenant), &query).map_err(sona)?;
    let served = found.into_iter().find_map(|record| match record.event {
        Event::Served(served) => Some(served),
        _ => None,
    });
    served.ok_or_else(|| {
        let line = format!("there is no answer to the request {request:016x} on record");
        ApiError { param: Some("request".to_owned()), ..ApiError::new(StatusCode::NOT_FOUND, line) }
    })
}

/// Reads the number of a request.
///
/// # Errors
/// 400: it is none.
pub(super) fn number(id: &str) -> Result<u64, ApiError> {
    number_of(id).ok_or_else(|| {
        let line = format!("'{id}' is no request; send its x-request-id or the id of its answer");
        ApiError::bad("request", line)
    })
}

fn check(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let witness = witness(&call)?;
        let anchor = call.body.text("anchor").map(Anchor::parse).transpose();
        let anchor = anchor.map_err(|error| ApiError::bad("anchor", error.to_string()))?;
        let _one = witness.verifying.lock().await;
        let of_work = Arc::clone(&witness);
        offload(move || {
            of_work.log.flush().map_err(sona)?;
            let verified = verify(of_work.store.as_ref(), anchor.as_ref()).map_err(sona)?;
            let fault =
                |fault: &ruvllm_sona::witness::Fault| json!({ "seq": fault.seq, "kind": fault_name(fault.kind) });
            let faults: Vec<Value> = verified.faults.iter().take(FAULTS_MAX).map(fault).collect();
            Ok(json_response(
                StatusCode::OK,
                &json!({
                    "sound": verified.faults.is_empty(),
                    "records": verified.n_records,
                    "erased": verified.n_erased,
                    "lost": verified.n_lost,
                    "anchor": verified.head.to_string(),
                    "n_faults": verified.faults.len(),
                    "faults": faults,
                }),
            ))
        })
        .await
    })
}

fn feedback(call: ServerCall) -> HandlerFuture {
    with_log(call, |witness, call| {
        let id = call.body.text("request").unwrap_or_default();
        let (request, quality) = (number(id)?, call.body.number("quality").unwrap_or_default());
        let tenant = tenant_name(&call.tenant);
        witness.log.flush().map_err(sona)?;
        let query = Query { request: Some(request), n_max: 1, ..Query::default() };
        if search(witness.store.as_ref(), tenant, &query).map_err(sona)?.is_empty() {
            let line = format!("there is no request {id} on record; feedback is about one's own requests");
            return Err(ApiError { param: Some("request".to_owned()), ..ApiError::new(StatusCode::NOT_FOUND, line) });
        }
        if !witness.log.record(tenant, Event::Feedback { request, quality }) {
            let line = "the witness log cannot keep up; try again later";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line));
        }
        Ok(json!({ "request": format!("{request:016x}"), "quality": quality }))
    })
}

fn erase(call: ServerCall) -> HandlerFuture {
    with_log(call, |witness, call| {
        let n = witness.log.erase_tenant(tenant_name(&call.tenant)).map_err(sona)?;
        witness.forget_answers(tenant_name(&call.tenant));
        Ok::<_, ApiError>(json!({ "erased": n }))
    })
}
