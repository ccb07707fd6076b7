//! What an answer guesses ahead, by the text so far or by a draft model, and what it gives up again.

use super::Answer;
use crate::runner::ModelRunner;
use crate::speculate::tree::Forks;
use crate::speculate::{Drafting, Speculator};
use ruvllm_backend::{Segment, SeqId};

impl Answer {
    /// Returns how many guesses there were so far, and how many were right.
    pub(crate) fn guesses(&self) -> (usize, usize) {
        self.guesses
    }

    /// Returns how many guesses there are.
    pub(crate) fn n_guessed(&self) -> usize {
        self.n_guessed
    }

    /// Opens a fork of its sequence for each other way that is tried, as far as there is room; `n_rest` tokens are to be
    /// computed before guesses.
    pub(crate) fn fork(&mut self, runner: &mut ModelRunner, seq: SeqId, n_rest: usize) -> Forks {
        let mut forks = Forks::default();
        let (known, guesses) = self.context.split_at(self.context.len() - self.n_guessed);
        let n_opened = match (known.last(), n_rest) {
            (Some(&last), 1) => forks.open(runner, seq, (last, guesses), &self.branches),
            _ => 0,
        };
        self.branches.truncate(n_opened);
        forks
    }

    /// Gives up what is guessed.
    pub(crate) fn drop_guesses(&mut self) {
        let n_known = self.context().len();
        self.context.truncate(n_known);
        self.n_guessed = 0;
        self.branches.clear();
    }

    /// Returns how many of `n_max` tokens may be guessed: the last that fits is chosen, not guessed, and so is the last
    /// before its lesson changes the model. The first of the answer does not wait for guesses: the end of a turn is where
    /// a conversation repeats itself and its answers do not.
    fn n_guessable(&self, n_max: usize) -> usize {
        if self.n_tokens() == 0 {
            return 0;
        }
        let n_steady = self.lesson.as_ref().map_or(usize::MAX, |lesson| lesson.n_steady());
        let n_left = (self.n_prompt + self.max_tokens).saturating_sub(self.context().len());
        n_max.min(n_left.min(n_steady).saturating_sub(1))
    }

    /// Guesses up to `n_max` tokens ahead by the text so far, instead of those that were guessed before.
    pub(crate) fn guess(&mut self, n_max: usize) {
        self.drop_guesses();
        let (n_known, n_max) = (self.context.len(), self.n_guessable(n_max));
        if let Some(speculator) = &mut self.speculator {
            speculator.guess(&mut self.context, n_max);
        }
        self.n_guessed = self.context.len() - n_known;
    }

    /// Lets a draft model begin to guess up to `n_max` tokens, and returns whether there are some to come: none if there are
    /// guesses.
    pub(crate) fn begin_draft(&mut self, draft: &mut ModelRunner, n_max: usize) -> bool {
        let n_max = if self.n_guessed == 0 { self.n_guessable(n_max) } else { 0 };
        let Some(speculator) = &mut self.speculator else { return false };
        let context = (&self.context[..], self.request.tenant);
        let begins = speculator.begin_draft(draft, context, &self.sampler, n_max);
        if let (true, Some(constraint)) = (begins, &mut self.constraint) {
            // The mask is that of the next token; what is wrong with it shows when that is chosen.
            let _ = constraint.compute_mask();
        }
        begins
    }

    /// Returns its part in the draft model.
    pub(crate) fn drafting(&mut self) -> Option<&mut Drafting> {
        self.speculator.as_mut().and_then(Speculator::draft)
    }

    /// Returns the tokens that the draft model computes next for it, after [`Answer::begin_draft`].
    pub(crate) fn draft_segment(&self, draft: &ModelRunner) -> Option<Segment<'_>> {
        self.speculator.as_ref()?.draft_segment(draft, &self.context)
    }

    /// Takes over a guess of the draft model by its `logits`, and returns whether there are more to come.
    pub(crate) fn draft_one(&mut self, logits: &[f32]) -> bool {
        let is_thinking = self.is_thinking();
        let Some(drafting) = self.speculator.as_mut().and_then(Speculator::draft) else { return false };
        let is_first = self.n_guessed == 0;
        let constraint = self.constraint.as_ref().filter(|_| is_first && !is_thinking);
        let mask = |logits: &mut [f32]| constraint.iter().for_each(|constraint| constraint.apply_mask(logits));
        let Some(id) = drafting.choose(logits, self.n_vocab, mask, is_first) else { return false };
        let goes_on = drafting.goes_on() && !self.tokenizer.is_end_of_generation(id);
        self.context.push(id);
        self.n_guessed += 1;
        if is_first {
            self.branches = drafting.take_branches();
        }
        goes_on
    }

    /// Gives up guesses that the grammar does not allow.
    pub(crate) fn check_guesses(&mut self) {
        let (n_known, n_guessed) = (self.context().len(), self.n_guessed);
        let is_thinking = self.is_thinking();
        if let (Some(constraint), 1.., false) = (&mut self.constraint, n_guessed, is_thinking) {
            self.n_guessed = constraint.n_allowed(&self.context[n_known..]);
            self.context.truncate(n_known + self.n_guessed);
            self.branches.retain(|branch| branch.at <= self.n_guessed);
        }
    }

    /// Gives its sequence in the draft model back.
    pub(crate) fn leave_draft(&mut self, runner: &mut ModelRunner) {
        if let (Some(drafting), Some(draft)) = (self.drafting(), runner.draft()) {
            drafting.close(draft);
        }
    }
}
