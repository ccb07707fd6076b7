//! `/v1/sessions`: which conversations there are, whose, about what, and what they are served with.
//!
//! A request that names a `session` is a turn of it. The conversation itself comes with each request, as in every API;
//! what is kept here is how it is gone on with. It lies in the store of the witness log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{Method, StatusCode};
use ruvllm_engine::GenerationSummary;
use ruvllm_router::HashedWords;
use ruvllm_sona::session::{SessionIndex, SessionRecord};
use ruvllm_sona::{SonaError, now_ms};
use serde_json::{Value, json};

use crate::app::{Answer, Call, Endpoint, Plain, Run};
use crate::error::{ApiError, json_response, without_numbers};
use crate::fields::{Field, Kind, optional};
use crate::generate::offload;
use crate::routing::query_of;
use crate::witness::tenant_name;

/// Values of the hashed words that sessions are found by.
pub const SESSION_DIM: usize = 256;

const PATH: &str = "/v1/sessions/";
const NAME_BYTES_MAX: usize = 128;

/// The field of a request that is a turn of a session.
pub(crate) const SESSION: Field = optional(
    "session",
    Kind::Text,
    "what to call the conversation that this is a turn of, for /v1/sessions; the answer does not depend on it",
);

const SEARCH: &[Field] = &[
    optional("like", Kind::Text, "nearest first to what this text is about, by its words"),
    optional("user", Kind::Text, "of this user only"),
    optional("limit", Kind::Int(1, 1000), "the most sessions; 20 if it is left out"),
];

const GET: Endpoint = Endpoint {
    method: Method::GET,
    path: "/v1/sessions",
    summary: "Lists the caller's sessions, the latest first",
    answers: &["object", "data"],
    run: Run::Server(list),
    ..Endpoint::POST
};

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    GET,
    Endpoint {
        method: Method::POST,
        summary: "Finds sessions by user and by what they are about",
        fields: &[SEARCH],
        run: Run::Server(find),
        ..GET
    },
    Endpoint {
        method: Method::DELETE,
        summary: "Forgets all sessions of the caller, on the disk as well",
        answers: &["deleted"],
        run: Run::Server(forget),
        ..GET
    },
    Endpoint {
        path: "/v1/sessions/{*session}",
        summary: "Describes a session",
        answers: &["name", "user", "model", "adapter", "turns", "tokens", "used_ms"],
        run: Run::Server(one),
        ..GET
    },
    Endpoint {
        method: Method::DELETE,
        path: "/v1/sessions/{*session}",
        summary: "Forgets a session",
        answers: &["name", "deleted"],
        run: Run::Server(remove),
        ..GET
    },
];

/// Returns a session as clients and `ruvllm session` see it.
pub fn session_json(name: &str, session: &SessionRecord, used_ms: Option<u64>) -> Value {
    let model: String = session.model.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": name,
        "user": session.user,
        "model": model,
        "adapter": session.adapter,
        "generation": session.adapter_generation,
        "turns": session.n_turns,
        "tokens": session.n_tokens,
        "used_ms": used_ms,
    })
}

/// What became of things that were to be saved.
#[derive(Debug)]
pub(crate) struct Saves {
    /// Their name, for people.
    what: &'static str,
    /// Those that are not on the disk.
    n_lost: AtomicU64,
    /// Why the last one is not; none as soon as one is saved.
    failing: Mutex<Option<String>>,
}

impl Saves {
    pub(crate) fn new(what: &'static str) -> Saves {
        Saves { what, n_lost: AtomicU64::new(0), failing: Mutex::default() }
    }

    /// Takes note of one, with the reason if it was not saved.
    pub(crate) fn note(&self, failed: Option<String>) {
        self.n_lost.fetch_add(u64::from(failed.is_some()), Ordering::Relaxed);
        *self.failing.lock().unwrap_or_else(PoisonError::into_inner) = failed;
    }

    /// Returns how many were not saved.
    pub(crate) fn n_lost(&self) -> u64 {
        self.n_lost.load(Ordering::Relaxed)
    }

    /// Returns how many were not saved, and why, while they cannot be.
    pub(crate) fn failing(&self) -> Option<String> {
        let why = self.failing.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(format!("{} {} were not saved: {why}", self.n_lost(), self.what))
    }
}

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
        let Some(name) = call.given.text(SESSION.name) else { return Ok(None) };
        let Some(witness) = &call.server.witness else {
            return Err(ApiError::bad(SESSION.name, "this server keeps no sessions; start it with --witness DIR"));
        };
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let line = format!("a session's name has 1 to {NAME_BYTES_MAX} bytes and no control characters");
            return Err(ApiError::bad(SESSION.name, line));
        }
        let context = HashedWords::new(SESSION_DIM).vector(&query_of(&call.given).unwrap_or_default());
        let has_words = context.iter().any(|&x| x != 0.0);
        Ok(Some(Turn {
            index: Arc::clone(&witness.sessions),
            saves: Arc::clone(&witness.saves),
            adding: Arc::clone(&witness.adding_turns),
            tenant: tenant_name(&call.tenant).to_owned(),
            name: name.to_owned(),
            user: call.given.text("user").unwrap_or_default().to_owned(),
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
    pub(crate) fn end(self, summary: &GenerationSummary) {
        let n_tokens = (summary.prompt_tokens.len() + summary.tokens.len()) as u32;
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

fn failed(error: SonaError) -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the sessions: {error}"))
}

/// Does what reads or writes sessions where it holds up nobody.
fn with_index(
    call: Plain,
    work: impl FnOnce(&SessionIndex, &str, &Plain) -> Result<Value, ApiError> + Send + 'static,
) -> Answer {
    Box::pin(async move {
        let Some(witness) = call.server.witness.clone() else {
            let line = "this server keeps no sessions; start it with --witness DIR";
            return Err(ApiError::new(StatusCode::NOT_FOUND, line).code("no_sessions"));
        };
        offload(move || {
            let answer = work(&witness.sessions, tenant_name(&call.tenant), &call)?;
            Ok(json_response(StatusCode::OK, &answer))
        })
        .await
    })
}

fn described(index: &SessionIndex, tenant: &str, names: Vec<(String, Option<u64>)>) -> Result<Value, ApiError> {
    let mut data = Vec::new();
    for (name, used_ms) in names {
        // One that was forgotten meanwhile is left out.
        if let Some(session) = index.recover(tenant, &name).map_err(failed)? {
            data.push(session_json(&name, &session, used_ms));
        }
    }
    Ok(json!({ "object": "list", "data": data }))
}

fn list(call: Plain) -> Answer {
    with_index(call, |index, tenant, _| {
        described(index, tenant, index.list(tenant).into_iter().map(|(name, used)| (name, Some(used))).collect())
    })
}

fn find(call: Plain) -> Answer {
    with_index(call, |index, tenant, call| {
        let given = &call.given;
        let n_max = given.count("limit").unwrap_or(20);
        let used: std::collections::HashMap<String, u64> = index.list(tenant).into_iter().collect();
        let mut names: Vec<String> = match given.text("like") {
            None => index.list(tenant).into_iter().map(|(name, _)| name).collect(),
            Some(text) => {
                let query = HashedWords::new(SESSION_DIM).vector(text);
                if query.iter().all(|&x| x == 0.0) {
                    return Err(ApiError::bad("like", "'like' has no words to find sessions by"));
                }
                let found = index.nearest(tenant, &query, used.len()).map_err(failed)?;
                found.into_iter().filter(|(_, similarity)| *similarity > 0.0).map(|(name, _)| name).collect()
            }
        };
        if let Some(user) = given.text("user") {
            let of_user = index.of_user(tenant, user);
            names.retain(|name| of_user.binary_search(name).is_ok());
        }
        names.truncate(n_max);
        described(
            index,
            tenant,
            names.into_iter().map(|name| (used.get(&name).copied(), name)).map(|(used, name)| (name, used)).collect(),
        )
    })
}

fn unknown(name: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no session '{name}'")).code("session_not_found")
}

fn one(call: Plain) -> Answer {
    with_index(call, |index, tenant, call| {
        let name = call.path_behind(PATH);
        let session = index.recover(tenant, &name).map_err(failed)?.ok_or_else(|| unknown(&name))?;
        let used_ms = index.list(tenant).into_iter().find(|(known, _)| *known == name).map(|(_, used)| used);
        Ok(session_json(&name, &session, used_ms))
    })
}

fn remove(call: Plain) -> Answer {
    with_index(call, |index, tenant, call| {
        let name = call.path_behind(PATH);
        match index.remove(tenant, &name).map_err(failed)? {
            true => Ok(json!({ "name": name, "deleted": true })),
            false => Err(unknown(&name)),
        }
    })
}

fn forget(call: Plain) -> Answer {
    with_index(call, |index, tenant, _| Ok(json!({ "deleted": index.forget_tenant(tenant).map_err(failed)? })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_that_were_not_saved_are_counted() {
        let saves = Saves::new("turns of sessions");
        assert_eq!((saves.n_lost(), saves.failing()), (0, None));
        saves.note(Some("no space left on device".to_owned()));
        saves.note(Some("no space left on device".to_owned()));
        let line = saves.failing().expect("the disk is full");
        assert_eq!(line, "2 turns of sessions were not saved: no space left on device");
        saves.note(None);
        assert_eq!((saves.n_lost(), saves.failing()), (2, None));
    }

    #[test]
    fn a_conversation_is_about_all_its_turns() {
        assert_eq!(mixed(vec![], vec![], 0), Vec::<f32>::new());
        assert_eq!(mixed(vec![1.0, 0.0], vec![], 3), [1.0, 0.0]);
        assert_eq!(mixed(vec![], vec![0.0, 1.0], 0), [0.0, 1.0]);
        assert_eq!(mixed(vec![1.0, 0.0], vec![0.0, 1.0], 3), [0.75, 0.25]);
        assert_eq!(mixed(vec![1.0, 0.0], vec![-1.0, 0.0], 1), [-1.0, 0.0]);
    }
}
