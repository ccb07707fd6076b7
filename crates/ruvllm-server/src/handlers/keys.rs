//! `/v1/keys`: the API keys, listed, made and deleted by one that may administer them.

use axum::http::{HeaderValue, Method, StatusCode, header};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::keys::{KeyAdmin, KeyInfo, KeyLimits, MIB_MAX, NewKey};
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, ServerCall};

/// The MiB that a key may be allowed.
const MIB: Kind = Kind::Int(1, MIB_MAX as i64);

const NEW: &[Field] = &[
    required("name", Kind::Text, "the tenant that the key is for; one that has keys gets one more"),
    optional("concurrent", Kind::Int(1, 1_000_000), "the most requests at once; no limit if it is left out"),
    optional("priority", Kind::Int(-10, 10), "the priority of its requests; 0 if it is left out"),
    optional("kv_mib", MIB, "the most MiB of KV cache that its requests hold together, in each model"),
    optional("adapter_mib", MIB, "the most MiB that its loaded adapters take together, in each model"),
    optional("is_admin", Kind::Bool, "whether it may administer keys"),
];

const POST: Endpoint = Endpoint {
    path: "/v1/keys",
    summary: "Makes a key of random characters, which is told this once; only a key with the word admin may",
    fields: &[NEW],
    answers: &[
        "id",
        "object",
        "name",
        "is_admin",
        "concurrent",
        "priority",
        "kv_mib",
        "adapter_mib",
        "source",
        "can_be_deleted",
        "key",
    ],
    statuses: &[409, 507],
    run: Handler::Server(create),
    ..Endpoint::POST
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    POST,
    Endpoint {
        method: Method::GET,
        summary: "Lists the keys without their secrets; only a key with the word admin may",
        fields: &[],
        answers: &["object", "data"],
        statuses: &[403],
        run: Handler::Server(list),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/keys/{id}",
        summary: "Deletes a key, and ends what runs by it; only a key with the word admin may",
        fields: &[],
        answers: &["id", "object", "deleted"],
        statuses: &[403, 409, 507],
        run: Handler::Server(delete),
        ..POST
    },
];

/// Returns a key as clients see it, without the secret.
fn describe(key: &KeyInfo) -> Value {
    let KeyLimits { concurrent_max, priority, kv_mib, adapter_mib } = key.limits;
    json!({
        "id": key.id,
        "object": "api_key",
        "name": &*key.name,
        "is_admin": key.is_admin,
        "concurrent": concurrent_max,
        "priority": priority,
        "kv_mib": kv_mib,
        "adapter_mib": adapter_mib,
        "source": key.source.as_str(),
        "can_be_deleted": key.can_be_deleted,
    })
}

/// Does what reads or writes the key file where it holds up nobody. No cache keeps the answer.
fn with_keys(
    call: ServerCall,
    work: impl FnOnce(&ServerCall, KeyAdmin<'_>) -> Result<Value, ApiError> + Send + 'static,
) -> HandlerFuture {
    Box::pin(async move {
        offload(move || {
            let options = call.server.options();
            let admin = KeyAdmin { tenant: &call.tenant, metrics_key: options.metrics_key.as_deref() };
            let mut response = json_response(StatusCode::OK, &work(&call, admin)?);
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            Ok(response)
        })
        .await
    })
}

fn list(call: ServerCall) -> HandlerFuture {
    with_keys(call, |call, admin| {
        let data: Vec<Value> = call.server.keys.list(admin)?.iter().map(describe).collect();
        Ok(json!({ "object": "list", "data": data }))
    })
}

fn create(call: ServerCall) -> HandlerFuture {
    with_keys(call, |call, admin| {
        let given = &call.body;
        let limits = KeyLimits {
            concurrent_max: given.count("concurrent"),
            priority: given.int("priority").and_then(|n| i8::try_from(n).ok()).unwrap_or_default(),
            kv_mib: given.count("kv_mib"),
            adapter_mib: given.count("adapter_mib"),
        };
        let name = given.text("name").unwrap_or_default().to_owned();
        let made = call.server.keys.create(admin, &NewKey { name, limits, is_admin: given.is_set("is_admin") })?;
        call.server.models.set_quotas();
        let key = &made.info;
        let by = &*call.tenant.name;
        tracing::info!(by, id = key.id, name = &*key.name, is_admin = key.is_admin, "an API key was made");
        let mut answer = describe(key);
        answer["key"] = json!(made.key);
        Ok(answer)
    })
}

fn delete(call: ServerCall) -> HandlerFuture {
    with_keys(call, |call, admin| {
        let id = call.part_behind("keys");
        call.server.keys.delete(admin, &id)?;
        call.server.models.set_quotas();
        tracing::info!(by = &*call.tenant.name, id, "an API key was deleted");
        Ok(json!({ "id": id, "object": "api_key", "deleted": true }))
    })
}
