//! A turn of a session that is being answered.

use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_api::error::{ApiError, without_numbers};
use ruvllm_api::routing::query_of;
use ruvllm_api::session::{SESSION, SESSION_DIM};
use ruvllm_router::HashedWords;
use ruvllm_server_state::saves::Saves;
use ruvllm_server_state::witness::tenant_name;
use ruvllm_sona::now_ms;
use ruvllm_sona::session::{SessionIndex, SessionRecord};

use super::Call;
use super::answer::Summary;

/// The most bytes of a session's name.
const NAME_BYTES_MAX: usize = 128;

/// A turn of a session that is being answered.
pub(crate) struct Turn {
    index: Arc<SessionIndex>,
    saves: Arc<Saves>,
    /// Held while a turn is added to what is known: two may end at once.
    adding: Arc<Mutex<()>>,
    tenant: String,
    name: String,
    user: String,
    model: [u8; 32],
    adapter: String,
    context: Vec<f32>,
}

impl Turn {
    /// Returns the turn that a request is, if it names a session.
    ///
    /// # Errors
    /// 400: a name that is none, or a server that keeps no sessions.
    pub(crate) fn of(call: &Call) -> Result<Option<Turn>, ApiError> {
        let Some(name) = call.body.text(SESSION.name) else { return Ok(None) };
        let Some(witness) = &call.server.witness else {
            return Err(ApiError::bad(SESSION.name, "this server keeps no sessions; start it with --witness DIR"));
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let line = format!("a session's name has 1 to {NAME_BYTES_MAX} bytes and no control characters");
            return Err(ApiError::bad(SESSION.name, line));
        }
        let context = HashedWords::new(SESSION_DIM).vector(&query_of(&call.body).unwrap_or_default());
        let has_words = context.iter().any(|&x| x != 0.0);
        Ok(Some(Turn {
            index: Arc::clone(&witness.sessions),
            saves: Arc::clone(&witness.saves),
            adding: Arc::clone(&witness.adding_turns),
            tenant: tenant_name(&call.tenant).to_owned(),
            name: name.to_owned(),
            user: call.body.text("user").unwrap_or_default().to_owned(),
            model: call.model.recorder.as_ref().map_or([0; 32], |recorder| recorder.model()),
            adapter: call
                .model_name
                .strip_prefix(&*call.model.name)
                .unwrap_or_default()
                .trim_start_matches(':')
                .to_owned(),
            context: if has_words { context } else { Vec::new() },
        }))
    }

    /// Counts an answer, on a thread that may wait for the disk.
    pub(crate) fn end(self, summary: &Summary) {
        let n_tokens = u32::try_from(summary.n_prompt().saturating_add(summary.n_answer())).unwrap_or(u32::MAX);
        // Threads come to it in any order; the latest session is the one whose answer ended last.
        let used_ms = now_ms();
        drop(tokio::task::spawn_blocking(move || {
            let Turn { index, saves, adding, tenant, name, user, model, adapter, context } = self;
            let _adding = adding.lock().unwrap_or_else(PoisonError::into_inner);
            let saved = index.recover(&tenant, &name).and_then(|before| {
                let before = before.unwrap_or_default();
                let session = SessionRecord {
                    user: if user.is_empty() { before.user } else { user },
                    context: mixed(before.context, context, before.n_turns),
                    adapter,
                    model,
                    n_turns: before.n_turns + 1,
                    n_tokens,
                    ..before
                };
                index.save(&tenant, &name, &session, used_ms)
            });
            saves.note(saved.as_ref().err().map(|error| without_numbers(&error.to_string())));
            if let Err(error) = saved {
                tracing::error!(%error, "a session was not saved");
            }
        }));
    }
}

/// Returns what a conversation is about after one more turn: the mean over its turns.
fn mixed(before: Vec<f32>, now: Vec<f32>, n_turns: u32) -> Vec<f32> {
    if before.is_empty() || now.is_empty() {
        return if now.is_empty() { before } else { now };
    }
    let n = n_turns as f32;
    let sum = before.iter().zip(&now).map(|(before, now)| (before * n + now) / (n + 1.0));
    let mean: Vec<f32> = sum.collect();
    // Opposite turns leave no direction.
    if mean.iter().all(|&x| x == 0.0) { now } else { mean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_about_all_its_turns() {
        assert_eq!(mixed(vec![], vec![], 0), Vec::<f32>::new());
        assert_eq!(mixed(vec![1.0, 0.0], vec![], 3), [1.0, 0.0]);
        assert_eq!(mixed(vec![], vec![0.0, 1.0], 0), [0.0, 1.0]);
        assert_eq!(mixed(vec![1.0, 0.0], vec![0.0, 1.0], 3), [0.75, 0.25]);
        assert_eq!(mixed(vec![1.0, 0.0], vec![-1.0, 0.0], 1), [-1.0, 0.0]);
    }
}
