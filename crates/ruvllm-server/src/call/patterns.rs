//! Patterns of the ReasoningBank in a request's prompt: finding those of tasks like its own, and what its conversation did so far.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::learning::PATTERNS;
use ruvllm_api::messages::joined;
use ruvllm_engine::ModelText;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_learning as learning;
use ruvllm_server_state::gate::offload;
use ruvllm_sona::bank::{Found, Pattern, Select, Step, Verdict};
use ruvllm_sona::{SonaError, SonaErrorKind};
use serde_json::Value;

use super::Call;
use super::learning::{model_state, opened, states};

/// Below this cosine a pattern says nothing of a task.
const SIMILARITY_MIN: f32 = 0.65;

/// Bytes of the task of a pattern that is made of an answer, and of what was done and came of it in a step; and steps before the
/// answer: in all, with the answer, fewer than a pattern may have.
pub(crate) const TEXT_BYTES_MAX: usize = 4096;
const STEP_BYTES_MAX: usize = 2048;
const STEPS_MAX: usize = 12;

/// What stands in front of patterns in a prompt, and behind them.
const INTRODUCTION: &str = "Tasks like the one below, as they went before:\n\n";
const THE_TASK: &str = "The task now: ";

/// What does not fit is the caller's fault.
pub(crate) fn refused(error: SonaError) -> ApiError {
    match error.kind() {
        SonaErrorKind::Limit | SonaErrorKind::Shape | SonaErrorKind::Value => ApiError::bad("task", error.to_string()),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Returns what a task is found by: the beginning of a long one says what it is.
pub(crate) async fn embedded(call: &Call, tenant: &learning::TenantLearning, task: &str) -> Result<Vec<f32>, ApiError> {
    if task.trim().is_empty() {
        return Err(ApiError::bad("task", "'task' is empty; say in a line what is to be done"));
    }
    let (text, task) = (call.text()?.clone(), cut(task, TEXT_BYTES_MAX));
    let options = EncodeOptions { add_special: true, parse_special: false };
    let tokens = offload(move || Ok(text.tokenizer().encode(&task, options)?)).await?;
    let (tokens, readout) = learning::TenantLearning::task_readout(tokens);
    Ok(tenant.task_embedding(&states(call, tokens, readout).await?))
}

/// Returns patterns of tasks like this one, the nearest first.
pub(crate) async fn found(call: &Call, task: &str, n: usize, select: Select) -> Result<Vec<Found>, ApiError> {
    let _slot = call.tenant.enter()?;
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

/// Notes what a conversation did about its question so far, and puts patterns of tasks like that in front of it if the request asks for
/// them.
///
/// # Errors
/// The server learns nothing, or the model cannot read the question.
pub(crate) async fn attend(call: &mut Call, mut input: ChatInput) -> Result<ChatInput, ApiError> {
    let n = call.body.count(PATTERNS.name).unwrap_or(0);
    if n > 0 {
        model_state(&call.model)?;
    }
    let Some(state) = call.model.learning.as_ref().filter(|learning| learning.is_on(&call.tenant)) else {
        return Ok(input);
    };
    if state.opened(&call.tenant).is_none() {
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
    let (text, n_ctx) = (call.text()?.clone(), call.model.service()?.info().n_ctx);
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
pub(crate) fn cut(text: &str, n_bytes_max: usize) -> String {
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
