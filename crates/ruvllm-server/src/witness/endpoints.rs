//! `/v1/witness`: a caller's own records, and whether the chain stands.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use ruvllm_sona::SonaErrorKind;
use ruvllm_sona::policy::{Policy, PolicyStore as _};
use ruvllm_sona::quality::Scores;
use ruvllm_sona::witness::{Anchor, Content, Event, FaultKind, Query, Recorded, search, verify};
use serde_json::{Value, json};

use super::{Witness, number_of, tenant_name};
use crate::app::{Answer, Endpoint, Plain, Run};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::offload;

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
    run: Run::Server(list),
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
        run: Run::Server(find),
        ..POST
    },
    Endpoint {
        path: "/v1/witness/verify",
        summary: "Checks the whole chain of records: what was edited, removed or swapped",
        fields: &[VERIFY],
        answers: &["sound", "records", "erased", "lost", "anchor", "faults"],
        run: Run::Server(check),
        ..POST
    },
    Endpoint {
        path: "/v1/witness/feedback",
        summary: "Puts on record how good an answer was",
        fields: &[FEEDBACK],
        answers: &["request", "quality"],
        run: Run::Server(feedback),
        ..POST
    },
    Endpoint {
        path: "/v1/policies",
        summary: "Lists the policies that count for the caller: what was learned of how to compute, and what was said",
        run: Run::Server(policies),
        ..GET
    },
    Endpoint {
        method: Method::DELETE,
        summary: "Erases the contents of the caller's records; the chain over them stands",
        answers: &["erased"],
        run: Run::Server(erase),
        ..GET
    },
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn content_json(content: &Content) -> Value {
    json!({ "digest": hex(&content.digest), "n_tokens": content.n_tokens, "tokens": content.tokens })
}

/// Returns the scores that are known, by name.
fn scores_json(scores: &Scores) -> Value {
    let known = scores.named().into_iter().filter_map(|(name, score)| Some((name.to_owned(), json!(score?))));
    Value::Object(known.collect())
}

/// Returns a record as clients and `ruvllm witness` see it.
pub fn record_json(recorded: &Recorded) -> Value {
    let Recorded { seq, unix_ms, event, quality } = recorded;
    let mut value = json!({ "seq": seq, "unix_ms": unix_ms });
    let rest = match event {
        Event::Served(served) => json!({
            "kind": "served",
            "request": format!("{:016x}", served.request),
            "model": hex(&served.model),
            "generation": served.adapter_generation,
            "template": hex(&served.template),
            "settings": serde_json::from_str(&served.settings).unwrap_or(Value::Null),
            "seed": served.seed.to_string(),
            "prompt": content_json(&served.prompt),
            "completion": content_json(&served.completion),
            "finish": served.finish,
            "cached_tokens": served.n_cached_tokens,
            "disk_tokens": served.n_disk_tokens,
            "routing": served.routing,
            "policy": served.policy,
            "queue_us": served.latency.queue_us,
            "prefill_us": served.latency.prefill_us,
            "decode_us": served.latency.decode_us,
            "quality": quality,
            "scores": scores_json(&served.scores),
            "error": served.error,
        }),
        Event::Feedback { request, quality } => {
            json!({ "kind": "feedback", "request": format!("{request:016x}"), "quality": quality })
        }
        Event::Learning { what } => json!({ "kind": "learning", "what": what }),
        Event::Lost { n } => json!({ "kind": "lost", "n": n }),
        Event::Erased { seqs } => json!({ "kind": "erased", "seqs": seqs }),
    };
    if let (Some(object), Value::Object(rest)) = (value.as_object_mut(), rest) {
        object.extend(rest);
    }
    value
}

/// Returns the name of a kind of fault.
pub fn fault_name(kind: FaultKind) -> &'static str {
    match kind {
        FaultKind::LinkChanged => "link changed",
        FaultKind::LinkMissing => "link missing",
        FaultKind::ContentsChanged => "contents changed",
        FaultKind::ContentsMissing => "contents missing",
        FaultKind::ContentsUnlinked => "contents without a link",
        FaultKind::AnchorMissed => "chain computed anew",
    }
}

fn witness(call: &Plain) -> Result<Arc<Witness>, ApiError> {
    call.server.witness.clone().ok_or_else(|| {
        let line = "this server keeps no witness log; start it with --witness DIR";
        ApiError::new(StatusCode::NOT_FOUND, line).code("no_witness")
    })
}

/// Does what reads or writes the log where it holds up nobody.
fn with_log(call: Plain, work: impl FnOnce(&Witness, &Plain) -> Result<Value, ApiError> + Send + 'static) -> Answer {
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

fn found(witness: &Witness, call: &Plain, query: &Query, keeps: impl Fn(&Recorded) -> bool) -> Result<Value, ApiError> {
    // What was answered before this is found by it.
    witness.log.flush().map_err(sona)?;
    let records = search(witness.store.as_ref(), tenant_name(&call.tenant), query).map_err(sona)?;
    let data: Vec<Value> = records.iter().filter(|record| keeps(record)).map(record_json).collect();
    Ok(json!({ "object": "list", "data": data }))
}

fn list(call: Plain) -> Answer {
    with_log(call, |witness, call| found(witness, call, &Query { n_max: LIMIT, ..Query::default() }, |_| true))
}

/// Returns a policy as clients and `ruvllm policy` see it.
pub fn policy_json(policy: &Policy) -> Value {
    json!({
        "version": policy.version,
        "kind": policy.kind.as_str(),
        "context": policy.context,
        "tenant": policy.tenant,
        "value": policy.value,
        "source": policy.source.as_str(),
        "confidence": policy.confidence,
        "reason": policy.reason,
        "created_ms": policy.created_ms,
        "expires_ms": policy.expires_ms,
    })
}

/// Those for everybody and one's own.
fn policies(call: Plain) -> Answer {
    with_log(call, |witness, call| {
        // What was learned before this is listed.
        witness.log.flush().map_err(sona)?;
        let is_own = |policy: &Policy| policy.tenant.as_deref().is_none_or(|name| name == tenant_name(&call.tenant));
        let data: Vec<Value> =
            witness.policies.list().iter().filter(|policy| is_own(policy)).map(policy_json).collect();
        Ok(json!({ "object": "list", "data": data }))
    })
}

fn find(call: Plain) -> Answer {
    with_log(call, |witness, call| {
        let given = &call.given;
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
            (Some(begins), Event::Served(served)) => hex(&served.model).starts_with(begins),
            (Some(_), _) => false,
        };
        found(witness, call, &query, is_of_model)
    })
}

fn number(id: &str) -> Result<u64, ApiError> {
    number_of(id).ok_or_else(|| {
        let line = format!("'{id}' is no request; send its x-request-id or the id of its answer");
        ApiError::bad("request", line)
    })
}

fn check(call: Plain) -> Answer {
    Box::pin(async move {
        let witness = witness(&call)?;
        let anchor = call.given.text("anchor").map(Anchor::parse).transpose();
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

fn feedback(call: Plain) -> Answer {
    with_log(call, |witness, call| {
        let id = call.given.text("request").unwrap_or_default();
        let (request, quality) = (number(id)?, call.given.number("quality").unwrap_or_default());
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

fn erase(call: Plain) -> Answer {
    with_log(call, |witness, call| {
        let n = witness.log.erase_tenant(tenant_name(&call.tenant)).map_err(sona)?;
        witness.forget_answers(tenant_name(&call.tenant));
        Ok::<_, ApiError>(json!({ "erased": n }))
    })
}
