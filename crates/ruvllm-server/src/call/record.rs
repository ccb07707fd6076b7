//! The record of an answer on its way to the witness log.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_api::error::ApiError;
use ruvllm_api::routing::query_of;
use ruvllm_backend::CompletionRequest;
use ruvllm_engine::{EngineError, GenerateRequest, ServiceEvent};
use ruvllm_server_state::models::{RemoteEnd, RemoteEvent};
use ruvllm_server_state::witness::tenant_name;
use ruvllm_witness::{About, Record, RemoteAnswer, RemoteRequest, decimal, number_of};
use serde_json::json;

use super::Call;

/// The record of an answer, wherever it ends: with the engine's last event, or before the engine takes it.
#[derive(Clone, Default)]
pub(crate) struct Pending(Option<Arc<Mutex<Option<Record>>>>);

impl Pending {
    /// Begins the record of answer `i` to a call, if the server keeps a log.
    pub(crate) fn begin(call: &Call, i: usize, request: &mut GenerateRequest) -> Pending {
        let Some(recorder) = &call.model.recorder else { return Pending::default() };
        let learning = request.logits_processor.as_ref().and(call.model.learning.as_ref());
        let generation = learning.map_or(0, |learning| learning.generation(&call.tenant));
        let about = About { generation, ..about(call, i) };
        Pending(Some(Arc::new(Mutex::new(Some(recorder.begin(request, about))))))
    }

    /// Begins the record of answer `i` to a call that another server answers, if this one keeps a log.
    pub(crate) fn begin_remote(call: &Call, i: usize, request: &CompletionRequest) -> Pending {
        let Some(recorder) = &call.model.recorder else { return Pending::default() };
        let CompletionRequest { messages, prompt, max_tokens, temperature, top_p, seed, stop, .. } = request;
        let request = RemoteRequest {
            prompt: prompt.clone().unwrap_or_else(|| json!(messages).to_string()),
            seed: *seed,
            settings: json!({
                "max_tokens": max_tokens,
                "temperature": temperature.map(decimal),
                "top_p": top_p.map(decimal),
                "n_stop": stop.len(),
                "tools": request.tools.len(),
                "extra": request.extra,
            }),
        };
        Pending(Some(Arc::new(Mutex::new(Some(recorder.begin_remote(&request, about(call, i)))))))
    }

    fn take(&self) -> Option<Record> {
        self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Sees what happens to the request, on the engine's thread.
    pub(crate) fn see(&self, event: &ServiceEvent) {
        if let ServiceEvent::Done(result) = event
            && let Some(record) = self.take()
        {
            record.end(result.as_ref());
        }
    }

    /// Sees what the other server says of the request.
    pub(crate) fn see_remote(&self, event: &RemoteEvent) {
        let RemoteEvent::Done(result) = event else { return };
        let Some(record) = self.take() else { return };
        match result {
            Err(error) => record.end_remote(Err(&error.message)),
            Ok(RemoteEnd { text, finish_reason, n_prompt, n_answer, timings }) => {
                let (finish_reason, n_prompt, n_answer) = (*finish_reason, *n_prompt, *n_answer);
                record.end_remote(Ok(RemoteAnswer { text, finish_reason, n_prompt, n_answer, timings }));
            }
        }
    }

    /// Records that a request to another server was not taken.
    pub(crate) fn refused_remote(&self, error: &ApiError) {
        self.take().into_iter().for_each(|record| record.end_remote(Err(&error.message)));
    }

    /// Records that the engine did not take it.
    pub(crate) fn refused(&self, error: EngineError) -> EngineError {
        match self.take() {
            None => error,
            Some(record) => {
                record.end(Err(&error));
                error
            }
        }
    }
}

/// Returns what a record says of answer `i` to a call.
fn about(call: &Call, i: usize) -> About {
    About {
        // The answers of one request count up from it.
        request: number_of(&call.id).unwrap_or_default().wrapping_add((call.round + i) as u64),
        tenant: tenant_name(&call.tenant).to_owned(),
        routing: call.routing.clone().unwrap_or_default(),
        generation: 0,
        question: call.server.scores().then(|| query_of(&call.body)).flatten(),
    }
}
