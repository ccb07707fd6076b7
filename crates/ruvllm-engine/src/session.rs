//! Sessions: conversations that are gone on with in another process.
//!
//! A session is its tokens and messages under a name, in the cache folder of its model's file. Its KV cache is
//! the blocks that the prefix cache keeps there anyway, found by the tokens: sessions that share a beginning share
//! them, and one whose blocks were given up is computed again.

use std::time::Duration;

use ruvllm_kvcache::disk::{self, SessionInfo};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::runner::ModelRunner;
use crate::{EngineError, ErrorKind};
use ruvllm_backend::KvFolder;

/// Version of the settings' format.
const VERSION: u64 = 1;

/// A conversation as it is saved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Session {
    /// Everything that was read and written, in order. Their number is the position it goes on from.
    pub tokens: Vec<u32>,
    /// The messages of a chat, each with a `role` and a `content`; none where a text is continued as it is.
    pub messages: Vec<Value>,
    /// Seed of the draws, if one was given.
    pub seed: Option<u64>,
}

impl Session {
    fn settings(&self) -> String {
        json!({ "version": VERSION, "messages": self.messages, "seed": self.seed }).to_string()
    }

    /// Reads [`Session::settings`] back; `None` if they are of another version or no settings.
    fn read(tokens: Vec<u32>, settings: &str) -> Option<Session> {
        let settings: Value = serde_json::from_str(settings).ok()?;
        let messages = settings["messages"].as_array()?.clone();
        (settings["version"] == VERSION).then(|| Session { tokens, messages, seed: settings["seed"].as_u64() })
    }
}

impl Engine {
    /// Saves a session under a name, in place of what was saved under it before. When it returns, the session survives
    /// the end of this process; a power failure too, once [`LoadOptions::cache_fsync`](crate::LoadOptions::cache_fsync)
    /// has made it durable.
    ///
    /// # Errors
    /// [`ErrorKind::Cache`]: the engine has no cache folder, the name cannot be, it belongs to a session of another
    /// model, or the session cannot be written.
    pub fn save_session(&self, name: &str, session: &Session) -> Result<(), EngineError> {
        save(&self.runner, name, session).map(drop)
    }

    /// Returns the session of this name, or `None` if there is none. What is on disk of its KV cache is read when
    /// its tokens are asked for, or before that by [`Engine::restore_prefix`].
    ///
    /// # Errors
    /// [`ErrorKind::Cache`]: the engine has no cache folder, the name cannot be, the session is of another model or
    /// was saved by another version of this program, or a file cannot be read.
    pub fn load_session(&self, name: &str) -> Result<Option<Session>, EngineError> {
        Ok(load(&self.runner, name)?.map(|(session, _)| session))
    }

    /// Saves the session `from` also as `to`: both go on by themselves. The KV cache is not copied.
    ///
    /// # Errors
    /// [`ErrorKind::Cache`]: there is no session `from`, or one of the name `to`; as [`Engine::save_session`].
    pub fn fork_session(&self, from: &str, to: &str) -> Result<(), EngineError> {
        let error = |line: String| EngineError::new(ErrorKind::Cache, line);
        let session = self.load_session(from)?.ok_or_else(|| error(format!("there is no session '{from}'")))?;
        if self.load_session(to)?.is_some() {
            return Err(error(format!("there is a session '{to}' already; delete it or use another name")));
        }
        self.save_session(to, &session)
    }

    /// Returns what is known about the sessions of this model, by name.
    ///
    /// # Errors
    /// [`ErrorKind::Cache`]: the engine has no cache folder.
    pub fn sessions(&self) -> Result<Vec<SessionInfo>, EngineError> {
        Ok(self.folder()?.store.sessions())
    }

    /// Deletes a session, and returns whether there was one.
    ///
    /// # Errors
    /// [`ErrorKind::Cache`]: the engine has no cache folder, or the folder cannot be written.
    pub fn delete_session(&self, name: &str) -> Result<bool, EngineError> {
        Ok(self.folder()?.store.delete_session(name)?)
    }

    /// Deletes the sessions that were not saved for `age`, and returns how many there were.
    ///
    /// # Errors
    /// As [`Engine::delete_session`].
    pub fn expire_sessions(&self, age: Duration) -> Result<usize, EngineError> {
        Ok(self.folder()?.store.expire_sessions(age)?)
    }

    fn folder(&self) -> Result<KvFolder<'_>, EngineError> {
        folder(&self.runner)
    }
}

/// Saves a session of a runner's model, and returns its bytes on disk; as [`Engine::save_session`].
pub(crate) fn save(runner: &ModelRunner, name: &str, session: &Session) -> Result<u64, EngineError> {
    let store = folder(runner)?.store;
    let find = || store.sessions().into_iter().find(|session| session.name == name);
    if find().is_none() {
        check_free_elsewhere(runner, name)?;
    }
    store.save_session(name, &session.tokens, &session.settings())?;
    Ok(find().map_or(0, |session| session.bytes))
}

/// Returns a session of a runner's model and its bytes on disk; as [`Engine::load_session`].
pub(crate) fn load(runner: &ModelRunner, name: &str) -> Result<Option<(Session, u64)>, EngineError> {
    disk::check_name(name)?;
    let Some(disk::Session { info, tokens, settings }) = folder(runner)?.store.load_session(name)? else {
        return check_free_elsewhere(runner, name).map(|()| None);
    };
    let n_vocab = runner.info().n_vocab;
    let is_known = |session: &Session| session.tokens.iter().all(|&id| (id as usize) < n_vocab);
    let session = Session::read(tokens, &settings).filter(is_known);
    session.map(|session| Some((session, info.bytes))).ok_or_else(|| {
        let line = format!("session '{name}' was saved by another version of this program; use another name");
        EngineError::new(ErrorKind::Cache, line)
    })
}

fn folder(runner: &ModelRunner) -> Result<KvFolder<'_>, EngineError> {
    runner.model().paged_kv().and_then(|kv| kv.folder()).ok_or_else(|| {
        let line = "sessions are kept in a cache folder; load the model with one (cache_dir)";
        EngineError::new(ErrorKind::Cache, line)
    })
}

/// Checks that no other model in the folder has a session of this name.
fn check_free_elsewhere(runner: &ModelRunner, name: &str) -> Result<(), EngineError> {
    let folder = folder(runner)?;
    for other in disk::stores(folder.folder)?.iter().filter(|store| store.identity != *folder.identity) {
        let sessions = disk::contents(folder.folder, &other.identity)?.sessions;
        if sessions.iter().any(|session| session.name == name) {
            let line = format!(
                "session '{name}' is of another model or another version of its file: {}; use that one or another name",
                other.label
            );
            return Err(EngineError::new(ErrorKind::Cache, line));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_back() {
        let messages = vec![json!({ "role": "user", "content": "hi \"there\"\n" })];
        for session in [
            Session { tokens: vec![1, 2], messages, seed: Some(u64::MAX) },
            Session { tokens: Vec::new(), messages: Vec::new(), seed: None },
        ] {
            assert_eq!(Session::read(session.tokens.clone(), &session.settings()), Some(session));
        }
        for wrong in ["", "{}", "[]", "{\"version\": 2, \"messages\": []}", "{\"version\": 1, \"messages\": 3}"] {
            assert_eq!(Session::read(vec![1], wrong), None, "{wrong}");
        }
    }
}
