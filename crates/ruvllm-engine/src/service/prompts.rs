//! Prompts that callers keep under a name, and bring back before they are asked for.

use std::sync::mpsc;

use super::{Service, ended};
use crate::runner::ModelRunner;
use crate::session::{self, Session};
use crate::{CacheSalt, EngineError};

/// Tokens that were saved under a name, or brought back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedPrompt {
    /// All of them.
    pub tokens: Vec<u32>,
    /// Bytes on disk, without the blocks of the KV cache, which requests with the same beginning share.
    pub n_bytes: u64,
    /// Leading tokens whose KV cache is there.
    pub n_ready: usize,
}

impl Service {
    /// Saves tokens under a name in the model's cache folder, in place of what was saved under it before. Waits until it is done.
    ///
    /// # Errors
    /// [`ErrorKind::Cache`](crate::ErrorKind::Cache): the engine has no cache folder, the name cannot be, or the folder cannot be
    /// written; [`ErrorKind::Stopped`](crate::ErrorKind::Stopped) if the service has ended.
    pub fn save_prompt(&self, name: &str, tokens: Vec<u32>) -> Result<SavedPrompt, EngineError> {
        let name = name.to_owned();
        self.within(move |runner| {
            let session = Session { tokens, ..Session::default() };
            let n_bytes = session::save(runner, &name, &session)?;
            Ok(SavedPrompt { n_ready: session.tokens.len(), tokens: session.tokens, n_bytes })
        })
    }

    /// Brings back what was saved under a name: reads into memory what the folder holds of its KV cache, for requests of
    /// the salt. `None` if nothing was.
    ///
    /// # Errors
    /// As [`Service::save_prompt`].
    pub fn restore_prompt(&self, name: &str, salt: CacheSalt) -> Result<Option<SavedPrompt>, EngineError> {
        let name = name.to_owned();
        self.within(move |runner| {
            let Some((session, n_bytes)) = session::load(runner, &name)? else { return Ok(None) };
            let kv = runner.model_mut().paged_kv_mut();
            let n_ready = kv.map_or(0, |kv| kv.restore_prefix(&session.tokens, &salt));
            Ok(Some(SavedPrompt { tokens: session.tokens, n_bytes, n_ready }))
        })
    }

    /// Forgets the prompts and answers of a tenant that drafts are made of, before its next request is admitted.
    ///
    /// # Errors
    /// [`ErrorKind::Stopped`](crate::ErrorKind::Stopped) if the service has ended.
    pub fn forget_history(&self, tenant: u64) -> Result<(), EngineError> {
        self.run(Box::new(move |runner| runner.forget_history(tenant)))
    }

    /// Forgets the prompts and answers of all other tenants, as [`Service::forget_history`] does.
    ///
    /// # Errors
    /// As [`Service::forget_history`].
    pub fn forget_other_histories(&self, tenants: Vec<u64>) -> Result<(), EngineError> {
        self.run(Box::new(move |runner| runner.forget_other_histories(&tenants)))
    }

    /// Returns what work on the owner's thread gives.
    fn within<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut ModelRunner) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, EngineError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.run(Box::new(move |runner| drop(sender.send(work(runner)))))?;
        receiver.recv().map_err(|_| ended())?
    }
}
