//! A tenant: what its requests taught, what waits to be learned, and who is told of it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ruvllm_engine::{EngineError, ErrorKind, LogitsProcessor};
use ruvllm_sona::bank::{ReasoningBank, Step};
use ruvllm_sona::episodes::Verdict;
use ruvllm_sona::history::{Passage, Taught};
use ruvllm_sona::{Learned, Names, Notes};

use crate::learning::Shared;
use crate::log::Mind;
use crate::logits_hook::Asking;
use crate::reading::Passes;
use crate::upkeep::{Upkept, held_back, is_held_back};

/// How often the thread that takes in looks whether nobody wants to go before it.
const GIVE_WAY: Duration = Duration::from_micros(200);

/// The longest name.
const NAME_MAX: usize = 64;

/// Somebody whose requests teach a model: what they taught is for their own requests only.
pub struct Tenant {
    name: String,
    /// What keeps what it knows. Held while something is taken in or taken back; requests never wait for it. It goes before what is
    /// shared: the folder is free when nobody has its store.
    mind: Mutex<Mind>,
    /// Its patterns, once somebody has asked for them.
    bank: Mutex<Option<Arc<ReasoningBank>>>,
    pub(crate) shared: Arc<Shared>,
    state: Mutex<State>,
    /// Nothing waits to be taken in any more.
    is_settled: Condvar,
    /// How many wait for that, whom the thread that takes in lets go before it.
    n_wanting: AtomicUsize,
    /// Whether there is a log.
    pub(crate) is_kept: bool,
}

/// Task of a request, for those who learn from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Task {
    /// The question, for the names in it; without one no correction is said again.
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
pub struct Outcome {
    /// The item of the log, by which it can be undone. None where nothing can be learned of it any more, because it was given with what
    /// was undone since.
    pub item: Option<u64>,
    /// Task of the request.
    pub task: Task,
    /// The answer's tokens.
    pub answer: Vec<u32>,
}

/// What requests see.
struct State {
    learned: Arc<Learned>,
    /// The generation that this came from.
    generation: u64,
    /// What waits to be taken in, the oldest first; and whether a thread is at it.
    queue: VecDeque<Waiting>,
    is_working: bool,
    /// Answers that wait to be judged, the oldest first.
    answers: VecDeque<Answered>,
    /// What could not be taken in since somebody asked.
    failure: Option<EngineError>,
    /// What the gate said last.
    judged: Option<Judged>,
}

/// Something that waits to be taken in, and who waits for it.
struct Waiting {
    taught: Taught,
    reply: Option<SyncSender<Result<Option<u64>, EngineError>>>,
}

/// An answer that waits to be judged.
pub(crate) struct Answered {
    pub id: String,
    pub task: Task,
    /// Passage that the notes observed: prompt and answer.
    pub passage: Passage,
    pub notes: Notes,
}

/// Verdict of the gate on what was learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// When, in Unix milliseconds.
    pub unix_ms: u64,
    /// The outcome.
    pub upkept: Upkept,
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
    /// Entries of the memory, their bytes, and how many were evicted.
    pub n_entries: usize,
    /// Bytes of those entries.
    pub n_bytes: usize,
    /// Entries that were evicted for others.
    pub n_evicted: u64,
    /// Corrections that are remembered.
    pub n_episodes: usize,
    /// Steps that the MicroLoRA took.
    pub n_micro_steps: u64,
    /// Requests and judgements that wait to be taken in.
    pub n_queued: usize,
    /// Answers that wait to be judged.
    pub n_waiting: usize,
    /// Weights of the gate's features.
    pub gate: Vec<f32>,
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

impl Tenant {
    pub(crate) fn open(name: &str, shared: Arc<Shared>, passes: &mut dyn Passes) -> Result<Tenant, EngineError> {
        check_tenant(name)?;
        let mind = Mind::open(name, &shared, passes)?;
        Tenant::new(name, shared, mind)
    }

    /// Makes one that knows nothing and is kept nowhere.
    pub(crate) fn transient(shared: Arc<Shared>) -> Result<Tenant, EngineError> {
        let mind = Mind::Transient(0);
        Tenant::new("transient", shared, mind)
    }

    fn new(name: &str, shared: Arc<Shared>, mind: Mind) -> Result<Tenant, EngineError> {
        let (learned, generation) = match mind.known() {
            Some(known) => known,
            None => (Arc::new(shared.empty()?), 0),
        };
        let state = State {
            learned,
            generation,
            queue: VecDeque::new(),
            is_working: false,
            answers: VecDeque::new(),
            failure: None,
            judged: None,
        };
        let is_kept = matches!(mind, Mind::Kept(..));
        let (state, mind) = (Mutex::new(state), Mutex::new(mind));
        let (is_settled, n_wanting, bank) = (Condvar::new(), AtomicUsize::new(0), Mutex::default());
        Ok(Tenant { name: name.to_owned(), shared, state, is_settled, mind, n_wanting, is_kept, bank })
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn bank(&self) -> MutexGuard<'_, Option<Arc<ReasoningBank>>> {
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody changes what is kept. A mind whose thread broke says so itself.
    pub(crate) fn mind(&self) -> MutexGuard<'_, Mind> {
        self.n_wanting.fetch_add(1, Ordering::AcqRel);
        let mind = self.mind.lock().unwrap_or_else(PoisonError::into_inner);
        self.n_wanting.fetch_sub(1, Ordering::AcqRel);
        mind
    }

    /// The same for the thread that takes in: while there is always more to take in, it would always have it.
    fn mind_behind_others(&self) -> MutexGuard<'_, Mind> {
        while self.n_wanting.load(Ordering::Acquire) > 0 {
            std::thread::sleep(GIVE_WAY);
        }
        self.mind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets requests see what nobody keeps.
    pub(crate) fn set(&self, learned: Arc<Learned>) {
        self.state().learned = learned;
    }

    /// Lets requests see what is known now.
    pub(crate) fn show(&self, mind: &Mind) {
        if let Some((learned, generation)) = mind.known() {
            let mut state = self.state();
            let before = std::mem::replace(&mut state.learned, learned);
            state.generation = generation;
            drop(state);
            // Giving memory back takes a while too.
            drop(before);
        }
    }

    /// Returns what it has learned so far. It stays as it is; what is learned later is another one.
    pub fn learned(&self) -> Arc<Learned> {
        Arc::clone(&self.state().learned)
    }

    /// Returns the generation that what is known came from; 0 is the model alone.
    pub fn generation(&self) -> u64 {
        self.state().generation
    }

    /// Makes what a request learns by. `id` names the answer for [`Tenant::judge`]; without one it counts as unjudged when it ends.
    pub fn logits_processor(self: &Arc<Self>, task: Task, id: Option<&str>) -> Arc<dyn LogitsProcessor> {
        Arc::new(Asking { tenant: Arc::clone(self), task, id: id.map(str::to_owned) })
    }

    /// Takes over what a request noted: of its prompt, and of its answer if somebody can judge it. With each go the tokens that
    /// were heard.
    pub(crate) fn end(self: &Arc<Self>, prompt: Heard, answer: Heard, answered: Option<(String, Task)>) {
        let unjudged = self.shared.options.unjudged;
        let learn = |(notes, passage): Heard, quality: f32| {
            let is_empty = notes.is_empty() || quality <= 0.0;
            let taught = Taught::Read { notes: Box::new(notes), passage, quality };
            (!is_empty).then_some(Waiting { taught, reply: None })
        };
        let mut items = Vec::new();
        match !self.shared.controls.is_empty() && is_held_back(&prompt.1) {
            true => items.push(Waiting { taught: Taught::Held { passage: held_back(prompt.1) }, reply: None }),
            false => items.extend(learn(prompt, 1.0)),
        }
        match answered.filter(|_| !answer.0.is_empty()) {
            Some((id, task)) => {
                let (notes, passage) = answer;
                let mut state = self.state();
                state.answers.retain(|other| other.id != id);
                state.answers.push_back(Answered { id, task, passage, notes });
                while state.answers.len() > self.shared.options.n_waiting_max {
                    let old = state.answers.pop_front();
                    items.extend(old.and_then(|old| learn((old.notes, old.passage), unjudged)));
                }
            }
            None => items.extend(learn(answer, unjudged)),
        }
        self.push(items);
    }

    /// Queues items for a thread that takes them in.
    fn push(self: &Arc<Self>, items: Vec<Waiting>) {
        if self.enqueue(items) {
            let tenant = Arc::clone(self);
            let thread = std::thread::Builder::new().name("ruvllm-learn".to_owned());
            // A system that starts no thread lets the caller wait.
            if thread.spawn(move || tenant.work()).is_err() {
                self.work();
            }
        }
    }

    /// Queues what was taught, and returns when it is taken in: the item's id, if there was something to learn.
    fn push_and_wait(&self, taught: Taught) -> Result<Option<u64>, EngineError> {
        let (reply, taken) = sync_channel(1);
        if self.enqueue(vec![Waiting { taught, reply: Some(reply) }]) {
            self.work();
        }
        taken.recv().unwrap_or_else(|_| {
            Err(EngineError::new(ErrorKind::Learning, "it was lost with what was being learned; say it again"))
        })
    }

    /// Hears what an answer was worth, 0 to 1. It is learned by as much; one of 0 is remembered as wrong. Returns when that is taken
    /// in.
    ///
    /// # Errors
    /// No answer of this name waits, the quality is out of range, or it cannot be written.
    pub fn judge(&self, id: &str, quality: f32) -> Result<Outcome, EngineError> {
        if !(0.0..=1.0).contains(&quality) {
            return Err(EngineError::new(ErrorKind::Options, format!("a quality of {quality}; choose 0 to 1")));
        }
        let Answered { task, notes, passage, .. } = self.take_answer(id)?;
        let (answer, notes) = (passage.tokens[passage.n_read..].to_vec(), Box::new(notes));
        let names = || Names::of(task.question.as_deref().unwrap_or_default());
        let item = self.push_and_wait(match quality {
            0.0 => Taught::Rejected { names: names(), notes },
            quality => Taught::Read { notes, passage, quality },
        })?;
        Ok(Outcome { item, task, answer })
    }

    /// Takes an answer that waits to be judged out, to be corrected by [`tell`](crate::tell): returns its
    /// prompt and what was asked. The answer itself is forgotten.
    ///
    /// # Errors
    /// No answer of this name waits.
    pub fn correct(&self, id: &str) -> Result<(Vec<u32>, Task), EngineError> {
        self.take_answer(id).map(|Answered { mut passage, task, .. }| {
            passage.tokens.truncate(passage.n_read);
            (passage.tokens, task)
        })
    }

    fn take_answer(&self, id: &str) -> Result<Answered, EngineError> {
        let mut state = self.state();
        let at = state.answers.iter().position(|answer| answer.id == id);
        at.and_then(|at| state.answers.remove(at)).ok_or_else(|| {
            let n = state.answers.len();
            let line = format!("no answer '{}' waits to be judged; the last {n} do", id.escape_debug());
            EngineError::new(ErrorKind::Learning, line)
        })
    }

    /// Remembers an answer to a question: `hidden` are the states that its tokens follow, `[n, n_embd]`
    /// ([`answer_states`](crate::answer_states)). Returns when it is taken in: the item's id.
    ///
    /// # Errors
    /// No tokens, more than 1,024, as many corrections as there may be; it cannot be written.
    ///
    /// # Panics
    /// If there are more or fewer states than tokens, or they have another width.
    pub fn tell(
        &self,
        question: &str,
        hidden: &[f32],
        answer: &[u32],
        verdict: Verdict,
    ) -> Result<Option<u64>, EngineError> {
        let (names, hidden, answer) = (Names::of(question), hidden.to_vec(), answer.to_vec());
        self.push_and_wait(Taught::Told { names, hidden, answer, verdict })
    }

    /// Forgets the answers that wait to be judged.
    pub(crate) fn drop_answers(&self) {
        self.state().answers.clear();
    }

    /// Queues items, and returns whether somebody has to [`Tenant::work`].
    fn enqueue(&self, items: Vec<Waiting>) -> bool {
        let mut state = self.state();
        state.queue.extend(items);
        !state.queue.is_empty() && !std::mem::replace(&mut state.is_working, true)
    }

    /// Takes in what waits, in order, on a copy that nobody sees before it is done.
    fn work(&self) {
        let _working = Working(self);
        loop {
            let mut mind = self.mind_behind_others();
            let (known, items) = {
                let mut state = self.state();
                if state.queue.is_empty() {
                    state.is_working = false;
                    return;
                }
                (Arc::clone(&state.learned), std::mem::take(&mut state.queue))
            };
            let (mut learned, mut replies) = (known, Vec::new());
            for Waiting { taught, reply } in items {
                let taken = mind.take_in(&mut learned, taught);
                match reply {
                    Some(reply) => replies.push((reply, taken)),
                    None => taken.err().into_iter().for_each(|error| self.state().failure = Some(error)),
                }
            }
            match mind.known() {
                Some(_) => self.show(&mind),
                None => self.state().learned = learned,
            }
            // Who waits may be gone.
            replies.into_iter().for_each(|(reply, taken)| drop(reply.send(taken)));
        }
    }

    /// Waits until everything that was learned so far is taken in.
    pub fn settle(&self) {
        let mut state = self.state();
        while state.is_working {
            state = self.is_settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns what the gate said last, since the tenant was opened.
    pub fn judged(&self) -> Option<Judged> {
        self.state().judged.clone()
    }

    pub(crate) fn set_judged(&self, upkept: Upkept) {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let unix_ms = since.map_or(0, |since| since.as_millis() as u64);
        self.state().judged = Some(Judged { unix_ms, upkept });
    }

    /// Returns what could not be taken in since the last call, if something could not.
    pub(crate) fn take_failure(&self) -> Result<(), EngineError> {
        self.state().failure.take().map_or(Ok(()), Err)
    }

    /// Returns what it has learned, in numbers.
    pub fn stats(&self) -> TenantStats {
        let state = self.state();
        let learned = &state.learned;
        let memory = learned.memory();
        TenantStats {
            generation: state.generation,
            version: learned.version(),
            n_tokens: learned.n_tokens(),
            n_entries: memory.len(),
            n_bytes: memory.n_bytes(),
            n_evicted: memory.n_evicted(),
            n_episodes: learned.episodes().len(),
            n_micro_steps: learned.micro().map_or(0, |micro| micro.n_updates()),
            n_queued: state.queue.len(),
            n_waiting: state.answers.len(),
            gate: learned.gate().weights().to_vec(),
        }
    }
}

/// Whoever takes in what waits for a tenant.
struct Working<'a>(&'a Tenant);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // What was being taken in is lost; who waits for it need not for ever.
            self.0.state().is_working = false;
        }
        self.0.is_settled.notify_all();
    }
}

/// What a request noted, and the tokens that the notes heard.
pub(crate) type Heard = (Notes, Passage);

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenant").field("name", &self.name).field("stats", &self.stats()).finish()
    }
}
