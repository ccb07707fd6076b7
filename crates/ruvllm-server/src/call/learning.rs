//! What a request's tenant taught the model: opening it, and computing states for it.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::learning::answer_id;
use ruvllm_api::remote::missing;
use ruvllm_engine::{AdapterSet, LogitsProcessor, Readout};
use ruvllm_learning as learning;
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::learning::ModelState;
use ruvllm_server_state::models::ServedModel;

use super::Call;
use super::generate::with_retry;

/// Opens what a tenant taught a model, if that learns and nobody has opened it yet. An answer without what was learned is better than
/// none, so what goes wrong is for the log.
pub(crate) async fn open(model: &Arc<ServedModel>, tenant: &Tenant) {
    let Some(learning) = &model.learning else { return };
    if !learning.is_on(tenant) || learning.opened(tenant).is_some() {
        return;
    }
    let (of_thread, tenant) = (Arc::clone(model), tenant.clone());
    let opened = offload(move || match &of_thread.learning {
        Some(learning) => Ok(learning.tenant(&tenant).map(drop)?),
        None => Ok(()),
    });
    if let Err(error) = opened.await {
        tracing::error!(model = &*model.name, error = error.message, "nothing is learned");
    }
}

/// Returns what a request learns by, if it does: requests with adapters are of another model.
pub(crate) fn logits_processor(call: &Call, choice: usize) -> Option<Arc<dyn LogitsProcessor>> {
    let learning = call.model.learning.as_ref()?;
    if !call.adapters.is_empty() || !learning.is_on(&call.tenant) {
        return None;
    }
    let tenant = learning.opened(&call.tenant)?;
    Some(tenant.logits_processor(call.task.clone(), Some(&answer_id(&call.id, call.round + choice))))
}

/// Returns what a model is taught.
///
/// # Errors
/// 404: it learns nothing; 501: another server answers for it.
pub(crate) fn model_state(model: &ServedModel) -> Result<&ModelState, ApiError> {
    if model.remote().is_some() {
        return Err(missing(&model.name, "hidden states to learn from"));
    }
    model.learning.as_ref().ok_or_else(|| {
        let line = "this server learns nothing; start it with --learn";
        ApiError::new(StatusCode::NOT_FOUND, line).code("learning_off")
    })
}

/// Returns what the caller taught the model.
pub(crate) async fn opened(call: &Call) -> Result<Arc<learning::TenantLearning>, ApiError> {
    match model_state(&call.model)?.opened(&call.tenant) {
        Some(tenant) => Ok(tenant),
        // Where it is switched off, or could not be opened; then why.
        None => {
            let (model, tenant) = (Arc::clone(&call.model), call.tenant.clone());
            offload(move || Ok(model_state(&model)?.tenant(&tenant)?)).await
        }
    }
}

/// Has the engine compute states of the model as it is, without the request's adapters.
pub(crate) async fn states(call: &Call, tokens: Vec<u32>, readout: Readout) -> Result<Vec<f32>, ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let sink = Box::new(move |states| drop(sender.send(states)));
    let ticket = call.model.service()?.read_out(call.tenant.id, tokens, readout, AdapterSet::default(), sink);
    let _ticket = ticket.map_err(|error| with_retry(&call.model, error.into()))?;
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
