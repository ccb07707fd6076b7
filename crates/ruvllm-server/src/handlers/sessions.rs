//! `/v1/sessions`: which conversations there are, whose, about what, and what they are served with.
//!
//! A request that names a `session` is a turn of it. The conversation itself comes with each request, as in every API;
//! what is kept here is how it is gone on with. It lies in the store of the witness log.

use axum::http::{Method, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional};
use ruvllm_api::session::{SESSION_DIM, session_json};
use ruvllm_router::HashedWords;
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::witness::tenant_name;
use ruvllm_sona::SonaError;
use ruvllm_sona::session::SessionIndex;
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, ServerCall};

const PATH: &str = "/v1/sessions/";

const SEARCH: &[Field] = &[
    optional("like", Kind::Text, "nearest first to what this text is about, by its words"),
    optional("user", Kind::Text, "of this user only"),
    optional("limit", Kind::Int(1, 1000), "the most sessions; 20 if it is left out"),
];

const GET: Endpoint = Endpoint {
    method: Method::GET,
    path: "/v1/sessions",
    summary: "Lists the caller's sessions, the latest first",
    answers: &["object", "data"],
    run: Handler::Server(list),
    ..Endpoint::POST
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    GET,
    Endpoint {
        method: Method::POST,
        summary: "Finds sessions by user and by what they are about",
        fields: &[SEARCH],
        run: Handler::Server(find),
        ..GET
    },
    Endpoint {
        method: Method::DELETE,
        summary: "Forgets all sessions of the caller, on the disk as well",
        answers: &["deleted"],
        run: Handler::Server(forget),
        ..GET
    },
    Endpoint {
        path: "/v1/sessions/{*session}",
        summary: "Describes a session",
        answers: &["name", "user", "model", "adapter", "turns", "tokens", "used_ms"],
        run: Handler::Server(one),
        ..GET
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/sessions/{*session}",
        summary: "Forgets a session",
        answers: &["name", "deleted"],
        run: Handler::Server(remove),
        ..GET
    },
];

fn failed(error: SonaError) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the sessions: {error}"))
}

/// Does what reads or writes sessions where it holds up nobody.
fn with_index(
    call: ServerCall,
    work: impl FnOnce(&SessionIndex, &str, &ServerCall) -> Result<Value, ApiError> + Send + 'static,
) -> HandlerFuture {
    Box::pin(async move {
        let Some(witness) = call.server.witness.clone() else {
            let line = "this server keeps no sessions; start it with --witness DIR";
            return Err(ApiError::new(StatusCode::NOT_FOUND, line).code("no_sessions"));
        };
        offload(move || {
            let answer = work(&witness.sessions, tenant_name(&call.tenant), &call)?;
            Ok(json_response(StatusCode::OK, &answer))
        })
        .await
    })
}

fn described(index: &SessionIndex, tenant: &str, names: Vec<(String, Option<u64>)>) -> Result<Value, ApiError> {
    let mut data = Vec::new();
    for (name, used_ms) in names {
        // One that was forgotten meanwhile is left out.
        if let Some(session) = index.recover(tenant, &name).map_err(failed)? {
            data.push(session_json(&name, &session, used_ms));
        }
    }
    Ok(json!({ "object": "list", "data": data }))
}

fn list(call: ServerCall) -> HandlerFuture {
    with_index(call, |index, tenant, _| {
        described(index, tenant, index.list(tenant).into_iter().map(|(name, used)| (name, Some(used))).collect())
    })
}

fn find(call: ServerCall) -> HandlerFuture {
    with_index(call, |index, tenant, call| {
        let given = &call.body;
        let n_max = given.count("limit").unwrap_or(20);
        let used: std::collections::HashMap<String, u64> = index.list(tenant).into_iter().collect();
        let mut names: Vec<String> = match given.text("like") {
            None => index.list(tenant).into_iter().map(|(name, _)| name).collect(),
            Some(text) => {
                let query = HashedWords::new(SESSION_DIM).vector(text);
                if query.iter().all(|&x| x == 0.0) {
                    return Err(ApiError::bad("like", "'like' has no words to find sessions by"));
                }
                let found = index.nearest(tenant, &query, used.len()).map_err(failed)?;
                found.into_iter().filter(|(_, similarity)| *similarity > 0.0).map(|(name, _)| name).collect()
            }
        };
        if let Some(user) = given.text("user") {
            let of_user = index.of_user(tenant, user);
            names.retain(|name| of_user.binary_search(name).is_ok());
        }
        names.truncate(n_max);
        described(
            index,
            tenant,
            names.into_iter().map(|name| (used.get(&name).copied(), name)).map(|(used, name)| (name, used)).collect(),
        )
    })
}

fn unknown(name: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no session '{name}'")).code("session_not_found")
}

fn one(call: ServerCall) -> HandlerFuture {
    with_index(call, |index, tenant, call| {
        let name = call.path_behind(PATH);
        let session = index.recover(tenant, &name).map_err(failed)?.ok_or_else(|| unknown(&name))?;
        let used_ms = index.list(tenant).into_iter().find(|(known, _)| *known == name).map(|(_, used)| used);
        Ok(session_json(&name, &session, used_ms))
    })
}

fn remove(call: ServerCall) -> HandlerFuture {
    with_index(call, |index, tenant, call| {
        let name = call.path_behind(PATH);
        match index.remove(tenant, &name).map_err(failed)? {
            true => Ok(json!({ "name": name, "deleted": true })),
            false => Err(unknown(&name)),
        }
    })
}

fn forget(call: ServerCall) -> HandlerFuture {
    with_index(call, |index, tenant, _| Ok(json!({ "deleted": index.forget_tenant(tenant).map_err(failed)? })))
}
