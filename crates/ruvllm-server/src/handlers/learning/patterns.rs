//! `/v1/patterns`: a tenant's ReasoningBank. Answers that somebody judges become patterns, and requests may have patterns of tasks like
//! theirs put into the prompt.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required};
use ruvllm_api::generation::MODEL;
use ruvllm_api::learning::pattern_json;
use ruvllm_learning as learning;
use ruvllm_learning::Task;
use ruvllm_server_state::gate::offload;
use ruvllm_sona::bank::{Pattern, Select, Step, Verdict};
use serde_json::{Value, json};

use crate::call::learning::{model_state, opened};
use crate::call::patterns::{TEXT_BYTES_MAX, cut, embedded, found, refused};
use crate::call::response::json_response;
use crate::call::{Call, Endpoint, Handler, HandlerFuture, ServerCall};
use crate::handlers::learning::POST;

const PATH: &str = "/v1/patterns/";

/// Patterns that are listed.
const N_LISTED: usize = 50;

/// Bytes of the answer of a pattern that is made of one.
const ANSWER_BYTES_MAX: usize = 8192;

/// Scores from which an answer counts as a success, and up to which as a failure.
const SUCCESS_MIN: f32 = 0.75;
const FAILURE_MAX: f32 = 0.25;

const VERDICTS: [&str; 4] = ["success", "failure", "partial", "unknown"];

const STEP: &[Field] =
    &[required("action", Kind::Text, "what was done"), optional("outcome", Kind::Text, "what came of it")];

const NEW: &[Field] = &[
    required("task", Kind::Text, "the task, in the words of somebody who asks for it"),
    optional("steps", Kind::List(&Kind::Object(STEP), 0, 64), "what was done, in order"),
    optional("verdict", Kind::Word(&VERDICTS), "how it ended; unknown if it is left out"),
    optional("quality", Kind::Number(0.0, 1.0), "how good that was; 0.5 if it is left out"),
    MODEL,
];

const SEARCH: &[Field] = &[
    required("task", Kind::Text, "a task; patterns of tasks like it are found"),
    optional("limit", Kind::Int(1, 100), "the most patterns; 10 if it is left out"),
    optional("verdicts", Kind::List(&Kind::Word(&VERDICTS), 1, 4), "only patterns that ended so"),
    optional("quality_min", Kind::Number(0.0, 1.0), "only patterns of at least this quality"),
    MODEL,
];

const PATTERN: &[&str] = &["id", "task", "steps", "verdict", "quality", "uses", "members", "created_ms", "items"];

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/patterns",
        summary: "Keeps how a task was gone about, and how well that went",
        fields: &[NEW],
        answers: PATTERN,
        run: Handler::Model(add),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/patterns",
        summary: "Lists the newest patterns that the first model has of this key; a search may name another model",
        fields: &[],
        answers: &["object", "count", "data"],
        run: Handler::Model(list),
        ..POST
    },
    Endpoint {
        path: "/v1/patterns/search",
        summary: "Finds patterns of tasks like this one, the nearest first",
        fields: &[SEARCH],
        answers: &["object", "count", "data"],
        run: Handler::Model(find),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/patterns/{*pattern}",
        summary: "Forgets a pattern; it is named ID or MODEL:ID",
        fields: &[],
        answers: &["id", "deleted"],
        run: Handler::Server(remove),
        ..POST
    },
];

fn listed(count: usize, data: Vec<Value>) -> Value {
    json!({ "object": "list", "count": count, "data": data })
}

fn list(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let tenant = opened(&call).await?;
        offload(move || {
            let bank = tenant.patterns()?;
            let newest = bank.newest(N_LISTED, &Select::default()).map_err(refused)?;
            let data = newest.iter().map(|(id, pattern)| pattern_json(*id, pattern)).collect();
            Ok(json_response(StatusCode::OK, &listed(bank.len(), data)))
        })
        .await
    })
}

fn find(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let given = &call.body;
        let named = given.texts("verdicts");
        let wanted = Verdict::ALL.into_iter().filter(|verdict| named.iter().any(|name| name == verdict.name()));
        let select = Select::default().quality_min(given.number("quality_min").unwrap_or(0.0));
        let select = wanted.fold(select, Select::verdict);
        let (task, n) = (given.text("task").unwrap_or_default(), given.count("limit").unwrap_or(10));
        let found = found(&call, task, n, select).await?;
        let data = found.iter().map(|found| {
            let mut value = pattern_json(found.id, &found.pattern);
            value["similarity"] = found.similarity.into();
            value
        });
        Ok(json_response(StatusCode::OK, &listed(found.len(), data.collect())))
    })
}

fn add(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let (_slot, tenant, given) = (call.tenant.enter()?, opened(&call).await?, &call.body);
        let task = given.text("task").unwrap_or_default();
        let text = |step: &Value, name: &str| step[name].as_str().unwrap_or_default().to_owned();
        let step = |step: &Value| Step { action: text(step, "action"), outcome: text(step, "outcome") };
        let steps = given.list("steps").into_iter().flatten().map(step).collect();
        let named = |verdict: &Verdict| given.text("verdict") == Some(verdict.name());
        let verdict = Verdict::ALL.into_iter().find(named).unwrap_or(Verdict::Unknown);
        let embedding = embedded(&call, &tenant, task).await?;
        let quality = given.number("quality").unwrap_or(0.5);
        let pattern = Pattern::new(task, embedding, steps, verdict, quality);
        offload(move || {
            let id = tenant.patterns()?.add(&pattern).map_err(refused)?;
            Ok(json_response(StatusCode::OK, &pattern_json(id, &pattern)))
        })
        .await
    })
}

fn remove(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let asked = call.path_behind(PATH);
        let (model, asked) = match asked.rsplit_once(':') {
            Some((model, id)) => (Some(model), id.to_owned()),
            None => (None, asked.clone()),
        };
        let model = call.server.model(model, call.deadline).await?;
        offload(move || {
            let bank = model_state(&model)?.tenant(&call.tenant)?.patterns()?;
            let id = asked.parse().ok();
            match id.map(|id| bank.remove(id).map_err(refused)).transpose()? {
                Some(true) => Ok(json_response(StatusCode::OK, &json!({ "id": id, "deleted": true }))),
                _ => {
                    let line = format!("there is no pattern '{}'; GET /v1/patterns lists them", asked.escape_debug());
                    Err(ApiError::new(StatusCode::NOT_FOUND, line).code("unknown_pattern"))
                }
            }
        })
        .await
    })
}

/// What somebody said of an answer.
pub(crate) struct Said<'a> {
    pub task: Task,
    /// The item of the log that it is; without one nothing was learned that could be undone, and no pattern is kept.
    pub item: Option<u64>,
    /// The answer, as it should be.
    pub answer: &'a str,
    pub quality: f32,
    /// Worth of the answer that the model gave, with the patterns in its prompt.
    pub of_model: f32,
}

/// Keeps how a task was gone about, now that somebody has said how well; returns the pattern's id. What goes wrong with that is for the
/// log: the feedback itself was heard.
pub(crate) async fn keep(call: &Call, tenant: &Arc<learning::TenantLearning>, said: Said<'_>) -> Option<u64> {
    keep_task(call, tenant, said).await.unwrap_or_else(|error| {
        tracing::warn!(error = error.message, "no pattern is kept");
        None
    })
}

async fn keep_task(
    call: &Call,
    tenant: &Arc<learning::TenantLearning>,
    said: Said<'_>,
) -> Result<Option<u64>, ApiError> {
    let Said { task: Task { question, mut steps, patterns }, item, answer, quality, of_model } = said;
    let of_thread = Arc::clone(tenant);
    offload(move || {
        let bank = of_thread.patterns()?;
        patterns.into_iter().try_for_each(|id| bank.record_use(id, of_model).map(drop).map_err(refused))
    })
    .await?;
    let question = question.filter(|question| !question.trim().is_empty());
    let (Some(question), Some(item)) = (question, item) else { return Ok(None) };
    let embedding = embedded(call, tenant, &question).await?;
    steps.push(Step { action: cut(answer.trim(), ANSWER_BYTES_MAX), outcome: String::new() });
    let verdict = match quality {
        quality if quality >= SUCCESS_MIN => Verdict::Success,
        quality if quality <= FAILURE_MAX => Verdict::Failure,
        _ => Verdict::Partial,
    };
    let task = cut(&question, TEXT_BYTES_MAX);
    let pattern = Pattern { model: *tenant.model(), ..Pattern::new(task, embedding, steps, verdict, quality) };
    let tenant = Arc::clone(tenant);
    offload(move || Ok(tenant.keep_pattern(item, pattern)?)).await
}
