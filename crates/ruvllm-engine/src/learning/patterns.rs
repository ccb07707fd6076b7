//! A tenant's ReasoningBank: how tasks were gone about, found by what the model makes of their words.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use ruvllm_sona::bank::{BankConfig, Imported, ReasoningBank, Select, Trust};
use ruvllm_sona::{PublicKey, SigningKey};

use super::name_of;
use super::reading::Passes;
use super::tenant::Tenant;
use crate::{AdapterSet, EngineError, ErrorKind, Readout};

/// Tokens of a task that are read to find others like it: while they are, nobody else's are.
const TASK_TOKENS_MAX: usize = 256;

/// The first states of a text are much the same whatever it is.
const N_FIRST: usize = 3;

impl Tenant {
    /// Returns what the model is known by that is taught here.
    pub fn model(&self) -> &[u8; 32] {
        &self.shared.identity
    }

    /// Returns its patterns. The first time they are read, which takes up to a minute for 100,000.
    ///
    /// # Errors
    /// Nothing is kept of this tenant, or the store cannot be read.
    pub fn patterns(&self) -> Result<Arc<ReasoningBank>, EngineError> {
        let mut bank = self.bank();
        if let Some(bank) = &*bank {
            return Ok(Arc::clone(bank));
        }
        let store = if self.is_kept { self.shared.store(self.name())? } else { None };
        let store = store.ok_or_else(|| {
            let line = "what this tenant learns is kept nowhere, so there are no patterns; give it a folder";
            EngineError::new(ErrorKind::Learning, line)
        })?;
        // Only what the same model makes of words is comparable.
        let space = format!("states of model {}", name_of(self.model()));
        let config = BankConfig::new(space, self.shared.calibration.whitener().n_embd());
        let opened = Arc::new(ReasoningBank::open(store, self.name(), config, &mut |_, _| {})?);
        *bank = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Returns all patterns as a signed file for another node.
    ///
    /// # Errors
    /// As [`Tenant::patterns`].
    pub fn export_patterns(&self, key: &SigningKey) -> Result<Vec<u8>, EngineError> {
        Ok(self.patterns()?.export(&Select::default(), key)?)
    }

    /// Takes over the patterns of a signed file of another node that are not known here.
    ///
    /// # Errors
    /// Nobody of `trusted` has signed it, it was changed since, or it is of another model; it cannot be written.
    pub fn import_patterns(&self, file: &[u8], trusted: &[PublicKey]) -> Result<Imported, EngineError> {
        Ok(self.patterns()?.import(file, &Trust::new(trusted))?)
    }

    /// Returns what a task is found by among the patterns: `[n_embd]`, of length 1. `tokens` are its words as a text to embed; of more
    /// than 256 the first are read.
    ///
    /// # Errors
    /// No tokens, or the model cannot read them.
    pub fn embed_task(&self, passes: &mut dyn Passes, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        let tokens = tokens[..tokens.len().min(TASK_TOKENS_MAX)].to_vec();
        let (sender, receiver) = sync_channel(1);
        passes.pass(Box::new(move |backend| {
            let n_last = tokens.len().saturating_sub(N_FIRST).max(1);
            drop(sender.send(backend.embed(&tokens, Readout::States { n_last }, &AdapterSet::default())));
        }))?;
        let states =
            receiver.recv().map_err(|_| EngineError::new(ErrorKind::Stopped, "the model ended while it read"))??;
        Ok(self.shared.calibration.whitener().embedding(&states, self.shared.isa))
    }
}
