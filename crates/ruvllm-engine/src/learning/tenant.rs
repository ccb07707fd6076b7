//! A tenant: what it has learned, what waits to be learned, and who is told of it.

use std::collections::VecDeque;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ruvllm_sona::episodes::Verdict;
use ruvllm_sona::{Learned, Names, Notes};

use super::lesson::Asking;
use super::{Shared, file};
use crate::learner::Learner;
use crate::{EngineError, ErrorKind};

/// The longest name.
const NAME_MAX: usize = 64;

/// Somebody whose requests teach a model: what they taught is for their own requests only.
pub struct Tenant {
    name: String,
    pub(super) shared: Arc<Shared>,
    state: Mutex<State>,
    /// Nothing waits to be taken in any more.
    is_settled: Condvar,
    /// Where it is kept, and what keeps other processes out.
    kept: Option<(PathBuf, File)>,
}

struct State {
    learned: Arc<Learned>,
    /// What waits to be taken in, the oldest first; and whether a thread is at it.
    queue: VecDeque<Item>,
    is_working: bool,
    /// Answers that wait to be judged, the oldest first.
    answers: VecDeque<Answered>,
    /// Something changed since it was kept.
    is_changed: bool,
}

/// One thing that is learned. What a tenant knows is a function of these in their order.
enum Item {
    Noted(Box<Notes>, f32),
    Rejected(Names, Box<Notes>),
    Told { names: Names, hidden: Vec<f32>, answer: Vec<u32>, verdict: Verdict },
    Replaced(Box<Learned>),
}

/// An answer that waits to be judged.
pub(super) struct Answered {
    pub id: String,
    pub question: String,
    pub prompt: Vec<u32>,
    pub notes: Notes,
}

/// What a tenant has learned, in numbers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantStats {
    /// Tokens that were learned from.
    pub n_tokens: u64,
    /// Entries of the memory, their bytes, and how many gave way.
    pub n_entries: usize,
    /// Bytes of those entries.
    pub n_bytes: usize,
    /// Entries that gave way to others.
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

impl Tenant {
    pub(super) fn open(name: &str, shared: Arc<Shared>) -> Result<Tenant, EngineError> {
        let is_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || name.starts_with('.') || !name.chars().all(is_char) {
            let line = format!(
                "'{}' is no name of a tenant; use up to {NAME_MAX} letters, digits, '-', '_' and '.'",
                name.escape_debug()
            );
            return Err(EngineError::new(ErrorKind::Options, line));
        }
        let folder = shared.folder().map(|folder| folder.join("tenants"));
        let kept = folder
            .map(|folder| {
                file::make_folder(&folder)?;
                let lock = folder.join(format!("{name}.lock"));
                Ok::<_, EngineError>((folder.join(format!("{name}.learned")), lock_file(name, &lock)?))
            })
            .transpose()?;
        let bytes = kept.as_ref().map(|(path, _)| file::read(path)).transpose()?.flatten();
        let learned = match bytes {
            Some(bytes) => {
                let (calibration, learn) = (Arc::clone(&shared.calibration), shared.options.learn);
                Learned::restore(&bytes, calibration, learn, shared.isa).map_err(|error| {
                    let line = format!("what tenant '{name}' has learned cannot be read: {error}");
                    EngineError::new(ErrorKind::Learning, line).with_source(error)
                })?
            }
            None => shared.empty()?,
        };
        Ok(Tenant::new(name, shared, learned, kept))
    }

    /// Makes one that knows nothing and is kept nowhere.
    pub(super) fn transient(shared: Arc<Shared>) -> Result<Tenant, EngineError> {
        let learned = shared.empty()?;
        Ok(Tenant::new("transient", shared, learned, None))
    }

    fn new(name: &str, shared: Arc<Shared>, learned: Learned, kept: Option<(PathBuf, File)>) -> Tenant {
        let state = State {
            learned: Arc::new(learned),
            queue: VecDeque::new(),
            is_working: false,
            answers: VecDeque::new(),
            is_changed: false,
        };
        Tenant { name: name.to_owned(), shared, state: Mutex::new(state), is_settled: Condvar::new(), kept }
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what it has learned so far. It stays as it is; what is learned later is another one.
    pub fn learned(&self) -> Arc<Learned> {
        Arc::clone(&self.state().learned)
    }

    /// Makes what a request learns by. `question` is what is asked, for the names in it; without one no correction is said
    /// again. `id` names the answer for [`Tenant::judge`]; without one it counts as unjudged when it ends.
    pub fn learner(self: &Arc<Self>, question: Option<&str>, id: Option<&str>) -> Arc<dyn Learner> {
        Arc::new(Asking { tenant: Arc::clone(self), question: question.map(str::to_owned), id: id.map(str::to_owned) })
    }

    /// Takes over what a request noted: of its prompt, and of its answer if somebody can judge it.
    pub(super) fn end(self: &Arc<Self>, prompt: Notes, answer: Notes, answered: Option<(String, String, Vec<u32>)>) {
        let mut items = Vec::new();
        if !prompt.is_empty() {
            items.push(Item::Noted(Box::new(prompt), 1.0));
        }
        let unjudged = self.shared.options.unjudged;
        let mut unjudged_notes = Vec::new();
        match answered.filter(|_| !answer.is_empty()) {
            Some((id, question, prompt)) => {
                let mut state = self.state();
                state.answers.retain(|other| other.id != id);
                state.answers.push_back(Answered { id, question, prompt, notes: answer });
                while state.answers.len() > self.shared.options.n_waiting_max {
                    unjudged_notes.extend(state.answers.pop_front().map(|answer| answer.notes));
                }
            }
            None => unjudged_notes.push(answer),
        }
        if unjudged > 0.0 {
            let noted = unjudged_notes.into_iter().filter(|notes| !notes.is_empty());
            items.extend(noted.map(|notes| Item::Noted(Box::new(notes), unjudged)));
        }
        self.push(items);
    }

    /// Queues items for a thread that takes them in.
    fn push(self: &Arc<Self>, items: Vec<Item>) {
        if self.enqueue(items) {
            let tenant = Arc::clone(self);
            let thread = std::thread::Builder::new().name("ruvllm-learn".to_owned());
            // A system that starts no thread lets the caller wait.
            if thread.spawn(move || tenant.work()).is_err() {
                self.work();
            }
        }
    }

    /// Queues an item, and returns when it is taken in.
    fn push_and_settle(&self, item: Item) {
        if self.enqueue(vec![item]) {
            self.work();
        }
        self.settle();
    }

    /// Hears what an answer was worth, 0 to 1. It is learned by as much; one of 0 is remembered as wrong. Returns when it is taken in.
    ///
    /// # Errors
    /// No answer of this name waits, or the quality is out of range.
    pub fn judge(&self, id: &str, quality: f32) -> Result<(), EngineError> {
        if !(0.0..=1.0).contains(&quality) {
            return Err(EngineError::new(ErrorKind::Options, format!("a quality of {quality}; choose 0 to 1")));
        }
        let Answered { question, notes, .. } = self.take_answer(id)?;
        self.push_and_settle(match quality {
            0.0 => Item::Rejected(Names::of(&question), Box::new(notes)),
            quality => Item::Noted(Box::new(notes), quality),
        });
        Ok(())
    }

    /// Takes an answer that waits to be judged out, to be corrected by [`Engine::tell`](crate::Engine::tell): returns its
    /// prompt and question. The answer itself is forgotten.
    ///
    /// # Errors
    /// No answer of this name waits.
    pub fn correct(&self, id: &str) -> Result<(Vec<u32>, String), EngineError> {
        self.take_answer(id).map(|answered| (answered.prompt, answered.question))
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
    /// ([`Engine::answer_states`](crate::Engine::answer_states)). Returns when it is taken in.
    ///
    /// # Errors
    /// No tokens, or more than 1,024.
    ///
    /// # Panics
    /// If there are more or fewer states than tokens, or they have another width.
    pub fn tell(&self, question: &str, hidden: &[f32], answer: &[u32], verdict: Verdict) -> Result<(), EngineError> {
        // What is wrong is told to the caller: it is tried on a copy first.
        let names = Names::of(question);
        let mut tried = self.shared.empty()?;
        tried.tell(&names, hidden, answer, verdict)?;
        self.push_and_settle(Item::Told { names, hidden: hidden.to_vec(), answer: answer.to_vec(), verdict });
        Ok(())
    }

    /// Puts what was learned elsewhere, by a [`Course`](super::Course) that began with [`Tenant::learned`], in place of what
    /// it knows.
    pub fn replace(&self, learned: Learned) {
        self.push_and_settle(Item::Replaced(Box::new(learned)));
    }

    /// Forgets everything.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn forget(&self) -> Result<(), EngineError> {
        let empty = self.shared.empty()?;
        self.state().answers.clear();
        self.replace(empty);
        self.save()
    }

    /// Queues items, and returns whether somebody has to [`Tenant::work`].
    fn enqueue(&self, items: Vec<Item>) -> bool {
        let mut state = self.state();
        state.queue.extend(items);
        !state.queue.is_empty() && !std::mem::replace(&mut state.is_working, true)
    }

    /// Takes in what waits, in order, on a copy that nobody sees before it is done.
    fn work(&self) {
        let _working = Working(self);
        loop {
            let (known, items) = {
                let mut state = self.state();
                if state.queue.is_empty() {
                    state.is_working = false;
                    return;
                }
                (Arc::clone(&state.learned), std::mem::take(&mut state.queue))
            };
            let mut learned = Learned::clone(&known);
            for item in items {
                take_in(&mut learned, item);
            }
            let mut state = self.state();
            state.is_changed = true;
            let before = std::mem::replace(&mut state.learned, Arc::new(learned));
            drop(state);
            // Giving memory back takes a while too.
            drop(before);
        }
    }

    /// Waits until everything that was learned so far is taken in.
    pub fn settle(&self) {
        let mut state = self.state();
        while state.is_working {
            state = self.is_settled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until everything is taken in, and keeps it if that changed something.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<(), EngineError> {
        self.settle();
        let Some((path, _)) = &self.kept else { return Ok(()) };
        let (learned, is_changed) = {
            let mut state = self.state();
            (Arc::clone(&state.learned), std::mem::replace(&mut state.is_changed, false))
        };
        if is_changed {
            file::write(path, &learned.snapshot()).inspect_err(|_| self.state().is_changed = true)?;
        }
        Ok(())
    }

    /// Returns what it has learned, in numbers.
    pub fn stats(&self) -> TenantStats {
        let state = self.state();
        let learned = &state.learned;
        let memory = learned.memory();
        TenantStats {
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

fn take_in(learned: &mut Learned, item: Item) {
    match item {
        Item::Noted(notes, quality) => {
            learned.take_in(*notes, quality);
            learned.rehearse(usize::MAX);
        }
        // A full list of corrections takes no more; whoever tells one hears so.
        Item::Rejected(names, notes) => drop(learned.reject(&names, &notes)),
        Item::Told { names, hidden, answer, verdict } => drop(learned.tell(&names, &hidden, &answer, verdict)),
        Item::Replaced(other) => *learned = *other,
    }
}

/// Opens the file that only one process has.
fn lock_file(name: &str, path: &std::path::Path) -> Result<File, EngineError> {
    let open = File::options().create(true).truncate(false).write(true).open(path);
    let lock = open.map_err(|error| file::failed("open", path, error))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(std::fs::TryLockError::WouldBlock) => {
            let line = format!("another process learns for tenant '{name}' of this model; wait for it or name another");
            Err(EngineError::new(ErrorKind::Learning, line))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(file::failed("lock", path, error)),
    }
}

impl std::fmt::Debug for Tenant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tenant").field("name", &self.name).field("stats", &self.stats()).finish()
    }
}
