//! Options of how steps are filled.

use crate::{EngineError, ErrorKind};

/// A request that may have fewer draft tokens in a step has none.
const GUESSES_MIN: usize = 2;

/// Limits of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Most tokens of a step; answers get their rows in any case.
    pub step_tokens: usize,
    /// Most prompt tokens of a step in which others write answers: with more, prompts are read sooner and answers
    /// falter.
    pub prefill_tokens: usize,
    /// Most rows of a step that are draft tokens; 0 drafts nothing. Requests share them, and one that would have fewer than two
    /// has none.
    pub draft_rows: usize,
    /// Most draft tokens of a request in a step.
    pub draft_tokens_max: usize,
}

impl Default for SchedulerOptions {
    /// 512 tokens, 128 of prompts beside answers, 12 draft tokens and 8 of a request.
    fn default() -> SchedulerOptions {
        SchedulerOptions { step_tokens: 512, prefill_tokens: 128, draft_rows: 12, draft_tokens_max: 8 }
    }
}

impl SchedulerOptions {
    /// Returns how many draft tokens each of so many requests may have in a step.
    pub fn n_draft_max(&self, n_requests: usize) -> usize {
        let n = (self.draft_rows / n_requests.max(1)).min(self.draft_tokens_max);
        if n < GUESSES_MIN { 0 } else { n }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`ErrorKind::Options`]: one is 0.
    pub fn validate(&self) -> Result<(), EngineError> {
        let SchedulerOptions { step_tokens, prefill_tokens, .. } = *self;
        if step_tokens == 0 || prefill_tokens == 0 {
            let line = format!("steps of {step_tokens} tokens, {prefill_tokens} of prompts; both must be at least 1");
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        Ok(())
    }
}
