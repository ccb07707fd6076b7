//! The record of an answer on its way to the witness log.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_api::routing::query_of;
use ruvllm_engine::{EngineError, GenerateRequest, ServiceEvent};
use ruvllm_witness::{About, Record, number_of};

use super::Call;
use crate::state::witness::tenant_name;

/// The record of an answer, wherever it ends: with the engine's last event, or before the engine takes it.
#[derive(Clone, Default)]
pub(crate) struct Pending(Option<Arc<Mutex<Option<Record>>>>);

impl Pending {
    /// Begins the record of answer `i` to a call, if the server keeps a log.
    pub(crate) fn begin(call: &Call, i: usize, request: &mut GenerateRequest) -> Pending {
        let Some(recorder) = &call.model.recorder else { return Pending::default() };
        let about = About {
            // The answers of one request count up from it.
            request: number_of(&call.id).unwrap_or_default().wrapping_add(i as u64),
            tenant: tenant_name(&call.tenant).to_owned(),
            routing: call.routing.clone().unwrap_or_default(),
            generation: request
                .logits_processor
                .as_ref()
                .and(call.model.learning.as_ref())
                .map_or(0, |learning| learning.generation(&call.tenant)),
            question: call.server.scores().then(|| query_of(&call.body)).flatten(),
        };
        Pending(Some(Arc::new(Mutex::new(Some(recorder.begin(request, about))))))
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
