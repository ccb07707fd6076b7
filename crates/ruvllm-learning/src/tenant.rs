//! A tenant: what its requests taught, and what waits to be learned.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ruvllm_engine::{EngineError, ErrorKind, LogitsProcessor};
use ruvllm_sona::bank::{ReasoningBank, Step};
use ruvllm_sona::corrections::Correctness;
use ruvllm_sona::history::{Span, TrainingItem};
use ruvllm_sona::{Learned, Names, RequestTrace, now_ms};

use crate::learning::Shared;
use crate::log::TenantState;
use crate::logits_hook::RequestLearner;
use crate::maintenance::{MaintenanceOutcome, holdout, is_holdout};
use crate::reading::Passes;

/// How often the thread that ingests looks whether nobody wants to go before it.
const GIVE_WAY: Duration = Duration::from_micros(200);

/// The longest name.
const NAME_MAX: usize = 64;

/// A tenant of a model: what its requests teach is for its own requests only.
pub struct TenantLearning {
    name: String,
    /// What keeps what it knows. Held while something is ingested or taken back; requests never wait for it. It goes before what is
    /// shared: the folder is free when nobody has its store.
    state: Mutex<TenantState>,
    /// Its patterns, once somebody has asked for them.
    bank: Mutex<Option<Arc<ReasoningBank>>>,
    pub(crate) shared: Arc<Shared>,
    view: Mutex<View>,
    /// Nothing waits to be ingested any more.
    is_settled: Condvar,
    /// How many wait for that, whom the thread that ingests lets go before it.
    n_wanting: AtomicUsize,
    /// Whether there is a log.
    pub(crate) is_kept: bool,
}

/// Task of a request, as learning sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// The question, for the names in it; without one no correction applies.
    pub question: Option<String>,
    /// Steps before this answer: calls of tools, and what came of them.
    pub steps: Vec<Step>,
    /// Patterns that stand in the prompt.
    pub patterns: Vec<u64>,
}

impl Task {
    /// A question, about which nothing was done yet.
    pub fn of(question: &str) -> Task {
        Task { question: Some(question.to_owned()), ..Task::default() }
    }
}

/// An answer that was judged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FeedbackOutcome {
    /// The item of the log, by which it can be undone. None where nothing can be learned of it any more, because it was given with what
    /// was undone since.
    pub item: Option<u64>,
    /// Task of the request.
    pub task: Task,
    /// The answer's tokens.
    pub answer: Vec<u32>,
}

/// What requests see.
struct View {
    learned: Arc<Learned>,
    /// The generation that this came from.
    generation: u64,
    /// What waits to be ingested, the oldest first; and whether a thread is at it.
    queue: VecDeque<QueuedItem>,
    is_draining: bool,
    /// Answers that wait to be judged, the oldest first.
    answers: VecDeque<PendingAnswer>,
    /// What could not be ingested since somebody asked.
    failure: Option<EngineError>,
    /// What the gate said last.
    evaluation: Option<Evaluation>,
}

/// A training item that waits to be ingested, and the channel of the caller that waits for it.
struct QueuedItem {
    item: TrainingItem,
    reply: Option<SyncSender<Result<Option<u64>, EngineError>>>,
}

/// An answer that waits to be judged.
pub(crate) struct PendingAnswer {
    pub id: String,
    pub task: Task,
    /// Span that the trace observed: prompt and answer.
    pub span: Span,
    pub trace: RequestTrace,
}

/// Verdict of the gate on what was learned, at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// When, in Unix milliseconds.
    pub unix_ms: u64,
    /// The outcome.
    pub outcome: MaintenanceOutcome,
}

/// Numbers of what a tenant has learned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantStats {
    /// The generation that what is known came from; 0 is the model alone.
    pub generation: u64,
    /// The last item of the log.
    pub version: u64,
    /// Tokens that were learned from.
    pub n_tokens: u64,
    /// Entries of the datastore, their bytes, and how many were evicted.
    pub n_entries: usize,
    /// Bytes of those entries.
    pub n_bytes: usize,
    /// Entries that were evicted for others.
    pub n_evicted: u64,
    /// Corrections in effect.
    pub n_corrections: usize,
    /// Steps that the MicroLoRA took.
    pub n_micro_steps: u64,
    /// Requests and judgements that wait to be ingested.
    pub n_queued: usize,
    /// Answers that wait to be judged.
    pub n_waiting: usize,
    /// Weights of the features of λ.
    pub interpolation: Vec<f32>,
}

/// Checks that a tenant can be called so.
///
/// # Errors
/// [`ErrorKind::Options`] with what a name can be.
pub fn check_tenant(name: &str) -> Result<(), EngineError> {
    let is_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME_MAX || name.starts_with('.') || !name.chars().all(is_char) {
        let line = format!(
            "'{}' is no name of a tenant; use up to {NAME_MAX} letters, digits, '-', '_' and '.'",
            name.escape_debug()
        );
        return Err(EngineError::new(ErrorKind::Options, line));
    }
    Ok(())
}

impl TenantLearning {
    pub(crate) fn open(
        name: &str,
        shared: Arc<Shared>,
        passes: &mut dyn Passes,
    ) -> Result<TenantLearning, EngineError> {
        check_tenant(name)?;
        let state = TenantState::open(name, &shared, passes)?;
        TenantLearning::new(name, shared, state)
    }

    /// Makes one that knows nothing and is kept nowhere.
    pub(crate) fn transient(shared: Arc<Shared>) -> Result<TenantLearning, EngineError> {
        let state = TenantState::Transient(0);
        TenantLearning::new("transient", shared, state)
    }

    fn new(name: &str, shared: Arc<Shared>, state: TenantState) -> Result<TenantLearning, EngineError> {
        let (learned, generation) = match state.known() {
            Some(known) => known,
            None => (Arc::new(shared.empty()?), 0),
        };
        let view = View {
            learned,
            generation,
            queue: VecDeque::new(),
            is_draining: false,
            answers: VecDeque::new(),
            failure: None,
            evaluation: None,
        };
        let is_kept = matches!(state, TenantState::Kept(..));
        let (view, state) = (Mutex::new(view), Mutex::new(state));
        let (is_settled, n_wanting, bank) = (Condvar::new(), AtomicUsize::new(0), Mutex::default());
        Ok(TenantLearning { name: name.to_owned(), shared, view, is_settled, state, n_wanting, is_kept, bank })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bank(&self) -> MutexGuard<'_, Option<Arc<ReasoningBank>>> {
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody changes what is kept. A mind whose thread broke says so itself.
    pub(crate) fn lock_state(&self) -> MutexGuard<'_, TenantState> {
        self.n_wanting.fetch_add(1, Ordering::AcqRel);
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_wanting.fetch_sub(1, Ordering::AcqRel);
        state
    }

    /// The same for the thread that ingests: while there is always more to ingest, it would always have it.
    fn lock_state_last(&self) -> MutexGuard<'_, TenantState> {
        while self.n_wanting.load(Ordering::Acquire) > 0 {
            std::thread::sleep(GIVE_WAY);
        }
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets requests see what nobody keeps.
    pub(crate) fn set(&self, learned: Arc<Learned>) {
        self.view().learned = learned;
    }

    /// Lets requests see what is known now.
    pub(crate) fn show(&self, state: &TenantState) {
        if let Some((learned, generation)) = state.known() {
            let mut view = self.view();
            let before = std::mem::replace(&mut view.learned, learned);
            view.generation = generation;
            drop(view);
            // Giving memory back takes a while too.
            drop(before);
        }
    }

    /// Returns what it has learned so far. It stays as it is; what is learned later is another one.
    pub fn learned(&self) -> Arc<Learned> {
        Arc::clone(&self.view().learned)
    }

    /// Returns the generation that what is known came from; 0 is the model alone.
    pub fn generation(&self) -> u64 {
        self.view().generation
    }

    /// Makes what a request learns by. `id` names the answer for [`TenantLearning::judge`]; without one it counts as unjudged when it ends.
    pub fn logits_processor(self: &Arc<Self>, task: Task, id: Option<&str>) -> Arc<dyn LogitsProcessor> {
        Arc::new(RequestLearner { tenant: Arc::clone(self), task, id: id.map(str::to_owned) })
    }

    /// Takes over the observations of a request: of its prompt, and of its answer, which waits for feedback if it has an id.
    pub(crate) fn end(self: &Arc<Self>, prompt: Observation, answer: Observation, answered: Option<(String, Task)>) {
        let unjudged = self.shared.options.unjudged;
        let learn = |Observation { trace, span }: Observation, quality: f32| {
            let is_empty = trace.is_empty() || quality <= 0.0;
            let item = TrainingItem::Read { trace: Box::new(trace), span, quality };
            (!is_empty).then_some(QueuedItem { item, reply: None })
        };
        let mut items = Vec::new();
        match !self.shared.controls.is_empty() && is_holdout(&prompt.span) {
            true => items.push(QueuedItem { item: TrainingItem::Holdout { span: holdout(prompt.span) }, reply: None }),
            false => items.extend(learn(prompt, 1.0)),
        }
        match answered.filter(|_| !answer.trace.is_empty()) {
            Some((id, task)) => {
                let Observation { trace, span } = answer;
                let mut view = self.view();
                view.answers.retain(|other| other.id != id);
                view.answers.push_back(PendingAnswer { id, task, span, trace });
                while view.answers.len() > self.shared.options.n_waiting_max {
                    let old = view.answers.pop_front();
                    items.extend(old.and_then(|old| learn(Observation { trace: old.trace, span: old.span }, unjudged)));
                }
            }
            None => items.extend(learn(answer, unjudged)),
        }
        self.push(items);
    }

    /// Queues items for a thread that takes them in.
    fn push(self: &Arc<Self>, items: Vec<QueuedItem>) {
        if self.enqueue(items) {
            let tenant = Arc::clone(self);
            let thread = std::thread::Builder::new().name("ruvllm-learn".to_owned());
            // A system that starts no thread lets the caller wait.
            if thread.spawn(move || tenant.drain()).is_err() {
                self.drain();
            }
        }
    }

    /// Queues a training item, and returns when it is ingested: the item's id, if there was something to learn.
    fn push_and_wait(&self, item: TrainingItem) -> Result<Option<u64>, EngineError> {
        let (reply, taken) = sync_channel(1);
        if self.enqueue(vec![QueuedItem { item, reply: Some(reply) }]) {
            self.drain();
        }
        taken.recv().unwrap_or_else(|_| {
            Err(EngineError::new(ErrorKind::Learning, "it was lost with what was being learned; say it again"))
        })
    }

    /// Takes the quality of an answer, 0 to 1. It is learned by as much; one of 0 is remembered as wrong. Returns when that is taken
    /// in.
    ///
    /// # Errors
    /// No answer of this name waits, the quality is out of range, or it cannot be written.
    pub fn judge(&self, id: &str, quality: f32) -> Result<FeedbackOutcome, EngineError> {
        if !(0.0..=1.0).contains(&quality) {
            return Err(EngineError::new(ErrorKind::Options, format!("a quality of {quality}; choose 0 to 1")));
        }
        let PendingAnswer { task, trace, span, .. } = self.take_answer(id)?;
        let (answer, trace) = (span.tokens[span.n_read..].to_vec(), Box::new(trace));
        let names = || Names::of(task.question.as_deref().unwrap_or_default());
        let item = self.push_and_wait(match quality {
            0.0 => TrainingItem::Rejected { names: names(), trace },
            quality => TrainingItem::Read { trace, span, quality },
        })?;
        Ok(FeedbackOutcome { item, task, answer })
    }

    /// Takes an answer that waits to be judged out, to be corrected by [`add_correction`](crate::add_correction): returns its
    /// prompt and what was asked. The answer itself is forgotten.
    ///
    /// # Errors
    /// No answer of this name waits.
    pub fn correct(&self, id: &str) -> Result<(Vec<u32>, Task), EngineError> {
        self.take_answer(id).map(|PendingAnswer { mut span, task, .. }| {
            span.tokens.truncate(span.n_read);
            (span.tokens, task)
        })
    }

    fn take_answer(&self, id: &str) -> Result<PendingAnswer, EngineError> {
        let mut view = self.view();
        let at = view.answers.iter().position(|answer| answer.id == id);
        at.and_then(|at| view.answers.remove(at)).ok_or_else(|| {
            let n = view.answers.len();
            let line = format!("no answer '{}' waits to be judged; the last {n} do", id.escape_debug());
            EngineError::new(ErrorKind::Learning, line)
        })
    }

    /// Adds a correction, an answer to a question: `hidden` are the states that its tokens follow, `[n, n_embd]`
    /// ([`answer_states`](crate::answer_states)). Returns when it is ingested: the item's id.
    ///
    /// # Errors
    /// No tokens, more than 1,024, as many corrections as there may be; it cannot be written.
    ///
    /// # Panics
    /// If there are more or fewer states than tokens, or they have another width.
    pub fn add_correction(
        &self,
        question: &str,
        hidden: &[f32],
        answer: &[u32],
        verdict: Correctness,
    ) -> Result<Option<u64>, EngineError> {
        let (names, hidden, answer) = (Names::of(question), hidden.to_vec(), answer.to_vec());
        self.push_and_wait(TrainingItem::Corrected { names, hidden, answer, verdict })
    }

    /// Forgets the answers that wait to be judged.
    pub(crate) fn drop_answers(&self) {
        self.view().answers.clear();
    }

    /// Queues items, and returns whether somebody has to [`TenantLearning::drain`].
    fn enqueue(&self, items: Vec<QueuedItem>) -> bool {
        let mut view = self.view();
        view.queue.extend(items);
        !view.queue.is_empty() && !std::mem::replace(&mut view.is_draining, true)
    }

    /// Ingests what waits, in order, on a copy that nobody sees before it is done.
    fn drain(&self) {
        let _guard = DrainGuard(self);
        loop {
            let mut state = self.lock_state_last();
            let (known, items) = {
                let mut view = self.view();
                if view.queue.is_empty() {
                    view.is_draining = false;
                    return;
                }
                (Arc::clone(&view.learned), std::mem::take(&mut view.queue))
            };
            let (mut learned, mut replies) = (known, Vec::new());
            for QueuedItem { item, reply } in items {
                let taken = state.ingest(&mut learned, item);
                match reply {
                    Some(reply) => replies.push((reply, taken)),
                    None => taken.err().into_iter().for_each(|error| self.view().failure = Some(error)),
                }
            }
            match state.known() {
                Some(_) => self.show(&state),
                None => self.view().learned = learned,
            }
            // The waiting caller may be gone.
            replies.into_iter().for_each(|(reply, taken)| drop(reply.send(taken)));
        }
    }

    /// Waits until everything that was learned so far is ingested.
    pub fn settle(&self) {
        let mut view = self.view();
        while view.is_draining {
            view = self.is_settled.wait(view).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns what the gate said last, since the tenant was opened.
    pub fn last_evaluation(&self) -> Option<Evaluation> {
        self.view().evaluation.clone()
    }

    pub(crate) fn set_evaluation(&self, outcome: MaintenanceOutcome) {
        self.view().evaluation = Some(Evaluation { unix_ms: now_ms(), outcome });
    }

    /// Returns what could not be ingested since the last call, if something could not.
    pub(crate) fn take_failure(&self) -> Result<(), EngineError> {
        self.view().failure.take().map_or(Ok(()), Err)
    }

    /// Returns what it has learned, in numbers.
    pub fn stats(&self) -> TenantStats {
        let view = self.view();
        let learned = &view.learned;
        let datastore = learned.datastore();
        TenantStats {
            generation: view.generation,
            version: learned.version(),
            n_tokens: learned.n_tokens(),
            n_entries: datastore.len(),
            n_bytes: datastore.n_bytes(),
            n_evicted: datastore.n_evicted(),
            n_corrections: learned.corrections().len(),
            n_micro_steps: learned.micro().map_or(0, |micro| micro.n_updates()),
            n_queued: view.queue.len(),
            n_waiting: view.answers.len(),
            interpolation: learned.interpolation().weights().to_vec(),
        }
    }
}

/// Ends draining on every path: waiters are woken, a panic too.
struct DrainGuard<'a>(&'a TenantLearning);

impl Drop for DrainGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What was being ingested is lost; callers that wait for it end.
            self.0.view().is_draining = false;
        }
        self.0.is_settled.notify_all();
    }
}

/// A trace of a request with the span that it observed.
pub(crate) struct Observation {
    pub trace: RequestTrace,
    pub span: Span,
}

impl std::fmt::Debug for TenantLearning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TenantLearning").field("name", &self.name).field("stats", &self.stats()).finish()
    }
}
