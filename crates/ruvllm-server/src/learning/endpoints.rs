//! `/v1/feedback`, `/v1/learning` and `/v1/memory`.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use ruvllm_engine::tokenizer::DecodeOptions;
use ruvllm_engine::{AdapterSet, EngineError, ErrorKind, Readout};
use ruvllm_learning::{self as learning, Correctness};
use ruvllm_sona::witness::Event;
use serde_json::{Value, json};

use super::json::{generation_json, item_json, judged_json};
use super::patterns::{self, Said};
use super::{OfModel, answer_id};
use crate::app::{Answer, Call, Endpoint, Run};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{MODEL, offload, with_retry};
use crate::models::Model;
use crate::witness::number_of;

/// What ids of answers begin with in the APIs.
const PREFIXES: [&str; 4] = ["chatcmpl-", "cmpl-", "resp_", "msg_"];

const FEEDBACK: &[Field] = &[
    required("id", Kind::Text, "of the answer, as it came back with it"),
    optional("choice", Kind::Int(0, 1 << 20), "which of several answers; the first one if it is left out"),
    optional("score", Kind::Number(0.0, 1.0), "what it was worth: it is learned by as much, and at 0 not given again"),
    optional("correction", Kind::Text, "what it should have been; it is given when the same is asked again"),
    MODEL,
];

/// What can be done with what was learned.
const ACTIONS: [&str; 5] = ["enable", "disable", "publish", "rollback", "undo"];

const LEARNING: &[Field] = &[
    optional("enabled", Kind::Bool, "whether requests of this key teach, and are answered with what was taught"),
    optional("action", Kind::Word(&ACTIONS), "what is to be done with what was learned from requests of this key"),
    optional("item", Kind::Int(1, 1 << 52), "undo: the item, as feedback returns it and GET /v1/learning lists it"),
    optional("generation", Kind::Int(0, 1 << 52), "rollback: the generation to go back to; 0 is the model alone"),
    optional("why", Kind::Text, "publish: what the generation is for, in a line"),
    MODEL,
];

const MEMORY: &[Field] = &[
    required("question", Kind::Text, "what is asked, as the only message of a conversation"),
    required("answer", Kind::Text, "what is to be answered"),
    optional("wrong", Kind::Bool, "it is what is not to be answered"),
    MODEL,
];

const STATUS: &[&str] = &[
    "model",
    "enabled",
    "tokens",
    "entries",
    "entry_bytes",
    "evicted",
    "corrections",
    "micro_steps",
    "waiting",
    "generation",
    "version",
    "digest",
    "generations",
    "items",
    "judged",
];

/// Items of the log that are listed.
const N_ITEMS: usize = 50;

pub(super) const POST: Endpoint = Endpoint {
    path: "/v1/feedback",
    summary: "Says what an answer was worth, or what it should have been; it takes --learn",
    fields: &[FEEDBACK],
    answers: &["id", "learned", "item", "pattern"],
    run: Run::Model(feedback),
    ..Endpoint::POST
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    POST,
    Endpoint {
        method: Method::GET,
        path: "/v1/learning",
        summary: "Tells what the first model has learned from requests of this key, its generations and the newest items",
        fields: &[],
        answers: STATUS,
        run: Run::Model(status),
        ..POST
    },
    Endpoint {
        path: "/v1/learning",
        summary: "Switches learning on or off for this key until the server ends, publishes, goes back, or undoes an item",
        fields: &[LEARNING],
        answers: STATUS,
        run: Run::Model(change),
        ..POST
    },
    Endpoint {
        path: "/v1/memory",
        summary: "Remembers an answer to a question, right or wrong",
        fields: &[MEMORY],
        answers: STATUS,
        run: Run::Model(remember),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/memory",
        summary: "Forgets everything that the first model has learned from requests of this key",
        fields: &[],
        answers: STATUS,
        run: Run::Model(forget),
        ..POST
    },
];

pub(super) fn of_model(model: &Model) -> Result<&OfModel, ApiError> {
    model.learning.as_ref().ok_or_else(|| {
        let line = "this server learns nothing; start it with --learn";
        ApiError::new(StatusCode::NOT_FOUND, line).code("learning_off")
    })
}

/// Returns what the caller taught the model.
pub(super) async fn opened(call: &Call) -> Result<Arc<learning::Tenant>, ApiError> {
    match of_model(&call.model)?.opened(&call.tenant) {
        Some(tenant) => Ok(tenant),
        // Where it is switched off, or could not be opened; then why.
        None => {
            let (model, tenant) = (Arc::clone(&call.model), call.tenant.clone());
            offload(move || Ok(of_model(&model)?.tenant(&tenant)?)).await
        }
    }
}

/// Returns how a tenant's learning stands.
fn standing(call: &Call) -> Result<Response<Body>, ApiError> {
    let of_model = of_model(&call.model)?;
    let tenant = of_model.tenant(&call.tenant)?;
    let (stats, log) = (tenant.stats(), tenant.log(N_ITEMS)?);
    let digest: String = tenant.digest().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "model": &*call.model.name,
            "enabled": of_model.is_on(&call.tenant),
            "tokens": stats.n_tokens,
            "entries": stats.n_entries,
            "entry_bytes": stats.n_bytes,
            "evicted": stats.n_evicted,
            "corrections": stats.n_corrections,
            "micro_steps": stats.n_micro_steps,
            "waiting": stats.n_waiting,
            "generation": stats.generation,
            "version": stats.version,
            "digest": digest,
            "generations": log.generations.iter().map(generation_json).collect::<Vec<_>>(),
            "items": log.items.iter().map(item_json).collect::<Vec<_>>(),
            "judged": tenant.last_evaluation().as_ref().map(judged_json),
        }),
    ))
}

fn status(call: Call) -> Answer {
    Box::pin(async move { offload(move || standing(&call)).await })
}

fn change(call: Call) -> Answer {
    Box::pin(async move {
        offload(move || {
            let enabled = call.given.get("enabled").and_then(Value::as_bool);
            let action = match (call.given.text("action"), enabled) {
                (Some(_), Some(_)) => return Err(ApiError::bad("enabled", "say 'action' or 'enabled', not both")),
                (None, Some(true)) => Some("enable"),
                (None, Some(false)) => Some("disable"),
                (action, None) => action,
            };
            if let Some(action) = action {
                act(&call, action)?;
            }
            standing(&call)
        })
        .await
    })
}

/// Does what is to be done with what was learned, and puts it on record.
fn act(call: &Call, action: &str) -> Result<(), ApiError> {
    let of_model = of_model(&call.model)?;
    if let "enable" | "disable" = action {
        let is_on = action == "enable";
        of_model.set(&call.tenant, is_on);
        note(call, if is_on { "learning was switched on" } else { "learning was switched off" });
        return Ok(());
    }
    let number = |name: &str| call.given.int(name).map(|n| n as u64);
    let missing = |name: &str| ApiError::bad(name, format!("'{action}' needs '{name}'"));
    let (tenant, service) = (of_model.tenant(&call.tenant)?, &mut call.model.service.clone());
    let watch = &mut |_| ControlFlow::Continue(());
    match action {
        "publish" => {
            let number = tenant.publish(call.given.text("why").unwrap_or("somebody asked for it"), &[])?;
            note(call, &format!("generation {number} was published"));
        }
        "rollback" => {
            let number = number("generation").ok_or_else(|| missing("generation"))?;
            tenant.rollback(service, number, watch).map_err(|error| refused("generation", error))?;
            note(call, &format!("learning went back to generation {number}"));
        }
        _ => {
            let item = number("item").ok_or_else(|| missing("item"))?;
            tenant.undo(service, &[item], watch).map_err(|error| refused("item", error))?;
            note(call, &format!("item {item} was undone"));
        }
    }
    Ok(())
}

/// What the log does not have, or has let go, is the caller's fault.
fn refused(field: &str, error: EngineError) -> ApiError {
    match error.kind() {
        ErrorKind::Learning => ApiError::bad(field, error.to_string()),
        _ => error.into(),
    }
}

fn forget(call: Call) -> Answer {
    Box::pin(async move {
        offload(move || {
            of_model(&call.model)?.tenant(&call.tenant)?.forget()?;
            note(&call, "all that was taught was forgotten");
            standing(&call)
        })
        .await
    })
}

fn remember(call: Call) -> Answer {
    Box::pin(async move {
        let tenant = opened(&call).await?;
        let [question, answer] =
            ["question", "answer"].map(|name| call.given.text(name).unwrap_or_default().to_owned());
        for (name, text) in [("question", &question), ("answer", &answer)] {
            not_empty(name, text)?;
        }
        let text = call.model.service.text();
        let prompt = text.encode_prompt(&question, false)?;
        let verdict = if call.given.is_set("wrong") { Correctness::Wrong } else { Correctness::Right };
        tell(&call, tenant, (prompt, question), &answer, verdict).await?;
        note(&call, "an answer to a question was remembered");
        offload(move || standing(&call)).await
    })
}

/// What says nothing would be given as the answer to whatever is nearly as empty.
fn not_empty(name: &str, text: &str) -> Result<(), ApiError> {
    match text.trim().is_empty() {
        true => Err(ApiError::bad(name, format!("'{name}' is empty; say what is to be remembered"))),
        false => Ok(()),
    }
}

fn feedback(call: Call) -> Answer {
    Box::pin(async move {
        let tenant = opened(&call).await?;
        let id = call.given.text("id").unwrap_or_default().to_owned();
        let own = PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(&id);
        let own = answer_id(own, call.given.count("choice").unwrap_or(0));
        let score = call.given.get("score").and_then(Value::as_f64);
        let (item, pattern);
        match (score, call.given.text("correction")) {
            (None, None) => return Err(ApiError::bad("score", "say 'score', 'correction' or both")),
            (Some(score), None) => {
                let of_thread = Arc::clone(&tenant);
                let outcome = offload(move || of_thread.judge(&own, score as f32).map_err(unknown)).await?;
                let answer = call.model.service.text().tokenizer().decode(&outcome.answer, DecodeOptions::default());
                let (quality, of_model) = (score as f32, score as f32);
                item = outcome.item;
                let said = Said { task: outcome.task, item, answer: &answer, quality, of_model };
                pattern = patterns::keep(&call, &tenant, said).await;
                if let Some(request) = number_of(&id) {
                    let request = request.wrapping_add(call.given.count("choice").unwrap_or(0) as u64);
                    call.server.note(&call.tenant, Event::Feedback { request, quality: score as f32 });
                }
            }
            (score, Some(correction)) => {
                let correction = correction.to_owned();
                not_empty("correction", &correction)?;
                // A correction says that the answer was wrong, whatever its score.
                let (prompt, task) = tenant.correct(&own).map_err(unknown)?;
                tracing::info!(score, "corrected");
                let asked = (prompt, task.question.clone().unwrap_or_default());
                item = tell(&call, Arc::clone(&tenant), asked, &correction, Correctness::Right).await?;
                let of_model = score.map_or(0.0, |score| score as f32);
                let said = Said { task, item, answer: &correction, quality: 1.0, of_model };
                pattern = patterns::keep(&call, &tenant, said).await;
                note(&call, "an answer was corrected");
            }
        }
        // By its number what was learned of it can be undone.
        Ok(json_response(
            StatusCode::OK,
            &json!({ "id": id, "learned": item.is_some(), "item": item, "pattern": pattern }),
        ))
    })
}

/// Puts a change of what is known on record.
fn note(call: &Call, what: &str) {
    let what = format!("{}: {what}", call.model.name);
    call.server.note(&call.tenant, Event::Learning { what });
}

/// An answer that does not wait to be judged is not known.
fn unknown(error: EngineError) -> ApiError {
    match error.kind() {
        ErrorKind::Learning => {
            let line = error.to_string();
            ApiError {
                param: Some("id".to_owned()),
                ..ApiError::new(StatusCode::NOT_FOUND, line).code("unknown_answer")
            }
        }
        _ => error.into(),
    }
}

/// Has the engine compute states of the model as it is, without the request's adapters.
pub(super) async fn states(call: &Call, tokens: Vec<u32>, readout: Readout) -> Result<Vec<f32>, ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sink = Box::new(move |states| drop(sender.send(states)));
    let ticket = call.model.service.read_out(call.tenant.id, tokens, readout, AdapterSet::default(), sink);
    let _ticket = ticket.map_err(|error| with_retry(call, error.into()))?;
    let late = || {
        let line = "the request's time was over before the model had read it; allow more of it";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, line).code("timeout")
    };
    let computed = match call.deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), receiver).await.map_err(|_| late())?,
        None => receiver.await,
    };
    Ok(computed.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has ended by an internal error; see the log")
    })??)
}

/// Has the engine compute what an answer follows, and remembers it.
async fn tell(
    call: &Call,
    tenant: Arc<learning::Tenant>,
    (prompt, question): (Vec<u32>, String),
    answer: &str,
    verdict: Correctness,
) -> Result<Option<u64>, ApiError> {
    let answer = call.model.service.text().encode_answer(answer)?;
    let n = answer.len();
    let tokens = [&prompt[..], &answer[..n.saturating_sub(1)]].concat();
    let states = states(call, tokens, Readout::States { n_last: n }).await?;
    offload(move || Ok(tenant.add_correction(&question, &states, &answer, verdict)?)).await
}
