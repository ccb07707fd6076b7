//! `/v1/capabilities` and `/openapi.json`: the tables of endpoints and fields, as data.

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::{Field, schema};
use ruvllm_api::remote::MISSING;
use ruvllm_engine::ModelInfo;
use ruvllm_server_state::models::ModelStatus;
use ruvllm_witness::decimal;
use serde_json::{Map, Value, json};

use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, Lists, ServerCall};
use crate::router::endpoints;

const GET: Endpoint =
    Endpoint { method: Method::GET, needs_key: false, run: Handler::Server(capabilities), ..Endpoint::POST };

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/capabilities",
        summary: "Returns what the server takes: endpoints, fields, limits",
        answers: &["version", "model", "limits", "endpoints"],
        run: Handler::Server(capabilities),
        ..GET
    },
    Endpoint {
        path: "/openapi.json",
        summary: "Returns the API's OpenAPI 3.1 document",
        answers: &["openapi", "info", "paths"],
        run: Handler::Server(openapi),
        ..GET
    },
];

/// Statuses that an endpoint with a body may answer with, beside 200; but those of [`OF_SOME`].
const STATUSES: &[(u16, &str)] = &[
    (400, "the request cannot be honoured; the message names the field"),
    (401, "no API key, or one that is not known"),
    (403, "the key may not do this"),
    (404, "the model, the adapter or the answer is not known here"),
    (408, "the body took too long"),
    (409, "the state of the server does not allow it now; the message says why"),
    (413, "the body is too large"),
    (415, "the body is not application/json"),
    (429, "too many requests wait, or the key has as many as it may; see the header Retry-After"),
    (500, "an internal error"),
    (501, "another server answers for the model, and gives no such thing; /v1/capabilities says what is missing"),
    (502, "another server that answers for the model cannot be reached, or refuses the request"),
    (503, "the server is stopping, has no memory for the request, or no room for its model"),
    (504, "the request's time was over"),
    (507, "there is no room for it, on the disk or within a limit"),
];

/// Statuses of those endpoints only that name them.
const OF_SOME: [u16; 2] = [409, 507];

fn ok(value: &Value) -> Result<Response<Body>, ApiError> {
    Ok(json_response(StatusCode::OK, value))
}

/// Returns what the server takes.
fn capabilities(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let (server, options) = (&call.server, call.server.options());
        let (sampling, statuses) = (&options.sampling, server.models.statuses());
        let models: Vec<Value> = statuses.iter().map(model).collect();
        let loaded = server.models.loaded();
        let first = loaded.iter().find(|model| *model.name == *statuses[0].name);
        let tool_format = first.and_then(|model| model.engine()).map(|service| service.text().tool_format().as_str());
        ok(&json!({
            "version": env!("CARGO_PKG_VERSION"),
            "model": models[0],
            "models": models,
            "tools": { "format": tool_format, "choice": ["none", "auto", "required", "named"], "strict": true },
            "limits": {
                "requests_at_once": server.models.loaded().iter().map(|model| model.n_running_max()).max(),
                "queue": options.queue_max,
                "models_at_once": options.models_max.min(models.len()),
                "idle_seconds": options.idle_timeout.map(|timeout| timeout.as_secs()),
                "body_bytes": options.body_bytes_max,
                "request_seconds": options.request_timeout.map(|timeout| timeout.as_secs()),
            },
            "defaults": {
                "temperature": decimal(sampling.temperature),
                "top_p": decimal(sampling.top_p),
                "top_k": sampling.top_k,
                "min_p": decimal(sampling.min_p),
                "repeat_penalty": decimal(sampling.repeat_penalty),
                "repeat_last_n": sampling.repeat_last_n,
            },
            "learns": options.learning.is_some(),
            "manages_keys": server.keys.is_administered_by(&call.tenant),
            "endpoints": endpoints().map(endpoint).collect::<Vec<_>>(),
        }))
    })
}

/// Describes a model, as far as it is known: what was never loaded has a name only. Requests for what is missing are answered with
/// 501.
fn model(model: &ModelStatus) -> Value {
    let n_ctx = model.info.as_ref().map(|info| info.n_ctx);
    let (backend, missing) = match model.is_remote {
        true => (Some("remote"), MISSING),
        false => (model.info.as_ref().map(|info| info.device.backend), &[][..]),
    };
    let makes = model.info.as_ref().map(makes).or(model.is_remote.then_some("text"));
    json!({
        "id": &*model.name,
        "state": model.state,
        "backend": backend,
        "n_ctx": n_ctx,
        "makes": makes,
        "missing": missing,
    })
}

/// Returns what a model is for.
fn makes(info: &ModelInfo) -> &'static str {
    match (info.is_ranker, info.is_encoder) {
        (true, _) => "scores",
        (_, true) => "embeddings",
        _ => "text",
    }
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let field = |field: &Field| json!({ "name": field.name, "takes": field.kind.words(), "required": field.is_required, "does": field.doc, "also": field.also, "deprecated": field.old, "effect": field.has_effect });
    json!({
        "method": endpoint.method.as_str(),
        "path": endpoint.path,
        "summary": endpoint.summary,
        "accepted": endpoint.all_fields().iter().map(field).collect::<Vec<_>>(),
        "query": endpoint.query.iter().map(field).collect::<Vec<_>>(),
        "refused": refused(endpoint),
    })
}

/// Returns the fields that are known and refused, with the reasons.
fn refused(endpoint: &Endpoint) -> Value {
    endpoint.unsupported.iter().map(|(name, why)| json!({ "name": name, "why": why })).collect()
}

/// Returns the OpenAPI document.
fn openapi(_: ServerCall) -> HandlerFuture {
    Box::pin(async { ok(&document()) })
}

/// Makes the OpenAPI document of the tables.
pub(crate) fn document() -> Value {
    let mut paths = Map::new();
    for endpoint in endpoints() {
        let path = endpoint.path.replace("{*", "{");
        let method = endpoint.method.as_str().to_ascii_lowercase();
        let item = paths.entry(path).or_insert_with(|| json!({}));
        item[method] = operation(endpoint);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "RuvLLM",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A field that is not listed, and a value that its schema does not allow, is answered with 400.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "paths": paths,
        "components": {
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
            "schemas": {
                "OpenAiError": openai_error(),
                "AnthropicError": anthropic_error(),
                "OllamaError": ollama_error(),
            },
        },
    })
}

fn operation(endpoint: &Endpoint) -> Value {
    let error = match endpoint.shape {
        Shape::OpenAi | Shape::LlamaCpp => "#/components/schemas/OpenAiError",
        Shape::Anthropic => "#/components/schemas/AnthropicError",
        Shape::Ollama => "#/components/schemas/OllamaError",
    };
    let mut responses = Map::new();
    responses.insert("200".to_owned(), answer(endpoint));
    let has_body = !endpoint.fields.is_empty();
    let is_refusable = endpoint.method == Method::DELETE || !endpoint.query.is_empty();
    let is_usual = |status: u16| has_body || (status == 400 && is_refusable) || matches!(status, 401 | 404 | 500 | 503);
    let is_told = |status| endpoint.statuses.contains(&status) || (is_usual(status) && !OF_SOME.contains(&status));
    for (status, what) in STATUSES.iter().filter(|(status, _)| is_told(*status)) {
        let content = json!({ "application/json": { "schema": { "$ref": error } } });
        responses.insert(status.to_string(), json!({ "description": what, "content": content }));
    }
    let mut operation = json!({ "summary": endpoint.summary, "responses": responses });
    if has_body {
        let schema = schema::of_object(&endpoint.all_fields());
        let kind = if matches!(endpoint.run, Handler::Form(_)) { "multipart/form-data" } else { "application/json" };
        operation["requestBody"] = json!({ "required": true, "content": { kind: { "schema": schema } } });
    }
    if !endpoint.unsupported.is_empty() {
        operation["x-refused"] = refused(endpoint);
    }
    if endpoint.needs_key {
        operation["security"] = json!([{ "key": [] }, {}]);
    }
    let parameters: Vec<Value> = parameters(endpoint);
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
    }
    operation
}

/// Returns what stands in the path, and in the query.
fn parameters(endpoint: &Endpoint) -> Vec<Value> {
    let named = |part: &str| Some(part.strip_prefix('{')?.strip_suffix('}')?.trim_start_matches('*').to_owned());
    let of_path =
        |name: String| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let of_query = |field: &Field| {
        let (schema, doc) = (schema::of_kind(&field.kind), field.doc);
        json!({ "name": field.name, "in": "query", "required": field.is_required, "schema": schema, "description": doc })
    };
    endpoint.path.split('/').filter_map(named).map(of_path).chain(endpoint.query.iter().map(of_query)).collect()
}

fn answer(endpoint: &Endpoint) -> Value {
    let mut content = Map::new();
    if endpoint.answers.is_empty() {
        content.insert("text/plain".to_owned(), json!({ "schema": { "type": "string" } }));
    } else {
        let one = json!({ "type": "object", "required": endpoint.answers });
        let list = json!({ "type": "array", "items": one });
        let schema = match endpoint.lists {
            Lists::Never => one,
            Lists::Several => json!({ "anyOf": [one, list] }),
            Lists::Always => list,
        };
        content.insert("application/json".to_owned(), json!({ "schema": schema }));
    }
    let is_streamed = endpoint.all_fields().iter().any(|field| field.name == "stream");
    if is_streamed && endpoint.shape == Shape::Ollama {
        content.insert("application/x-ndjson".to_owned(), json!({ "schema": { "type": "string" } }));
    } else if is_streamed {
        // The schema is that of an event, as tools read it.
        let text = json!({ "type": "string" });
        let event = json!({ "type": "object", "required": ["data"], "properties": { "data": text, "event": text } });
        content.insert("text/event-stream".to_owned(), json!({ "schema": event }));
    }
    json!({ "description": endpoint.summary, "content": content })
}

fn openai_error() -> Value {
    let text_or_null = json!({ "type": ["string", "null"] });
    json!({ "type": "object", "required": ["error"], "properties": { "error": {
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": { "type": "string" },
            "type": { "type": "string" },
            "param": text_or_null,
            "code": text_or_null,
            "n_prompt_tokens": { "type": "integer" },
            "n_ctx": { "type": "integer" },
        },
    } } })
}

fn ollama_error() -> Value {
    json!({ "type": "object", "required": ["error"], "properties": { "error": { "type": "string" } } })
}

fn anthropic_error() -> Value {
    json!({ "type": "object", "required": ["type", "error"], "properties": {
        "type": { "const": "error" },
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": { "type": { "type": "string" }, "message": { "type": "string" } },
        },
    } })
}
