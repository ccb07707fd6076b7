//! The grammar that a request asks its answer to have, compiled once.

use std::sync::{Arc, PoisonError};

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::form::{AnswerForm, for_stops_of};
use ruvllm_engine::{GenerateRequest, Grammar};
use ruvllm_server_state::gate::offload;

use super::Call;

/// Returns a compiled grammar for a request, and keeps memory for it until its answers are over.
///
/// # Errors
/// As [`AnswerForm::compile`]; 503: the grammars of others have the memory.
pub(crate) async fn compiled(call: &Call, form: AnswerForm) -> Result<Grammar, ApiError> {
    let of_error = form.clone();
    taken(call, form).await.map_err(|error| of_error.named(error))
}

async fn taken(call: &Call, form: AnswerForm) -> Result<Grammar, ApiError> {
    let tenant = call.tenant.id;
    let grammar = match call.model.grammars.find(tenant, &form.source) {
        Some(grammar) => grammar,
        None => {
            // Of each tenant one is compiled at once: however many one sends, others find a thread. The turn lasts as long as
            // the work, which goes on when its client has left.
            let turn = call.server.grammar_gates.of(tenant).own().await;
            let model = Arc::clone(&call.model);
            let work = move || {
                let _turn = turn;
                let grammar = form.compile(model.service()?.grammar_compiler()?)?;
                model.grammars.keep(tenant, form.source, grammar.clone());
                Ok(grammar)
            };
            offload(work).await?
        }
    };
    let part = call.server.grammar_bytes.take(tenant, grammar.n_bytes()).ok_or_else(|| {
        let line = "the server has no memory for this form: those of other requests have it; try again";
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("overloaded");
        ApiError { retry_after_s: Some(1), ..error }
    })?;
    call.held.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    Ok(grammar)
}

/// Returns the grammar that a request asks for.
///
/// # Errors
/// 400: it cannot be compiled, it uses what is not supported, or other fields do not go with it.
pub(crate) async fn grammar(call: &Call, request: &GenerateRequest) -> Result<Option<Grammar>, ApiError> {
    if call.model.remote().is_some() {
        // The other server holds its answer to the form.
        return Ok(None);
    }
    let Some(form) = AnswerForm::of_field(&call.body, request)? else { return Ok(None) };
    Ok(Some(for_stops_of(request, compiled(call, form).await?)))
}
