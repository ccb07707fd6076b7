//! `/v1/feedback`, `/v1/learning` and `/v1/memory`.

mod facts;
pub(crate) mod patterns;
use std::ops::ControlFlow;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional};
use ruvllm_api::generation::MODEL;
use ruvllm_api::learning::{
    FEEDBACK, MEMORY, answer_id, generation_json, item_json, judged_json, not_empty, own_id, with_stats,
};
use ruvllm_engine::tokenizer::DecodeOptions;
use ruvllm_engine::{EngineError, ErrorKind, Readout};
use ruvllm_learning as learning;
use ruvllm_learning::{Correctness, Task};
use ruvllm_server_state::gate::offload;
use ruvllm_sona::witness::Event;
use ruvllm_witness::number_of;
use serde_json::{Value, json};

use self::patterns::Said;
use crate::call::learning::{model_state, opened, states};
use crate::call::response::json_response;
use crate::call::{Call, Endpoint, Handler, HandlerFuture};

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
    run: Handler::Model(feedback),
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
        run: Handler::Model(status),
        ..POST
    },
    Endpoint {
        path: "/v1/learning",
        summary: "Switches learning on or off for this key until the server ends, publishes, goes back, or undoes an item",
        fields: &[LEARNING],
        answers: STATUS,
        run: Handler::Model(change),
        ..POST
    },
    Endpoint {
        path: "/v1/memory",
        summary: "Remembers an answer to a question, right or wrong",
        fields: &[MEMORY],
        answers: STATUS,
        run: Handler::Model(remember),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/memory",
        summary: "Lists what the first model was told by this key: answers that are right, and answers that are wrong",
        fields: &[],
        answers: &["object", "data"],
        run: Handler::Model(facts::list),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/memory",
        summary: "Forgets everything that the first model has learned from requests of this key, and the texts that drafts are made of",
        fields: &[],
        answers: &["model", "enabled"],
        run: Handler::Model(forget),
        ..POST
    },
];

/// Returns how a tenant's learning stands.
fn status_json(call: &Call) -> Result<Response<Body>, ApiError> {
    Ok(json_response(StatusCode::OK, &status_value(call)?))
}

fn status_value(call: &Call) -> Result<Value, ApiError> {
    let state = model_state(&call.model)?;
    let tenant = state.tenant(&call.tenant)?;
    let (stats, log) = (tenant.stats(), tenant.log(N_ITEMS)?);
    let digest = hex::encode(tenant.digest());
    let status = json!({
        "model": &*call.model.name,
        "enabled": state.is_on(&call.tenant),
        "waiting": stats.n_waiting,
        "generation": stats.generation,
        "version": stats.version,
        "digest": digest,
        "generations": log.generations.iter().map(generation_json).collect::<Vec<_>>(),
        "items": log.items.iter().map(item_json).collect::<Vec<_>>(),
        "judged": tenant.last_evaluation().as_ref().map(judged_json),
    });
    Ok(with_stats(status, &stats))
}

fn status(call: Call) -> HandlerFuture {
    Box::pin(async move { offload(move || status_json(&call)).await })
}

fn change(call: Call) -> HandlerFuture {
    Box::pin(async move {
        offload(move || {
            let enabled = call.body.get("enabled").and_then(Value::as_bool);
            let action = match (call.body.text("action"), enabled) {
                (Some(_), Some(_)) => return Err(ApiError::bad("enabled", "say 'action' or 'enabled', not both")),
                (None, Some(true)) => Some("enable"),
                (None, Some(false)) => Some("disable"),
                (action, None) => action,
            };
            if let Some(action) = action {
                act(&call, action)?;
            }
            status_json(&call)
        })
        .await
    })
}

/// Does what is to be done with what was learned, and puts it on record.
fn act(call: &Call, action: &str) -> Result<(), ApiError> {
    let state = model_state(&call.model)?;
    if let "enable" | "disable" = action {
        let is_on = action == "enable";
        state.set(&call.tenant, is_on);
        note(call, if is_on { "learning was switched on" } else { "learning was switched off" });
        return Ok(());
    }
    let number = |name: &str| call.body.int(name).map(|n| n as u64);
    let missing = |name: &str| ApiError::bad(name, format!("'{action}' needs '{name}'"));
    let (tenant, service) = (state.tenant(&call.tenant)?, &mut call.model.service()?.clone());
    let watch = &mut |_| ControlFlow::Continue(());
    match action {
        "publish" => {
            let number = tenant.publish(call.body.text("why").unwrap_or("somebody asked for it"), &[])?;
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

fn forget(call: Call) -> HandlerFuture {
    Box::pin(async move {
        offload(move || {
            // Drafts are made of earlier texts where nothing is learned as well.
            call.server.models.forget_texts(call.tenant.id)?;
            if call.model.learning.is_none() {
                return Ok(json_response(StatusCode::OK, &json!({ "model": &*call.model.name, "enabled": false })));
            }
            model_state(&call.model)?.tenant(&call.tenant)?.forget()?;
            note(&call, "all that was taught was forgotten");
            status_json(&call)
        })
        .await
    })
}

fn remember(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let tenant = opened(&call).await?;
        let [question, answer] = ["question", "answer"].map(|name| call.body.text(name).unwrap_or_default().to_owned());
        for (name, text) in [("question", &question), ("answer", &answer)] {
            not_empty(name, text)?;
        }
        let text = call.text()?;
        let prompt = text.encode_prompt(&question, false)?;
        let (verdict, quality) = match call.body.is_set("wrong") {
            true => (Correctness::Wrong, 0.0),
            false => (Correctness::Right, 1.0),
        };
        let asked = Question { tokens: prompt, text: question.clone() };
        let item = tell(&call, Arc::clone(&tenant), asked, &answer, verdict).await?;
        let mut pattern = None;
        if call.body.is_set("pattern") {
            let said = Said { task: Task::of(&question), item, answer: &answer, quality, of_model: quality };
            pattern = patterns::keep(&call, &tenant, said).await;
        }
        note(&call, "an answer to a question was remembered");
        offload(move || {
            let mut status = status_value(&call)?;
            (status["item"], status["pattern"]) = (item.into(), pattern.into());
            Ok(json_response(StatusCode::OK, &status))
        })
        .await
    })
}

fn feedback(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let tenant = opened(&call).await?;
        let id = call.body.text("id").unwrap_or_default().to_owned();
        let own = answer_id(own_id(&id), call.body.count("choice").unwrap_or(0));
        let score = call.body.get("score").and_then(Value::as_f64);
        let (item, pattern);
        match (score, call.body.text("correction")) {
            (None, None) => return Err(ApiError::bad("score", "say 'score', 'correction' or both")),
            (Some(score), None) => {
                let of_thread = Arc::clone(&tenant);
                let outcome = offload(move || of_thread.judge(&own, score as f32).map_err(unknown)).await?;
                let answer = call.text()?.tokenizer().decode(&outcome.answer, DecodeOptions::default());
                let (quality, of_model) = (score as f32, score as f32);
                item = outcome.item;
                let said = Said { task: outcome.task, item, answer: &answer, quality, of_model };
                pattern = patterns::keep(&call, &tenant, said).await;
                if let Some(request) = number_of(&id) {
                    let request = request.wrapping_add(call.body.count("choice").unwrap_or(0) as u64);
                    call.server.note(&call.tenant, Event::Feedback { request, quality: score as f32 });
                }
            }
            (score, Some(correction)) => {
                let correction = correction.to_owned();
                not_empty("correction", &correction)?;
                // A correction says that the answer was wrong, whatever its score.
                let (prompt, task) = tenant.correct(&own).map_err(unknown)?;
                tracing::info!(score, "corrected");
                let asked = Question { tokens: prompt, text: task.question.clone().unwrap_or_default() };
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

/// A question, and its tokens.
struct Question {
    tokens: Vec<u32>,
    text: String,
}

/// Has the engine compute what an answer follows, and remembers it.
async fn tell(
    call: &Call,
    tenant: Arc<learning::TenantLearning>,
    question: Question,
    answer: &str,
    verdict: Correctness,
) -> Result<Option<u64>, ApiError> {
    let answer = call.text()?.encode_answer(answer)?;
    let n = answer.len();
    let tokens = [&question.tokens[..], &answer[..n.saturating_sub(1)]].concat();
    let states = states(call, tokens, Readout::States { n_last: n }).await?;
    offload(move || Ok(tenant.add_correction(&question.text, &states, &answer, verdict)?)).await
}
