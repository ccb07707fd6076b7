//! Continuous batching: many requests at once over one model.
//!
//! A [`Scheduler`] takes requests at any time and computes them in steps. A step is one forward pass with a row for
//! everybody who writes an answer and some of the prompts of those who do not yet. `policy` says who and how much;
//! this file does it. A request's tokens are those it would get alone: rows do not depend on what else is in a batch.
//!
//! The memory of the KV cache is shared. A request is taken in when all it may come to need is there. Where that guess
//! was too low (a request without `max_tokens` is guessed), somebody is preempted: its blocks go to the prefix cache,
//! it waits again with the tokens it has, and what was evicted meanwhile is computed again. Only a request that does
//! not fit alone fails.
//!
//! While several tenants have requests, each has its share of the places and of the rows: who has more gives a place up in
//! the same way, and steps are short. An answer that nobody reads waits for its reader.
//!
//! Requests that begin alike and come together are computed one after the other up to where they part: the later ones
//! wait until the first has computed what they share.

mod held;
mod options;
mod policy;
mod task;
mod tune;

use std::collections::VecDeque;

use crate::EngineError;
use crate::request::{GenerateRequest, GenerationSummary, TokenEvent};
use crate::runner::ModelRunner;
use crate::speculate::draft;
use crate::tuner::Tuner;
use held::Held;
pub use options::SchedulerOptions;
pub use policy::IDLE_PRIORITY;
use policy::{
    Admission, Capacity, Claim, Holder, Limits, Plan, Queued, Running, Shares, VirtualTokenCounters, Waiting,
};
use ruvllm_backend::{LogitRows, Segment, States};
use task::{Cause, Task};
use web_time::Instant;

/// Waiting requests that are looked at in a step.
const WINDOW: usize = 32;
/// By how much the prompts of a step are shorter when several tenants share it.
const SHORTER_PREFILL: usize = 4;

/// Names a request of a [`Scheduler`]; later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

/// Event of a request in a step.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an event is handed on once; a request has one large one, its last")]
pub enum Event {
    /// It got a token.
    Token(RequestId, TokenEvent),
    /// It is over: what came of it, or the error that ended it.
    Done(RequestId, Result<GenerationSummary, EngineError>),
}

impl Event {
    /// Returns whose token it is, if it is one.
    fn token_of(&self) -> Option<RequestId> {
        match self {
            Event::Token(id, _) => Some(*id),
            Event::Done(..) => None,
        }
    }
}

/// Counters of a scheduler since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerStats {
    /// Steps that computed something.
    pub n_steps: u64,
    /// Tokens that were computed, of prompts and answers.
    pub n_tokens: u64,
    /// Most requests that ran at once.
    pub n_running_max: usize,
    /// Number of times that a request was preempted for another one.
    pub n_preemptions: u64,
    /// Tokens among `n_tokens` that had been computed before their request was preempted.
    pub n_tokens_recomputed: u64,
}

/// Runs many requests at once.
///
/// ```
/// use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams};
///
/// // Any GGUF file; here a tiny one of the test data.
/// let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
/// let mut engine = Engine::load(&path, &LoadOptions { n_seq_max: 8, ..Default::default() }, &mut |_| {})?;
/// let mut scheduler = engine.scheduler(&Default::default())?;
/// for i in 0..20 {
///     let (prompt, sampling) = (vec![7, 8, 9, i], SamplingParams::greedy());
///     scheduler.submit(GenerateRequest { prompt, max_tokens: Some(5), sampling, ..Default::default() })?;
/// }
/// let answers = scheduler.run();
/// assert_eq!(answers.len(), 20);
/// assert!(answers.iter().all(|(_, answer)| answer.is_ok()));
/// assert_eq!(scheduler.stats().n_running_max, 8);
/// # Ok::<(), ruvllm_engine::EngineError>(())
/// ```
pub struct Scheduler<'a> {
    runner: Held<'a>,
    options: SchedulerOptions,
    /// Changes the options from step to step.
    tuner: Option<Box<dyn Tuner>>,
    /// By age, the oldest first.
    waiting: VecDeque<Task>,
    /// What was computed for whom.
    counters: VirtualTokenCounters,
    /// By age too; each has its sequence.
    running: Vec<Task>,
    next_id: u64,
    /// Requests that are over, whose memory is there for others.
    n_ended: u64,
    /// Requests whose tokens the last step computed.
    n_batch: usize,
    /// Requests that ran when the tuner last heard of memory.
    n_seen: usize,
    stats: SchedulerStats,
}

impl<'a> Scheduler<'a> {
    /// Makes a scheduler that runs as many requests at once as `runner` has sequences.
    ///
    /// # Errors
    /// An option is 0.
    pub fn new(runner: &'a mut ModelRunner, options: &SchedulerOptions) -> Result<Scheduler<'a>, EngineError> {
        Scheduler::of(Held::Borrowed(runner), options)
    }

    /// Makes a scheduler that owns the runner.
    ///
    /// # Errors
    /// As [`Scheduler::new`].
    pub(crate) fn owning(runner: ModelRunner, options: &SchedulerOptions) -> Result<Scheduler<'static>, EngineError> {
        Scheduler::of(Held::Owned(Box::new(runner)), options)
    }

    fn of(runner: Held<'a>, options: &SchedulerOptions) -> Result<Scheduler<'a>, EngineError> {
        options.validate()?;
        Ok(Scheduler {
            runner,
            options: options.clone(),
            tuner: None,
            waiting: VecDeque::new(),
            counters: VirtualTokenCounters::default(),
            running: Vec::new(),
            next_id: 0,
            n_ended: 0,
            n_batch: 0,
            n_seen: 0,
            stats: SchedulerStats::default(),
        })
    }

    /// Takes a request. Nothing is computed before the next [`Scheduler::step`].
    ///
    /// # Errors
    /// The prompt is empty or too long, or an option is out of range.
    pub fn submit(&mut self, mut request: GenerateRequest) -> Result<RequestId, EngineError> {
        let chosen = match (&mut self.tuner, request.kv) {
            (Some(tuner), None) => tuner.choose_kv(&request, &self.runner),
            _ => None,
        };
        request.kv = request.kv.or(chosen.map(|(policy, _)| policy));
        let mut task = Task::new(self.next_id, &self.runner, request)?;
        task.kv = chosen.map(|(_, choice)| choice);
        self.next_id += 1;
        let id = task.id;
        let others = self.running.iter().chain(&self.waiting);
        self.counters.join(task.tenant(), others.map(Task::tenant));
        self.waiting.push_back(task);
        Ok(RequestId(id))
    }

    /// Computes one step and returns what came of it. Requests that were cancelled before it, or whose deadline has
    /// passed, end with it.
    pub fn step(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        self.end(&mut events);
        let mut tuned = self.tune();
        self.plan();
        self.propose();
        self.reserve();
        self.count(&mut tuned);
        let of_kv = self.watch_kv();
        self.compute(&mut events);
        self.learn_kv(of_kv);
        self.learn(tuned, &events);
        self.end(&mut events);
        events
    }

    /// Steps until all requests are over, and returns what came of them by age.
    pub fn run(&mut self) -> Vec<(RequestId, Result<GenerationSummary, EngineError>)> {
        let mut done = Vec::new();
        while !self.is_idle() {
            done.extend(self.step().into_iter().filter_map(|event| match event {
                Event::Token(..) => None,
                Event::Done(id, result) => Some((id, result)),
            }));
        }
        done.sort_unstable_by_key(|&(id, _)| id);
        done
    }

    /// Returns whether no request runs or waits.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Returns how many requests wait.
    pub fn n_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether the last step computed nothing, because those that run wait for their readers.
    pub(crate) fn is_stalled(&self) -> bool {
        self.n_batch == 0 && !self.running.is_empty() && self.running.iter().all(Task::is_unread)
    }

    /// Returns how many requests run.
    pub fn n_running(&self) -> usize {
        self.running.len()
    }

    /// Returns how many requests' tokens the last step computed together.
    pub fn n_batch(&self) -> usize {
        self.n_batch
    }

    /// Returns what it did.
    pub fn stats(&self) -> SchedulerStats {
        self.stats
    }

    /// Returns the model's runner, to look at.
    pub fn runner(&self) -> &ModelRunner {
        &self.runner
    }

    /// Returns the model's runner, for work between steps.
    pub(crate) fn runner_mut(&mut self) -> &mut ModelRunner {
        &mut self.runner
    }

    /// Lets go of requests that are over, failed or cancelled.
    fn end(&mut self, events: &mut Vec<Event>) {
        let Scheduler { runner, running, waiting, n_ended, tuner, .. } = self;
        let mut end = |task: &mut Task| {
            let is_over = task.is_over();
            if is_over {
                task.close(runner);
                *n_ended += 1;
                let mut result = task.take_result();
                if let (Ok(summary), Some(tuner)) = (&mut result, &*tuner) {
                    summary.choices = tuner.describe(task.choices(), task.kv).into_boxed_str();
                }
                events.push(Event::Done(RequestId(task.id), result));
            }
            !is_over
        };
        running.retain_mut(&mut end);
        waiting.retain_mut(&mut end);
    }

    /// Takes requests in and says how many tokens of whom are to be computed.
    fn plan(&mut self) {
        self.preempt_idle();
        let (mut plan, claim) = self.look();
        if let Some(id) = claim {
            let at = self.running.iter().position(|task| task.id == id).expect("it is one of those that run");
            self.preempt(at, Cause::Share);
            plan = self.look().0;
        }
        plan.admit.iter().for_each(|&id| self.admit(id));
        self.running.iter_mut().for_each(|task| task.n_rows = 0);
        for &(id, n) in &plan.rows {
            if let Ok(i) = self.running.binary_search_by_key(&id, |task| task.id) {
                let task = &mut self.running[i];
                // One that could not be opened is over with this step.
                task.n_rows = if task.error.is_some() { 0 } else { n.min(task.n_left(&self.runner)) };
            }
        }
        self.stats.n_running_max = self.stats.n_running_max.max(self.running.len());
    }

    /// Returns whether a request is there that is not of [`IDLE_PRIORITY`].
    fn has_urgent(&self) -> bool {
        self.running.iter().chain(&self.waiting).any(|task| !task.is_idle())
    }

    /// Has the requests that run while there are no others give way to one that came.
    fn preempt_idle(&mut self) {
        if !self.has_urgent() {
            return;
        }
        while let Some(at) = self.running.iter().position(Task::is_idle) {
            self.preempt(at, Cause::Share);
        }
    }

    /// Returns what the step is to do, and who has to give its place up for somebody who finds none.
    fn look(&self) -> (Plan, Option<u64>) {
        let runner = &*self.runner;
        let has_urgent = self.has_urgent();
        let waiting: Vec<&Task> = self.waiting.iter().filter(|task| !(has_urgent && task.is_idle())).collect();
        let (now, all) = (Instant::now(), || self.running.iter().chain(waiting.iter().copied()));
        let highest = all().map(Task::priority).max().unwrap_or(0);
        let priority_of = |task: &Task| policy::effective_priority(task.priority(), task.waited(now), highest);
        let served = |task: &Task| self.counters.served(task.tenant());
        let of_running = |task: &Task| task.as_running(runner, priority_of(task), served(task));
        let running: Vec<Running> = self.running.iter().map(of_running).collect();
        let capacity = match waiting.is_empty() {
            true => Capacity { free_bytes: 0, free_seqs: 0 },
            false => Capacity { free_bytes: runner.free_kv_bytes(), free_seqs: runner.n_free() },
        };
        let tenants = |tasks: &mut dyn Iterator<Item = &Task>| tasks.map(Task::tenant).collect::<Vec<_>>().into_iter();
        let (of_those, of_these) = (tenants(&mut self.running.iter()), tenants(&mut waiting.iter().copied()));
        let shares = Shares::new(self.running.len() + capacity.free_seqs, of_those, of_these);
        // Those who cannot be taken in need not be looked at, unless somebody may make room for them.
        let may_give = shares.n_tenants() > 1 || self.running.iter().any(Task::is_unread);
        let queue: Vec<Queued> = match capacity.free_seqs {
            0 if !may_give => Vec::new(),
            _ => waiting.iter().map(|task| task.as_queued(priority_of(task))).collect(),
        };
        let order = policy::order(&queue, &self.counters, &shares);
        let order: Vec<&Task> = order.into_iter().map(|i| waiting[i]).collect();
        let before = |i: usize| self.running.iter().chain(order[..i].iter().copied());
        let candidates = order.iter().take(WINDOW).enumerate().map(|(i, task)| Waiting {
            effective_priority: priority_of(task),
            n_served: served(task),
            ..task.as_waiting(runner, before(i), self.n_ended, running.is_empty())
        });
        let plan = policy::plan(self.limits(&shares), capacity, &running, candidates.clone());
        let mut left = candidates.filter(|task| may_give && !plan.admit.contains(&task.id));
        let first = left.find(|task| task.admission == Admission::Ready).map(|first| first.id);
        let claim = first.and_then(|id| order.iter().find(|task| task.id == id)).and_then(|task| {
            let holders: Vec<Holder> = self.running.iter().map(Task::as_holder).collect();
            policy::holder_to_preempt(
                &holders,
                &shares,
                Claim { tenant: task.tenant(), effective_priority: priority_of(task) },
            )
        });
        (plan, claim)
    }

    /// Returns what a step may hold. A step that several tenants share is short: nobody waits long for the next one.
    fn limits(&self, shares: &Shares) -> Limits {
        let SchedulerOptions { step_tokens, prefill_tokens, .. } = self.options;
        match shares.n_tenants() {
            0 | 1 => Limits { step_tokens, prefill_tokens },
            _ => {
                let prefill_tokens = prefill_tokens.div_ceil(SHORTER_PREFILL);
                Limits { step_tokens: step_tokens.min(prefill_tokens.max(self.running.len())), prefill_tokens }
            }
        }
    }

    /// Lets those draft whose context the step completes: draft tokens fill what weights that are read once serve at no great
    /// cost.
    fn propose(&mut self) {
        let n_draft_max = self.options.n_draft_max(self.running.len());
        let due = self.running.iter_mut().filter_map(|task| task.draftable(&self.runner));
        let mut due: Vec<_> = due.map(|answer| (answer, n_draft_max)).collect();
        draft::propose(&mut self.runner, &mut due);
    }

    /// Opens the sequence of a waiting request.
    fn admit(&mut self, id: u64) {
        let at = self.waiting.iter().position(|task| task.id == id).expect("the policy names who waits");
        let mut task = self.waiting.remove(at).expect("it was found there");
        match task.open(&mut self.runner) {
            Ok(n_again) => self.stats.n_tokens_recomputed += n_again as u64,
            Err(error) => task.error = Some(error),
        }
        let place = self.running.partition_point(|other| other.id < id);
        self.running.insert(place, task);
    }

    /// Makes room for the rows of the step. Where there is none, somebody is preempted.
    fn reserve(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            let task = &mut self.running[i];
            let Err(error) = task.reserve(&mut self.runner) else {
                i += 1;
                continue;
            };
            // A tenant's quota is filled by its own requests only.
            let tenant = error.is_quota().then(|| task.tenant());
            let is_rival = |other: &Task| tenant.is_none_or(|tenant| other.tenant() == tenant);
            let rivals = self.running.iter().filter(|other| is_rival(other));
            let victim = policy::victim(rivals.clone().map(|other| (other.priority(), other.id)));
            let victim = self.running.iter().position(|other| Some(other.id) == victim).expect("it is one itself");
            if rivals.count() == 1 || !error.is_kv_full() {
                let task = &mut self.running[i];
                (task.n_rows, task.error) = (0, Some(error));
                i += 1;
            } else {
                let cause = if tenant.is_some() { Cause::Quota } else { Cause::Memory };
                self.preempt(victim, cause);
                i -= usize::from(victim < i);
            }
        }
        self.running.iter_mut().for_each(|task| task.prepare(&mut self.runner));
    }

    /// Lends pages of the memory of the KV cache beside what those that run may come to need, and returns whether they
    /// were lent.
    pub(crate) fn lend(&mut self, n_pages: usize) -> bool {
        let growth = |task: &Task| task.as_running(&self.runner, 0, 0).growth_bytes;
        let keep_bytes = self.running.iter().map(growth).sum();
        self.runner.lend(n_pages, keep_bytes)
    }

    /// Has the youngest of several that run give its place up, and returns whether there was one.
    pub(crate) fn give_place(&mut self) -> bool {
        let has_others = self.running.len() > 1;
        if has_others {
            self.preempt(self.running.len() - 1, Cause::Share);
        }
        has_others
    }

    /// Sends a running request back to wait.
    fn preempt(&mut self, i: usize, cause: Cause) {
        let mut task = self.running.remove(i);
        task.preempt(&mut self.runner, self.n_ended, cause);
        let place = self.waiting.partition_point(|other| other.id < task.id);
        self.waiting.insert(place, task);
        self.stats.n_preemptions += 1;
    }

    /// Runs the rows of the step.
    fn compute(&mut self, events: &mut Vec<Event>) {
        let Scheduler { runner, running, stats, counters, n_batch, .. } = self;
        let mut tasks: Vec<&mut Task> = running.iter_mut().filter(|task| task.n_rows > 0).collect();
        *n_batch = tasks.len();
        if tasks.is_empty() {
            return;
        }
        stats.n_steps += 1;
        stats.n_tokens += tasks.iter().map(|task| task.n_rows as u64).sum::<u64>();
        for task in &mut tasks {
            counters.charge(task.tenant(), task.n_rows as u64);
            task.n_turn += task.n_rows;
        }
        if compute(runner, &mut tasks, events).is_err() {
            // Somebody's tokens cannot be computed; alone it shows whose.
            for task in tasks {
                let result = compute(runner, &mut [&mut *task], events);
                task.error = result.err();
            }
        }
    }
}

impl Drop for Scheduler<'_> {
    fn drop(&mut self) {
        self.running.iter_mut().for_each(|task| task.close(&mut self.runner));
    }
}

/// Runs one forward pass, and chooses the tokens of those whose context is computed then. An error computes nothing.
fn compute(runner: &mut ModelRunner, tasks: &mut [&mut Task], events: &mut Vec<Event>) -> Result<(), EngineError> {
    let mut segments: Vec<Segment<'_>> = Vec::with_capacity(tasks.len());
    let mut wanted = Vec::with_capacity(tasks.len());
    for task in tasks.iter() {
        let first = segments.len();
        segments.extend(task.segments(runner));
        let counts = |count: fn(LogitRows, usize) -> usize| {
            segments[first..].iter().map(|segment| count(segment.logits, segment.tokens.len())).sum::<usize>()
        };
        wanted.push((counts(LogitRows::count), counts(LogitRows::n_states), runner.n_tokens(segments[first].seq)));
    }
    let prompts: Vec<bool> = tasks.iter().map(|task| task.n_rows > 1 && !task.is_answering()).collect();
    let (n_vocab, n_embd) = (runner.info().n_vocab, runner.info().n_embd);
    let States { mut logits, mut approx, rows: mut all } = runner.forward_states(&segments)?;
    let mut kept = Vec::with_capacity(tasks.len());
    for (task, &(n, n_states, first)) in tasks.iter_mut().zip(&wanted) {
        let (rows, approx_rows, shown, states);
        (rows, logits) = logits.split_at_mut(n * n_vocab);
        (approx_rows, approx) = approx.split_at((n * n_vocab).min(approx.len()));
        // Those without logits come first: they are of a prompt.
        (shown, all) = all.split_at(n_states - n, n_embd);
        (states, all) = all.split_at(n, n_embd);
        task.read(first, shown.hidden);
        task.tell_progress(first);
        let states = States { logits: rows, approx: approx_rows, rows: states };
        let id = RequestId(task.id);
        kept.push(match n {
            0 => None,
            _ => Some(task.choose(states, &mut |token| events.push(Event::Token(id, token)))),
        });
    }
    for (task, kept) in tasks.iter_mut().zip(kept) {
        task.error = task.settle(runner, kept).err();
    }
    // What is known of a prompt is there for those that wait for it.
    let computed = tasks.iter().zip(prompts).filter(|(_, is_prompt)| *is_prompt);
    computed.for_each(|(task, _)| task.share(runner));
    Ok(())
}
