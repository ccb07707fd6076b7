//! Drafts of an answer, by the text so far or by a draft model.

use super::RequestState;
use crate::runner::ModelRunner;
use crate::speculate::tree::Forks;
use crate::speculate::{DraftContext, DraftSources, Drafter, History, Speculator};
use ruvllm_backend::{Segment, SeqId};

impl RequestState {
    /// Returns how many draft tokens there were so far, by source.
    pub(crate) fn draft_sources(&self) -> DraftSources {
        self.speculator.as_ref().map(Speculator::counts).unwrap_or_default()
    }

    /// Returns how many draft tokens there are.
    pub(crate) fn n_drafted(&self) -> usize {
        self.n_drafted
    }

    /// Opens a fork of its sequence for each other way that is tried, as far as there is room; `n_rest` tokens are to be
    /// computed before draft tokens.
    pub(crate) fn fork(&mut self, runner: &mut ModelRunner, seq: SeqId, n_rest: usize) -> Forks {
        let mut forks = Forks::default();
        let n_known = self.context.len() - self.n_drafted;
        let n_opened = match (n_known.checked_sub(1), n_rest) {
            (Some(at), 1) => forks.open(runner, seq, &self.context[at..], &self.branches),
            _ => 0,
        };
        self.branches.truncate(n_opened);
        forks
    }

    /// Gives up what is drafted.
    pub(crate) fn drop_draft(&mut self) {
        let n_known = self.context().len();
        self.context.truncate(n_known);
        self.n_drafted = 0;
        self.branches.clear();
    }

    /// Returns how many of `n_max` tokens may be drafted: the last that fits is chosen, not drafted, and so is the last
    /// before its hook changes the model. The first of the answer does not wait for draft tokens: the end of a turn is where
    /// a conversation repeats itself and its answers do not.
    fn n_draftable(&self, n_max: usize) -> usize {
        if self.n_tokens() == 0 {
            return 0;
        }
        let n_steady = self.hook.as_ref().map_or(usize::MAX, |hook| hook.n_steady());
        let n_left = (self.n_prompt + self.max_tokens).saturating_sub(self.context().len());
        n_max.min(n_left.min(n_steady).saturating_sub(1))
    }

    /// Drafts up to `n_max` tokens ahead by the text so far and by earlier ones, instead of those that were drafted before.
    pub(crate) fn propose(&mut self, history: &History, n_max: usize) {
        self.drop_draft();
        let (n_known, n_max) = (self.context.len(), self.n_draftable(n_max));
        if let Some(speculator) = &mut self.speculator {
            speculator.propose(history, self.request.tenant, &mut self.context, n_max);
        }
        self.n_drafted = self.context.len() - n_known;
    }

    /// Lets a draft model begin to draft up to `n_max` tokens, and returns whether there are some to come: none if there are
    /// draft tokens.
    pub(crate) fn begin_draft(&mut self, draft: &mut ModelRunner, n_max: usize) -> bool {
        let n_max = if self.n_drafted == 0 { self.n_draftable(n_max) } else { 0 };
        let Some(speculator) = &mut self.speculator else { return false };
        let context = DraftContext { tokens: &self.context, tenant: self.request.tenant };
        let begins = speculator.begin_draft(draft, context, &self.sampler, n_max);
        if let (true, Some(constraint)) = (begins, &mut self.constraint) {
            // The mask is that of the next token; what is wrong with it shows when that is chosen.
            let _ = constraint.compute_mask();
        }
        begins
    }

    /// Returns its part in the draft model.
    pub(crate) fn drafter(&mut self) -> Option<&mut Drafter> {
        self.speculator.as_mut().and_then(Speculator::drafter)
    }

    /// Returns the tokens that the draft model computes next for it, after [`RequestState::begin_draft`].
    pub(crate) fn draft_segment(&self, draft: &ModelRunner) -> Option<Segment<'_>> {
        self.speculator.as_ref()?.draft_segment(draft, &self.context)
    }

    /// Takes over a draft token of the draft model by its `logits`, and returns whether there are more to come.
    pub(crate) fn draft_one(&mut self, logits: &[f32]) -> bool {
        let is_thinking = self.is_thinking();
        let Some(drafter) = self.speculator.as_mut().and_then(Speculator::drafter) else { return false };
        let is_first = self.n_drafted == 0;
        let constraint = self.constraint.as_ref().filter(|_| is_first && !is_thinking);
        let mask = |logits: &mut [f32]| constraint.iter().for_each(|constraint| constraint.apply_mask(logits));
        let Some(id) = drafter.choose(logits, self.n_vocab, mask, is_first) else { return false };
        let goes_on = drafter.goes_on() && !self.tokenizer.is_end_of_generation(id);
        self.context.push(id);
        self.n_drafted += 1;
        if is_first {
            self.branches = drafter.take_branches();
        }
        goes_on
    }

    /// Gives up draft tokens that the grammar does not allow.
    pub(crate) fn check_draft(&mut self) {
        let (n_known, n_drafted) = (self.context().len(), self.n_drafted);
        let is_thinking = self.is_thinking();
        if let (Some(constraint), 1.., false) = (&mut self.constraint, n_drafted, is_thinking) {
            self.n_drafted = constraint.n_allowed(&self.context[n_known..]);
            self.context.truncate(n_known + self.n_drafted);
            self.branches.retain(|branch| branch.at <= self.n_drafted);
        }
    }

    /// Gives its sequence in the draft model back; what it wrote becomes its tenant's history, of an answer that drafts by texts.
    pub(crate) fn leave_draft(&mut self, runner: &mut ModelRunner) {
        if self.n_tokens() > 0 && self.speculator.as_ref().is_some_and(Speculator::reads_texts) {
            runner.history_mut().add(self.request.tenant, self.context());
        }
        if let (Some(drafter), Some(draft)) = (self.drafter(), runner.draft()) {
            drafter.close(draft);
        }
    }
}
