//! The slot that a request names (`id_slot`): its last request is remembered for `/slots`.

use std::sync::Arc;

use ruvllm_api::llamacpp::ID_SLOT;
use ruvllm_engine::GenerationSummary;
use ruvllm_server_state::models::ServedModel;
use ruvllm_server_state::slots::Last;

use super::Call;

/// A slot of a model, for one tenant.
pub(crate) struct NamedSlot {
    pub model: Arc<ServedModel>,
    pub tenant: u64,
    pub id: usize,
}

impl NamedSlot {
    /// Returns the slot that a request names, if it names one that there is.
    pub(crate) fn of(call: &Call) -> Option<NamedSlot> {
        Some(NamedSlot { model: Arc::clone(&call.model), tenant: call.tenant.id, id: id_of(call)? })
    }

    /// Remembers a request and its answer.
    pub(crate) fn remember(&self, summary: &GenerationSummary) {
        let tokens = [&*summary.prompt_tokens, &*summary.tokens].concat();
        self.model.slots.lock().insert((self.tenant, self.id), Last::Tokens(tokens));
    }
}

/// Returns whether the slot of a request was erased before it.
pub(crate) fn is_erased(call: &Call) -> bool {
    let is_erased = |id| matches!(call.model.slots.lock().get(&(call.tenant.id, id)), Some(Last::Erased));
    id_of(call).is_some_and(is_erased)
}

fn id_of(call: &Call) -> Option<usize> {
    call.body.count(ID_SLOT.name).filter(|&id| id < call.model.n_running_max())
}
