//! `/v1/feedback`, `/v1/learning` and `/v1/memory`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use ruvllm_engine::learning::{self, Verdict};
use ruvllm_engine::{AdapterSet, EngineError, ErrorKind, Readout};
use ruvllm_sona::witness::Event;
use serde_json::{Value, json};

use super::{OfModel, answer_id};
use crate::app::{Answer, Call, Endpoint, Run};
use crate::error::{ApiError, Shape, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{MODEL, offload};
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

const LEARNING: &[Field] = &[
    optional("enabled", Kind::Bool, "whether requests of this key teach, and are answered with what was taught"),
    MODEL,
];

const MEMORY: &[Field] = &[
    required("question", Kind::Text, "what is asked, as the only message of a conversation"),
    required("answer", Kind::Text, "what is to be answered"),
    optional("wrong", Kind::Bool, "it is what is not to be answered"),
    MODEL,
];

const STATUS: &[&str] =
    &["model", "enabled", "tokens", "entries", "entry_bytes", "evicted", "corrections", "micro_steps", "waiting"];

const POST: Endpoint = Endpoint {
    method: Method::POST,
    path: "/v1/feedback",
    summary: "Says what an answer was worth, or what it should have been; it takes --learn",
    shape: Shape::OpenAi,
    needs_key: true,
    fields: &[FEEDBACK],
    refused: &[],
    answers: &["id", "learned"],
    run: Run::Model(feedback),
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    POST,
    Endpoint {
        method: Method::GET,
        path: "/v1/learning",
        summary: "Tells what the first model has learned from requests of this key",
        fields: &[],
        answers: STATUS,
        run: Run::Model(status),
        ..POST
    },
    Endpoint {
        path: "/v1/learning",
        summary: "Switches learning on or off for this key, until the server ends",
        fields: &[LEARNING],
        answers: STATUS,
        run: Run::Model(switch),
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

fn of_model(model: &Model) -> Result<&OfModel, ApiError> {
    model.learning.as_ref().ok_or_else(|| {
        let line = "this server learns nothing; start it with --learn";
        ApiError::new(StatusCode::NOT_FOUND, line).code("learning_off")
    })
}

/// Returns how a tenant's learning stands.
fn standing(call: &Call) -> Result<Response<Body>, ApiError> {
    let of_model = of_model(&call.model)?;
    let stats = of_model.tenant(&call.tenant)?.stats();
    Ok(json_response(
        StatusCode::OK,
        &json!({
            "model": &*call.model.name,
            "enabled": of_model.is_on(&call.tenant),
            "tokens": stats.n_tokens,
            "entries": stats.n_entries,
            "entry_bytes": stats.n_bytes,
            "evicted": stats.n_evicted,
            "corrections": stats.n_episodes,
            "micro_steps": stats.n_micro_steps,
            "waiting": stats.n_waiting,
        }),
    ))
}

fn status(call: Call) -> Answer {
    Box::pin(async move { offload(move || standing(&call)).await })
}

fn switch(call: Call) -> Answer {
    Box::pin(async move {
        offload(move || {
            if let Some(is_on) = call.given.get("enabled").and_then(Value::as_bool) {
                of_model(&call.model)?.set(&call.tenant, is_on);
                note(&call, if is_on { "learning was switched on" } else { "learning was switched off" });
            }
            standing(&call)
        })
        .await
    })
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
        let tenant = of_model(&call.model)?.tenant(&call.tenant)?;
        let [question, answer] =
            ["question", "answer"].map(|name| call.given.text(name).unwrap_or_default().to_owned());
        let text = call.model.service.text();
        let prompt = text.encode_prompt(&question, false)?;
        let verdict = if call.given.is_set("wrong") { Verdict::Wrong } else { Verdict::Right };
        tell(&call, tenant, (prompt, question), &answer, verdict).await?;
        note(&call, "an answer to a question was remembered");
        offload(move || standing(&call)).await
    })
}

fn feedback(call: Call) -> Answer {
    Box::pin(async move {
        let tenant = of_model(&call.model)?.tenant(&call.tenant)?;
        let id = call.given.text("id").unwrap_or_default().to_owned();
        let own = PREFIXES.iter().find_map(|prefix| id.strip_prefix(prefix)).unwrap_or(&id);
        let own = answer_id(own, call.given.count("choice").unwrap_or(0));
        let score = call.given.get("score").and_then(Value::as_f64);
        match (score, call.given.text("correction")) {
            (None, None) => return Err(ApiError::bad("score", "say 'score', 'correction' or both")),
            (Some(score), None) => {
                offload(move || tenant.judge(&own, score as f32).map_err(unknown)).await?;
                if let Some(request) = number_of(&id) {
                    let request = request.wrapping_add(call.given.count("choice").unwrap_or(0) as u64);
                    call.server.note(&call.tenant, Event::Feedback { request, quality: score as f32 });
                }
            }
            (score, Some(correction)) => {
                let correction = correction.to_owned();
                // A correction says that the answer was wrong, whatever its score.
                let asked = tenant.correct(&own).map_err(unknown)?;
                tracing::info!(score, "corrected");
                tell(&call, tenant, asked, &correction, Verdict::Right).await?;
                note(&call, "an answer was corrected");
            }
        }
        Ok(json_response(StatusCode::OK, &json!({ "id": id, "learned": true })))
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

/// Has the engine compute what an answer follows, and remembers it.
async fn tell(
    call: &Call,
    tenant: Arc<learning::Tenant>,
    (prompt, question): (Vec<u32>, String),
    answer: &str,
    verdict: Verdict,
) -> Result<(), ApiError> {
    let service = &call.model.service;
    let answer = service.text().encode_answer(answer)?;
    let n = answer.len();
    let tokens = [&prompt[..], &answer[..n.saturating_sub(1)]].concat();
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sink = Box::new(move |states| drop(sender.send(states)));
    let _ticket = service.read_out(tokens, Readout::States { n_last: n }, AdapterSet::default(), sink)?;
    let states = receiver.await.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the engine has ended by an internal error; see the log")
    })??;
    offload(move || Ok(tenant.tell(&question, &states, &answer, verdict)?)).await
}
