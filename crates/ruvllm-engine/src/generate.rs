//! Generation: prefill the prompt, then one token a step, as an iterator.

use std::collections::VecDeque;

use crate::EngineError;
use crate::request::{GenerateRequest, GenerationSummary, TokenEvent};
use crate::request_state::RequestState;
use crate::runner::ModelRunner;
use crate::speculate::draft;
use ruvllm_backend::{Segment, SeqId, States};

/// Prompt tokens between two looks at the cancel flag.
const PREFILL_CHUNK: usize = 256;
/// Tokens drafted at most.
const DRAFT_TOKENS_MAX: usize = 8;

/// A running request: an iterator over its tokens. Dropping it ends the request and frees its blocks.
pub struct Generation<'a> {
    runner: &'a mut ModelRunner,
    seq: SeqId,
    answer: RequestState,
    /// Tokens of the last step that were not asked for yet.
    events: VecDeque<TokenEvent>,
    /// A step failed: told once, behind its tokens.
    error: Option<EngineError>,
    is_broken: bool,
}

impl<'a> Generation<'a> {
    /// Checks a request and opens its sequence with what is cached of the prompt; nothing is computed before the first `next`.
    pub(crate) fn start(runner: &'a mut ModelRunner, request: &GenerateRequest) -> Result<Generation<'a>, EngineError> {
        let mut answer = RequestState::new(runner, request.clone())?;
        let (seq, _) = answer.open(runner)?;
        Ok(Generation { runner, seq, answer, events: VecDeque::new(), error: None, is_broken: false })
    }

    /// Computes what is due and chooses tokens; none if the request was cancelled meanwhile.
    fn step(&mut self) -> Result<(), EngineError> {
        let seq = self.seq;
        let mut at = self.runner.n_tokens(seq);
        while self.answer.context().len() - at > PREFILL_CHUNK {
            let (tokens, logits) = (&self.answer.context()[at..at + PREFILL_CHUNK], self.answer.wanted(at, 0));
            let states = self.runner.forward_states(&[Segment { seq, tokens, logits }])?;
            self.answer.read(at, states.rows.hidden);
            at += PREFILL_CHUNK;
            if self.answer.is_over() {
                return Ok(());
            }
        }
        let n_tail = self.answer.context().len() - at;
        draft::propose(self.runner, &mut [(&mut self.answer, DRAFT_TOKENS_MAX)]);
        let mut forks = self.answer.fork(self.runner, seq, n_tail);
        self.answer.begin_choice();
        let (n_drafted, all) = (self.answer.n_drafted(), self.answer.context_and_draft());
        let tokens = &all[all.len() - n_drafted - n_tail..];
        let logits = self.answer.wanted(at, 1 + n_drafted);
        let chain = Segment { seq, tokens, logits };
        let n_shown = logits.n_states(tokens.len()) - (1 + n_drafted);
        let n_embd = self.runner.info().n_embd;
        let states = match forks.is_empty() {
            true => self.runner.forward_states(&[chain]),
            false => self.runner.forward_states(&std::iter::once(chain).chain(forks.segments()).collect::<Vec<_>>()),
        };
        let choose = |States { logits, approx, rows }: States<'_>| {
            let (shown, rows) = rows.split_at(n_shown, n_embd);
            self.answer.read(at, shown.hidden);
            self.answer.choose(States { logits, approx, rows }, &mut |event| self.events.push_back(event))
        };
        match states.and_then(choose) {
            Ok(kept) => {
                forks.settle(self.runner, &mut self.seq, kept)?;
                self.answer.pass_on(self.runner, self.seq)
            }
            Err(error) => {
                forks.close(self.runner);
                Err(error)
            }
        }
    }

    /// Runs to the end, calling `each` with every token, and returns the summary.
    ///
    /// # Errors
    /// The first error of a step; what was generated until then was told to `each`.
    pub fn for_each_token(mut self, mut each: impl FnMut(&TokenEvent)) -> Result<GenerationSummary, EngineError> {
        for event in self.by_ref() {
            each(&event?);
        }
        Ok(self.finish())
    }

    /// Ends the request and returns what came of it: all that was computed, also tokens that `next` did not come to. A
    /// request stopped before its end counts as cancelled.
    pub fn finish(mut self) -> GenerationSummary {
        self.answer.closes(self.runner, self.seq);
        self.answer.take_summary()
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<TokenEvent, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.answer.is_cancelled() {
            return None;
        }
        // A step may tell nothing: what values close with may be held, or be taken back.
        while self.events.is_empty() && !self.is_broken && !self.answer.is_over() {
            self.error = self.step().err();
            self.is_broken = self.error.is_some();
        }
        let event = self.events.pop_front().map(Ok);
        event.or_else(|| self.error.take().map(Err))
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        self.answer.leave_draft(self.runner);
        self.runner.close(self.seq);
        while self.runner.idle() {}
    }
}
