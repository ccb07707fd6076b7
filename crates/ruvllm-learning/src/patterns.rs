//! A tenant's ReasoningBank: how tasks were gone about, found by what the model makes of their words.

use std::sync::Arc;

use ruvllm_engine::{EngineError, ErrorKind, Readout};
use ruvllm_sona::bank::{self, BankConfig, Imported, Pattern, ReasoningBank, Select, Trust};
use ruvllm_sona::store::Durability;
use ruvllm_sona::{PublicKey, SigningKey};

use crate::error::of_sona;
use crate::learning::name_of;
use crate::tenant::TenantLearning;

/// Tokens of a task that are read to find others like it: while they are, nobody else's are.
const TASK_TOKENS_MAX: usize = 256;

/// The first states of a text are much the same whatever it is.
const N_FIRST: usize = 3;

impl TenantLearning {
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
        let opened = Arc::new(ReasoningBank::open(store, self.name(), config, &mut |_, _| {}).map_err(of_sona)?);
        *bank = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Returns all patterns as a signed file for another node.
    ///
    /// # Errors
    /// As [`TenantLearning::patterns`].
    pub fn export_patterns(&self, key: &SigningKey) -> Result<Vec<u8>, EngineError> {
        self.patterns()?.export(&Select::default(), key).map_err(of_sona)
    }

    /// Takes over the patterns of a signed file of another node that are not known here.
    ///
    /// # Errors
    /// Nobody of `trusted` has signed it, it was changed since, or it is of another model; it cannot be written.
    pub fn import_patterns(&self, file: &[u8], trusted: &[PublicKey]) -> Result<Imported, EngineError> {
        self.patterns()?.import(file, &Trust::new(trusted)).map_err(of_sona)
    }

    /// Keeps a pattern that came from an item, unless that was undone meanwhile; returns its id.
    ///
    /// # Errors
    /// As [`TenantLearning::patterns`]; the pattern does not fit, or it cannot be written.
    pub fn keep_pattern(&self, item: u64, pattern: Pattern) -> Result<Option<u64>, EngineError> {
        let bank = self.patterns()?;
        // Undoing has it as well.
        let mut state = self.lock_state();
        let Some((history, _)) = state.kept() else { return Ok(None) };
        match history.is_in_effect(item).map_err(of_sona)? {
            true => Ok(Some(bank.add(&Pattern { items: vec![item], ..pattern }).map_err(of_sona)?)),
            false => Ok(None),
        }
    }

    /// Forgets all patterns, also where they cannot be read. The caller has the mind.
    pub(crate) fn forget_patterns(&self) -> Result<(), EngineError> {
        if let Ok(bank) = self.patterns() {
            bank.clear().map_err(of_sona)?;
        } else if let Some(store) = self.shared.store(self.name())? {
            let mut change = store.begin(Durability::Durable).map_err(of_sona)?;
            bank::forget_tenant(change.as_mut(), self.name()).map_err(of_sona)?;
            change.commit().map_err(of_sona)?;
        }
        Ok(())
    }

    /// Returns what the model has to read of a task to find others like it: of its words, as tokens of a text to embed, the first 256.
    pub fn task_readout(mut tokens: Vec<u32>) -> (Vec<u32>, Readout) {
        tokens.truncate(TASK_TOKENS_MAX);
        let n_last = tokens.len().saturating_sub(N_FIRST).max(1);
        (tokens, Readout::States { n_last })
    }

    /// Returns what a task is found by among the patterns, of what the model [read](TenantLearning::task_readout): `[n_embd]`, of length 1.
    ///
    /// # Panics
    /// If the states have another width.
    pub fn task_embedding(&self, states: &[f32]) -> Vec<f32> {
        self.shared.calibration.whitener().embedding(states, self.shared.compute.isa)
    }
}
