//! `/v1/witness/replay`: a recorded request, run again.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, required};
use ruvllm_engine::{EngineError, ErrorKind, GenerateRequest, GenerationSummary, Service, ServiceEvent};
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::models::ServedModel;
use ruvllm_sona::witness::Served;
use ruvllm_witness::compare;
use serde_json::json;

use crate::call::response::json_response;
use crate::call::{Endpoint, Handler, HandlerFuture, ServerCall};
use crate::handlers::witness::{number, one_record, witness};

const REPLAY: &[Field] = &[required("request", Kind::Text, "the request: its x-request-id, or the id of its answer")];

/// The endpoint.
pub(crate) static ENDPOINTS: &[Endpoint] = &[Endpoint {
    path: "/v1/witness/replay",
    summary: "Runs a recorded request again, and says whether the answer is the same token for token",
    fields: &[REPLAY],
    answers: &["request", "same", "n_tokens", "n_same", "finish", "recorded_finish", "other_program"],
    run: Handler::Server(replay),
    ..Endpoint::POST
}];

fn replay(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let witness = witness(&call)?;
        let request = number(call.body.text("request").unwrap_or_default())?;
        let _slot = call.tenant.enter()?;
        let (server, tenant) = (Arc::clone(&call.server), call.tenant.clone());
        let (served, model, again) = offload(move || {
            let served = one_record(&witness, &tenant, request)?;
            let model = model_of(server.models.loaded(), &served)?;
            let again = again(&model, &served).map_err(refused)?;
            Ok((served, model, GenerateRequest { tenant: tenant.id, priority: tenant.priority, ..again }))
        })
        .await?;
        let again = GenerateRequest { deadline: call.deadline, ..again };
        let summary = run(model.service()?, again).await?;
        let replayed = compare(&served, &summary).map_err(refused)?;
        Ok(json_response(
            StatusCode::OK,
            &json!({
                "request": format!("{request:016x}"),
                "same": replayed.is_same(),
                "n_tokens": replayed.n_tokens,
                "n_same": replayed.n_same,
                "finish": summary.finish_reason.as_str(),
                "recorded_finish": served.finish,
                "other_program": replayed.other_program,
            }),
        ))
    })
}

/// Finds the model that answered among those that are loaded.
fn model_of(loaded: Vec<Arc<ServedModel>>, served: &Served) -> Result<Arc<ServedModel>, ApiError> {
    let is_it =
        |model: &Arc<ServedModel>| model.recorder.as_ref().is_some_and(|recorder| recorder.model() == served.model);
    loaded.into_iter().find(is_it).ok_or_else(|| {
        let hash = &hex::encode(served.model)[..16];
        ApiError::bad(
            "request",
            format!("it was answered by the model {hash}…, which is not loaded here; load it first"),
        )
    })
}

fn again(model: &ServedModel, served: &Served) -> Result<GenerateRequest, EngineError> {
    let missing = || EngineError::new(ErrorKind::Options, "another server answers for this model");
    let (Some(service), Some(recorder)) = (model.engine(), &model.recorder) else { return Err(missing()) };
    recorder.replay_request(&model.name, served, || service.grammar_compiler())
}

/// What a record does not hold is the caller's fault.
fn refused(error: EngineError) -> ApiError {
    match error.kind() {
        ErrorKind::Options => ApiError::bad("request", format!("it cannot be replayed: {error}")),
        _ => error.into(),
    }
}

/// Runs a request to its end. It is not put on record, and nothing is learned from it.
async fn run(service: &Service, request: GenerateRequest) -> Result<GenerationSummary, ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut sender = Some(sender);
    let sink = move |event| match event {
        ServiceEvent::Token(_) => sender.as_ref().is_some_and(|sender| !sender.is_closed()),
        ServiceEvent::Done(result) => sender.take().is_some_and(|sender| sender.send(result).is_ok()),
    };
    let _ticket = service.submit(request, Box::new(sink))?;
    let ended = receiver.await.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has ended by an internal error; see the log")
    })?;
    Ok(ended?)
}
