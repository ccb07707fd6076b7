//! `/v1/patterns`: a tenant's ReasoningBank. Answers that somebody judges become patterns, and requests may have patterns of tasks like
//! theirs put into the prompt.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use ruvllm_engine::ModelText;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_learning::{self as learning, Task};
use ruvllm_sona::bank::{Found, Pattern, Select, Step, Verdict};
use ruvllm_sona::{SonaError, SonaErrorKind};
use serde_json::{Value, json};

use super::endpoints::{POST, of_model, opened, states};
use super::json::pattern_json;
use crate::app::{Answer, Call, Endpoint, Plain, Run};
use crate::error::{ApiError, json_response};
use crate::fields::{Field, Kind, optional, required};
use crate::generate::{MODEL, offload};
use crate::openai::messages::joined;

const PATH: &str = "/v1/patterns/";

/// Patterns that are listed.
const N_LISTED: usize = 50;

/// Below this cosine a pattern says nothing of a task.
const SIMILARITY_MIN: f32 = 0.65;

/// Scores from which an answer counts as a success, and up to which as a failure.
const SUCCESS_MIN: f32 = 0.75;
const FAILURE_MAX: f32 = 0.25;

/// Bytes of the task of a pattern that is made of an answer, of what was done and came of it in a step, and of the answer; and steps
/// before that: in all fewer than a pattern may have.
const TEXT_BYTES_MAX: usize = 4096;
const STEP_BYTES_MAX: usize = 2048;
const ANSWER_BYTES_MAX: usize = 8192;
const STEPS_MAX: usize = 12;

/// What stands in front of patterns in a prompt, and behind them.
const INTRODUCTION: &str = "Tasks like the one below, as they went before:\n\n";
const THE_TASK: &str = "The task now: ";

/// The field of a request that has patterns put into its prompt.
pub(crate) const PATTERNS: Field = optional(
    "patterns",
    Kind::Int(0, 8),
    "put up to so many patterns of tasks like this one in front of the question; it takes --learn",
);

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
        run: Run::Model(add),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/v1/patterns",
        summary: "Lists the newest patterns that the first model has of this key; a search may name another model",
        fields: &[],
        answers: &["object", "count", "data"],
        run: Run::Model(list),
        ..POST
    },
    Endpoint {
        path: "/v1/patterns/search",
        summary: "Finds patterns of tasks like this one, the nearest first",
        fields: &[SEARCH],
        answers: &["object", "count", "data"],
        run: Run::Model(find),
        ..POST
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/patterns/{*pattern}",
        summary: "Forgets a pattern; it is named ID or MODEL:ID",
        fields: &[],
        answers: &["id", "deleted"],
        run: Run::Server(remove),
        ..POST
    },
];

/// What does not fit is the caller's fault.
fn refused(error: SonaError) -> ApiError {
    match error.kind() {
        SonaErrorKind::Limit | SonaErrorKind::Shape | SonaErrorKind::Value => ApiError::bad("task", error.to_string()),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Returns what a task is found by: the beginning of a long one says what it is.
async fn embedded(call: &Call, tenant: &learning::Tenant, task: &str) -> Result<Vec<f32>, ApiError> {
    if task.trim().is_empty() {
        return Err(ApiError::bad("task", "'task' is empty; say in a line what is to be done"));
    }
    let (text, task) = (call.model.service.text().clone(), cut(task, TEXT_BYTES_MAX));
    let options = EncodeOptions { add_special: true, parse_special: false };
    let tokens = offload(move || Ok(text.tokenizer().encode(&task, options)?)).await?;
    let (tokens, readout) = learning::Tenant::task_readout(tokens);
    Ok(tenant.task_embedding(&states(call, tokens, readout).await?))
}

async fn found(call: &Call, task: &str, n: usize, select: Select) -> Result<Vec<Found>, ApiError> {
    let _place = call.tenant.enter()?;
    let tenant = opened(call).await?;
    let of_thread = Arc::clone(&tenant);
    let bank = offload(move || Ok(of_thread.patterns()?)).await?;
    // Where there are none, the model reads nothing.
    if bank.is_empty() {
        return Ok(Vec::new());
    }
    let query = embedded(call, &tenant, task).await?;
    offload(move || bank.search(&query, n, &select).map_err(refused)).await
}

fn listed(count: usize, data: Vec<Value>) -> Value {
    json!({ "object": "list", "count": count, "data": data })
}

fn list(call: Call) -> Answer {
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

fn find(call: Call) -> Answer {
    Box::pin(async move {
        let given = &call.given;
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

fn add(call: Call) -> Answer {
    Box::pin(async move {
        let (_place, tenant, given) = (call.tenant.enter()?, opened(&call).await?, &call.given);
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

fn remove(call: Plain) -> Answer {
    Box::pin(async move {
        let asked = call.path_behind(PATH);
        let (model, asked) = match asked.rsplit_once(':') {
            Some((model, id)) => (Some(model), id.to_owned()),
            None => (None, asked.clone()),
        };
        let model = call.server.model(model, call.deadline).await?;
        offload(move || {
            let bank = of_model(&model)?.tenant(&call.tenant)?.patterns()?;
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

/// Notes what a conversation did about its question so far, and puts patterns of tasks like that in front of it if the request asks for
/// them.
///
/// # Errors
/// The server learns nothing, or the model cannot read the question.
pub(crate) async fn attend(call: &mut Call, mut input: ChatInput) -> Result<ChatInput, ApiError> {
    let n = call.given.count(PATTERNS.name).unwrap_or(0);
    if n > 0 {
        of_model(&call.model)?;
    }
    let Some(of_model) = call.model.learning.as_ref().filter(|learning| learning.is_on(&call.tenant)) else {
        return Ok(input);
    };
    if of_model.opened(&call.tenant).is_none() {
        return Ok(input);
    }
    call.task.steps = steps_of(&input.messages);
    let Some(question) = call.task.question.clone().filter(|question| n > 0 && !question.trim().is_empty()) else {
        return Ok(input);
    };
    let mut found = found(call, &question, n, Select::default()).await?;
    found.retain(|found| found.similarity >= SIMILARITY_MIN);
    if found.is_empty() {
        return Ok(input);
    }
    let (text, n_ctx) = (call.model.service.text().clone(), call.model.service.info().n_ctx);
    let (input, told) = offload(move || {
        // What was asked for has room with them: half of what is free is left for the answer.
        let n_free = n_ctx.saturating_sub(text.encode_chat(&input)?.len());
        let (notes, told) = notes_of(&found, &text, (n_free / 2).min(n_ctx / 4))?;
        let is_user = |message: &&mut Value| message["role"] == "user";
        if let Some(asked) = input.messages.iter_mut().rev().find(is_user).filter(|_| !told.is_empty()) {
            asked["content"] = format!("{notes}{}", joined(&asked["content"])).into();
        }
        Ok((input, told))
    })
    .await?;
    tracing::debug!(patterns = ?told, "patterns are in the prompt");
    call.task.patterns = told;
    Ok(input)
}

/// Returns what was done since the last question: calls of tools, and what came of them.
fn steps_of(messages: &[Value]) -> Vec<Step> {
    let since = messages.iter().rposition(|message| message["role"] == "user").map_or(0, |at| at + 1);
    let mut steps: Vec<(Value, Step)> = Vec::new();
    for message in &messages[since..] {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            let (name, arguments) =
                (call["function"]["name"].as_str().unwrap_or_default(), &call["function"]["arguments"]);
            let step = Step { action: cut(&format!("{name} {arguments}"), STEP_BYTES_MAX), outcome: String::new() };
            steps.push((call["id"].clone(), step));
        }
        if message["role"] == "tool" {
            let of_call = |(id, step): &&mut (Value, Step)| {
                step.outcome.is_empty() && (message["tool_call_id"].is_null() || *id == message["tool_call_id"])
            };
            if let Some((_, step)) = steps.iter_mut().find(of_call) {
                step.outcome = cut(&joined(&message["content"]), STEP_BYTES_MAX);
            }
        }
    }
    steps.into_iter().map(|(_, step)| step).take(STEPS_MAX).collect()
}

/// Returns a text, or the first bytes of it.
fn cut(text: &str, n_bytes_max: usize) -> String {
    match text.floor_char_boundary(n_bytes_max) {
        end if end < text.len() => format!("{}…", &text[..end]),
        _ => text.to_owned(),
    }
}

/// Returns patterns as a model reads them, in front of its task, and which of them have room in so many tokens.
///
/// # Errors
/// The tokenizer cannot read them.
fn notes_of(found: &[Found], text: &ModelText, n_tokens_max: usize) -> Result<(String, Vec<u64>), ApiError> {
    let count = |text_of: &str| Ok::<_, ApiError>(text.tokenizer().encode(text_of, EncodeOptions::default())?.len());
    let (mut notes, mut told) = (INTRODUCTION.to_owned(), Vec::new());
    let mut n_tokens = count(INTRODUCTION)? + count(THE_TASK)?;
    for Found { id, pattern, .. } in found {
        let note = note_of(pattern);
        n_tokens += count(&note)?;
        if n_tokens > n_tokens_max {
            break;
        }
        notes += &note;
        told.push(*id);
    }
    Ok((notes + THE_TASK, told))
}

fn note_of(pattern: &Pattern) -> String {
    let mut note = format!("Task: {}\n", pattern.task.trim());
    for Step { action, outcome } in &pattern.steps {
        note += &match outcome.trim() {
            "" => format!("Done: {}\n", action.trim()),
            outcome => format!("Done: {}\nResult: {outcome}\n", action.trim()),
        };
    }
    note + match pattern.verdict {
        Verdict::Success => "This was right.\n\n",
        Verdict::Failure => "This was wrong.\n\n",
        Verdict::Partial => "This was right in part.\n\n",
        Verdict::Unknown => "\n",
    }
}

/// What somebody said of an answer.
pub(super) struct Said<'a> {
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
pub(super) async fn keep(call: &Call, tenant: &Arc<learning::Tenant>, said: Said<'_>) -> Option<u64> {
    keep_task(call, tenant, said).await.unwrap_or_else(|error| {
        tracing::warn!(error = error.message, "no pattern is kept");
        None
    })
}

async fn keep_task(call: &Call, tenant: &Arc<learning::Tenant>, said: Said<'_>) -> Result<Option<u64>, ApiError> {
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
