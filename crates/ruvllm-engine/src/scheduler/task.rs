//! A request on its way: its answer so far, and its sequence while it runs.

use ruvllm_kvcache::BLOCK_TOKENS;
use web_time::{Duration, Instant};

use super::policy::{Admission, Holder, IDLE_PRIORITY, Queued, Running, Waiting};
use crate::EngineError;
use crate::request::{GenerateRequest, GenerationSummary, TokenEvent};
use crate::request_state::RequestState;
use crate::runner::ModelRunner;
use crate::speculate::tree::{Accepted, Forks};
use crate::tuner::Choice;
use ruvllm_backend::{Segment, SeqId, States};

/// Tokens of an answer that room is kept for if the request sets no limit.
const UNBOUNDED_TOKENS: usize = 512;

/// Tokens of an answer that are computed in one step; more are treated as a prompt.
const ANSWER_ROWS_MAX: usize = 32;

/// A request that waits or runs.
pub(super) struct Task {
    /// Its age: lower is older.
    pub id: u64,
    answer: RequestState,
    /// While it runs.
    seq: Option<SeqId>,
    /// Its tokens in the step at hand, draft tokens not counted.
    pub n_rows: usize,
    /// Of its sequence, for other ways beside the draft tokens.
    forks: Forks,
    /// Ends it.
    pub error: Option<EngineError>,
    /// Set while it waits after it was preempted.
    preempted: Option<Preempted>,
    /// Tokens that were computed since it was taken in.
    pub n_turn: usize,
    /// What was chosen for its steps, and for how many each.
    choices: Vec<(Choice, u32)>,
    /// Choice of the policy of its KV cache.
    pub kv: Option<Choice>,
}

/// Why a request was preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// There was no memory for all.
    Memory,
    /// Its tenant's others needed the memory.
    Quota,
    /// Another tenant had fewer places than its share.
    Share,
}

/// How a request was preempted.
struct Preempted {
    /// How many requests were over then.
    n_ended: u64,
    cause: Cause,
    /// The tokens it had computed.
    n_computed: usize,
}

impl Task {
    /// # Errors
    /// As [`RequestState::new`].
    pub(super) fn new(id: u64, runner: &ModelRunner, request: GenerateRequest) -> Result<Task, EngineError> {
        let (answer, forks) = (RequestState::new(runner, request)?, Forks::default());
        Ok(Task {
            id,
            answer,
            seq: None,
            n_rows: 0,
            forks,
            error: None,
            preempted: None,
            n_turn: 0,
            choices: Vec::new(),
            kv: None,
        })
    }

    pub(super) fn tenant(&self) -> u64 {
        self.answer.tenant()
    }

    /// Returns whether it is computed only while there are no other requests.
    pub(super) fn is_idle(&self) -> bool {
        self.answer.request().priority == IDLE_PRIORITY
    }

    pub(super) fn priority(&self) -> i32 {
        i32::from(self.answer.request().priority)
    }

    /// Returns how long ago it came.
    pub(super) fn waited(&self, now: Instant) -> Duration {
        self.answer.waited(now)
    }

    pub(super) fn is_over(&self) -> bool {
        self.error.is_some() || self.answer.is_over()
    }

    /// Takes out what came of it.
    pub(super) fn take_result(&mut self) -> Result<GenerationSummary, EngineError> {
        match self.error.take() {
            Some(error) => Err(error),
            None => Ok(self.answer.take_summary()),
        }
    }

    /// Returns whether it waits for its reader.
    pub(super) fn is_unread(&self) -> bool {
        self.answer.request().unread.is_full()
    }

    pub(super) fn as_holder(&self) -> Holder {
        let (id, tenant, priority) = (self.id, self.tenant(), self.priority());
        Holder { id, tenant, priority, n_turn: self.n_turn, is_unread: self.is_unread() }
    }

    fn n_computed(&self, runner: &ModelRunner) -> usize {
        self.seq.map_or(0, |seq| runner.n_tokens(seq))
    }

    /// Returns the tokens to compute before the next one can be chosen.
    pub(super) fn n_left(&self, runner: &ModelRunner) -> usize {
        self.answer.context().len() - self.n_computed(runner)
    }

    /// Returns the tokens of its whole context, guessed where the request sets no limit.
    fn n_likely(&self) -> usize {
        let likely = match self.answer.is_bounded() {
            true => usize::MAX,
            false => self.answer.context().len() + UNBOUNDED_TOKENS,
        };
        self.answer.n_context_max().min(likely)
    }

    /// Returns the bytes of its whole context: what it may come to need.
    fn bytes_max(&self, runner: &ModelRunner) -> usize {
        runner.kv_bytes_for(self.n_likely())
    }

    pub(super) fn as_running(&self, runner: &ModelRunner, effective_priority: i32, n_served: u64) -> Running {
        let held_bytes = runner.kv_bytes_for(self.n_computed(runner));
        let growth_bytes = self.bytes_max(runner).saturating_sub(held_bytes);
        let n_left = if self.is_unread() { 0 } else { self.n_left(runner) };
        // Tokens that a grammar forces come several at once.
        let is_answer = n_left == 1 || (self.answer.n_tokens() > 0 && n_left <= ANSWER_ROWS_MAX);
        Running {
            id: self.id,
            n_left,
            n_answer: if is_answer { n_left } else { 0 },
            growth_bytes,
            effective_priority,
            n_served,
        }
    }

    pub(super) fn as_queued(&self, effective_priority: i32) -> Queued {
        let (id, tenant, n_tokens) = (self.id, self.tenant(), self.n_likely() as u64);
        Queued {
            id,
            tenant,
            effective_priority,
            n_tokens,
            was_running: self.preempted.as_ref().is_some_and(|way| way.cause != Cause::Share),
        }
    }

    /// `older` are those that run, and those that wait before it. Its effective priority and what its tenant had are left at 0.
    pub(super) fn as_waiting<'t>(
        &self,
        runner: &ModelRunner,
        mut older: impl Iterator<Item = &'t Task>,
        n_ended: u64,
        nobody_runs: bool,
    ) -> Waiting {
        let (context, salt) = (self.answer.context(), self.answer.salt());
        let is_cached = !self.answer.request().ignore_cache;
        let known = is_cached.then(|| runner.match_prefix(context, &salt)).flatten();
        let (n_known, in_use_bytes) = known.map_or((0, 0), |known| (known.n_tokens, known.in_use_bytes));
        // At least one more block than is known, all of it before the last token.
        let next = (n_known / BLOCK_TOKENS + 1) * BLOCK_TOKENS;
        let waits_for = |other: &Task| other.answer.salt() == salt && other.will_know(runner, &context[..next]);
        let admission = match &self.preempted {
            // As much room as it did not find then is there only when somebody has ended.
            Some(Preempted { cause: Cause::Quota, n_ended: then, .. }) if *then == n_ended && !nobody_runs => {
                Admission::Deferred
            }
            Some(Preempted { cause: Cause::Memory, n_ended: then, .. }) if *then == n_ended && !nobody_runs => {
                Admission::Blocked
            }
            _ if self.is_unread() => Admission::Deferred,
            _ if known.is_some() && next < context.len() && older.any(waits_for) => Admission::Deferred,
            _ => Admission::Ready,
        };
        let need_bytes = self.bytes_max(runner).saturating_sub(in_use_bytes);
        Waiting {
            id: self.id,
            n_left: context.len() - n_known,
            need_bytes,
            admission,
            effective_priority: 0,
            n_served: 0,
        }
    }

    /// Returns whether it is about to compute these tokens.
    fn will_know(&self, runner: &ModelRunner, tokens: &[u32]) -> bool {
        let is_cached = !self.answer.request().ignore_cache;
        is_cached && self.n_computed(runner) < tokens.len() && self.answer.context().starts_with(tokens)
    }

    /// Opens its sequence, and returns how many tokens must be computed that were before it was preempted.
    ///
    /// # Errors
    /// No sequence is free.
    pub(super) fn open(&mut self, runner: &mut ModelRunner) -> Result<usize, EngineError> {
        let (seq, n_cached) = self.answer.open(runner)?;
        (self.seq, self.n_turn) = (Some(seq), 0);
        Ok(self.preempted.take().map_or(0, |way| way.n_computed.saturating_sub(n_cached)))
    }

    /// Gives its sequence back.
    pub(super) fn close(&mut self, runner: &mut ModelRunner) {
        self.forks.close(runner);
        if let Some(seq) = self.seq.take() {
            self.answer.closes(runner, seq);
            runner.close(seq);
        }
    }

    /// Gives its sequence back, to go on later. `n_ended` requests are over.
    pub(super) fn preempt(&mut self, runner: &mut ModelRunner, n_ended: u64, cause: Cause) {
        self.preempted = Some(Preempted { n_ended, cause, n_computed: self.n_computed(runner) });
        self.n_rows = 0;
        self.answer.drop_draft();
        self.close(runner);
    }

    /// Forgets what it drafted, and returns its answer if it may draft behind its rows of the step: where they come to the
    /// end of what is known.
    pub(super) fn draftable(&mut self, runner: &ModelRunner) -> Option<&mut RequestState> {
        self.answer.drop_draft();
        let is_due = self.n_rows > 0 && self.n_rows == self.n_left(runner);
        is_due.then_some(&mut self.answer)
    }

    /// Takes note of what was chosen for a step of its answer.
    pub(super) fn note(&mut self, choice: Choice) {
        match self.choices.iter_mut().find(|(other, _)| *other == choice) {
            Some((_, n)) => *n += 1,
            None => self.choices.push((choice, 1)),
        }
    }

    /// Returns what was chosen for its steps, and for how many each.
    pub(super) fn choices(&self) -> &[(Choice, u32)] {
        &self.choices
    }

    /// Returns how many tokens its context has.
    pub(super) fn n_context(&self) -> usize {
        self.answer.context().len()
    }

    /// Returns how many draft tokens it has in the step.
    pub(super) fn n_drafted(&self) -> usize {
        self.answer.n_drafted()
    }

    /// Returns how many draft tokens were accepted so far.
    pub(super) fn n_accepted(&self) -> usize {
        self.answer.draft_sources().total().accepted_tokens
    }

    /// Returns whether it writes its answer.
    pub(super) fn is_answering(&self) -> bool {
        self.answer.n_tokens() > 0
    }

    /// Makes room for its rows of the step; draft tokens are given up first.
    ///
    /// # Errors
    /// As [`ModelRunner::reserve`].
    pub(super) fn reserve(&mut self, runner: &mut ModelRunner) -> Result<(), EngineError> {
        let n_drafted = self.answer.n_drafted();
        match self.seq {
            Some(seq) if n_drafted > 0 => runner.reserve(seq, self.n_rows + n_drafted).or_else(|_| {
                self.answer.drop_draft();
                runner.reserve(seq, self.n_rows)
            }),
            Some(seq) if self.n_rows > 0 => runner.reserve(seq, self.n_rows),
            _ => Ok(()),
        }
    }

    /// Makes ready for the step: opens the sequences of other ways beside the draft tokens, where there is room still, and begins
    /// what can be computed of the next choice while the model runs.
    pub(super) fn prepare(&mut self, runner: &mut ModelRunner) {
        if self.n_rows > 0 && self.n_rows == self.n_left(runner) {
            self.answer.begin_choice();
        }
        if let (Some(seq), 1..) = (self.seq, self.answer.n_drafted()) {
            self.forks = self.answer.fork(runner, seq, self.n_rows);
        }
    }

    /// Returns its rows of the step.
    pub(super) fn segments(&self, runner: &ModelRunner) -> impl Iterator<Item = Segment<'_>> {
        let seq = self.seq.expect("only those that run have rows");
        let (rest, n_drafted) = (&self.answer.context_and_draft()[self.n_computed(runner)..], self.answer.n_drafted());
        let is_whole = self.n_rows == self.n_left(runner);
        let logits = self.answer.wanted(self.n_computed(runner), if is_whole { 1 + n_drafted } else { 0 });
        let chain = Segment { seq, tokens: &rest[..self.n_rows + n_drafted], logits };
        std::iter::once(chain).chain(self.forks.segments())
    }

    /// Lets what it learns by see states of its prompt: of its tokens from position `first` on.
    pub(super) fn read(&mut self, first: usize, hidden: &[f32]) {
        self.answer.read(first, hidden);
    }

    /// Tells who listens that its rows of the step are computed, behind `first` others.
    pub(super) fn tell_progress(&mut self, first: usize) {
        self.answer.tell_progress(first + self.n_rows);
    }

    /// Chooses its next tokens, and returns what stays of that was computed.
    ///
    /// # Errors
    /// As [`RequestState::choose`].
    pub(super) fn choose(
        &mut self,
        states: States<'_>,
        tell: &mut dyn FnMut(TokenEvent),
    ) -> Result<Accepted, EngineError> {
        self.answer.choose(states, tell)
    }

    /// Takes back what was computed and is not kept; nothing is if it chose none.
    ///
    /// # Errors
    /// As [`ModelRunner::rewind`], or what kept it from choosing.
    pub(super) fn settle(
        &mut self,
        runner: &mut ModelRunner,
        kept: Option<Result<Accepted, EngineError>>,
    ) -> Result<(), EngineError> {
        match (kept, &mut self.seq) {
            (Some(Ok(kept)), Some(seq)) => {
                self.forks.settle(runner, seq, kept)?;
                self.answer.pass_on(runner, *seq)
            }
            (kept, _) => {
                self.forks.close(runner);
                kept.map_or(Ok(()), |kept| kept.map(drop))
            }
        }
    }

    /// Lets others use what it has computed.
    pub(super) fn share(&self, runner: &mut ModelRunner) {
        if let Some(seq) = self.seq {
            runner.share(seq);
        }
    }
}
