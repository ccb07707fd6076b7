//! The engine on a thread of its own, for programs with many callers.
//!
//! One thread owns model, cache and [`Scheduler`](crate::Scheduler); nobody else touches them, so there are no locks on
//! the way of a token. [`Service`] is the handle that everybody else holds: it checks a request, counts it and sends it
//! over; what comes of it goes to the request's [`Sink`], a function of the caller's, on the owner's thread. A channel
//! of any runtime fits in there; this crate knows none.
//!
//! Text goes past the owner: [`Service::text`] encodes, decodes and renders on the caller's thread while a step runs.
//!
//! ```
//! use std::sync::mpsc;
//! use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, Service, ServiceEvent, ServiceOptions};
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let engine = Engine::load(&path, &LoadOptions { n_seq_max: 4, ..Default::default() }, &mut |_| {})?;
//! let (service, thread) = Service::start(engine, ServiceOptions::default())?;
//!
//! let (sender, receiver) = mpsc::channel();
//! let prompt = service.text().encode_prompt("Name three rivers.", true)?;
//! let request = GenerateRequest { prompt, max_tokens: Some(4), ..Default::default() };
//! let _ticket = service.submit(request, Box::new(move |event| sender.send(event).is_ok()))?;
//! let n_tokens = receiver.iter().filter(|event| matches!(event, ServiceEvent::Token(_))).count();
//! assert!((1..=4).contains(&n_tokens));
//!
//! service.drain(std::time::Duration::from_secs(1));
//! let _engine = thread.join()?;
//! # Ok::<(), ruvllm_engine::EngineError>(())
//! ```

mod memory;
mod observer;
mod owner;
mod prompts;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use ruvllm_kvcache::{CacheStats, Usage};
use ruvllm_lora::AdapterSet;
use ruvllm_lora::manager::AdapterManager;
use ruvllm_text::ModelText;
use web_time::{Duration, Instant};

use crate::engine::Engine;
use crate::request::{CancelToken, GenerateRequest, GenerationSummary, TokenEvent};
use crate::request_state;
use crate::runner::{ModelRunner, Readout, check_writes};
use crate::scheduler::{SchedulerOptions, SchedulerStats};
use crate::tuner::Tuner;
use crate::{EngineError, ErrorKind, GrammarCompiler};
pub use observer::{Observer, Step};
use owner::{Command, EmbedJob, Owner};
pub use prompts::SavedPrompt;
use ruvllm_backend::ModelInfo;
pub use steps::ServiceSteps;

/// Options of a service.
pub struct ServiceOptions {
    /// Limits of a step.
    pub scheduler: SchedulerOptions,
    /// Requests that may wait beside those that can run at once ([`LoadOptions::n_seq_max`](crate::LoadOptions)); those
    /// beyond are refused.
    pub queue_max: usize,
    /// Told what happens, on the owner's thread.
    pub observer: Box<dyn Observer>,
    /// Changes how steps are filled by what they cost; `None` leaves them as they are.
    pub tuner: Option<Box<dyn Tuner>>,
}

impl Default for ServiceOptions {
    /// 256 may wait; nobody observes or tunes.
    fn default() -> ServiceOptions {
        let (scheduler, observer) = (SchedulerOptions::default(), Box::new(()));
        ServiceOptions { scheduler, queue_max: 256, observer, tuner: None }
    }
}

impl std::fmt::Debug for ServiceOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ServiceOptions { scheduler, queue_max, .. } = self;
        f.debug_struct("ServiceOptions").field("scheduler", scheduler).field("queue_max", queue_max).finish()
    }
}

/// Event of a request.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "an event is handed on once; a request has one large one, its last")]
pub enum ServiceEvent {
    /// It got a token.
    Token(TokenEvent),
    /// It is over; nothing follows.
    Done(Result<GenerationSummary, EngineError>),
}

/// Takes the events of one request, on the owner's thread: it must not block. It returns whether anybody listens still;
/// if not, the request is cancelled.
pub type Sink = Box<dyn FnMut(ServiceEvent) -> bool + Send>;

/// Takes what came of an embedding, on the owner's thread: it must not block.
pub type EmbedSink = Box<dyn FnOnce(Result<Vec<f32>, EngineError>) + Send>;

/// Something to compute with a model.
pub type Work = Box<dyn FnOnce(&mut ModelRunner) + Send>;

/// State and counters of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceStats {
    /// Requests that run.
    pub n_running: usize,
    /// Requests that wait.
    pub n_waiting: usize,
    /// Embeddings that wait.
    pub n_embeds_waiting: usize,
    /// Counters of the scheduler.
    pub scheduler: SchedulerStats,
    /// State and counters of the prefix cache, if there is one. This and what follows are up to a quarter of a second old.
    pub cache: Option<CacheStats>,
    /// Owners of the KV cache's blocks.
    pub kv: Usage,
    /// Bytes of the blocks that somebody holds, by format.
    pub kv_bytes: Vec<(&'static str, usize)>,
    /// Bytes of earlier prompts and answers that drafts are made of.
    pub history_bytes: usize,
    /// Seconds that a request took from the first step to the last, lately.
    pub request_s: f64,
}

/// How much of the queue a tenant may fill, as a multiple of what stays free of it: alone three quarters.
const TENANT_FACTOR: usize = 3;

/// What handles and owner share.
struct Shared {
    info: ModelInfo,
    text: ModelText,
    /// Built when first asked for.
    grammars: OnceLock<GrammarCompiler>,
    /// Requests that wait or run.
    n_inside: AtomicUsize,
    /// Those of them of each tenant that has any.
    of_tenants: Mutex<HashMap<u64, usize>>,
    n_inside_max: AtomicUsize,
    n_running_max: usize,
    /// Nothing new is taken.
    is_stopping: AtomicBool,
    /// The owner's thread has ended.
    has_ended: AtomicBool,
    stats: Mutex<ServiceStats>,
}

impl Shared {
    fn stats(&self) -> MutexGuard<'_, ServiceStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_tenants(&self) -> MutexGuard<'_, HashMap<u64, usize>> {
        self.of_tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request of a tenant in, and returns whether there is capacity. A tenant may have [`TENANT_FACTOR`] times what it
    /// leaves free, so that however much it asks, others find a place in the queue.
    fn enter(&self, tenant: u64) -> bool {
        let mut of_tenants = self.of_tenants();
        let (n, own) = (self.n_inside.load(Ordering::Acquire), of_tenants.get(&tenant).copied().unwrap_or(0));
        let n_free = self.n_inside_max.load(Ordering::Acquire).saturating_sub(n);
        // Where nobody has a name there is nobody to leave room for.
        if n_free == 0 || (tenant != 0 && own > TENANT_FACTOR * (n_free - 1)) {
            return false;
        }
        of_tenants.insert(tenant, own + 1);
        self.n_inside.store(n + 1, Ordering::Release);
        true
    }

    /// Counts a request of a tenant out.
    fn leave(&self, tenant: u64) {
        let mut of_tenants = self.of_tenants();
        if let Some(n) = of_tenants.get_mut(&tenant) {
            *n -= 1;
            if *n == 0 {
                of_tenants.remove(&tenant);
            }
        }
        self.n_inside.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The handle of an engine that runs on a thread of its own; clones are handles of the same.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

/// The owner's thread.
#[derive(Debug)]
pub struct ServiceThread(JoinHandle<Engine>);

/// Stands for a request; when it is dropped, the request is cancelled.
#[derive(Debug)]
#[must_use = "a request whose ticket is dropped is cancelled"]
pub struct Ticket(CancelToken);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Service {
    /// Moves an engine to a thread of its own.
    ///
    /// # Errors
    /// The model has no tokenizer, an option is out of range, or the system starts no thread.
    pub fn start(mut engine: Engine, options: ServiceOptions) -> Result<(Service, ServiceThread), EngineError> {
        let ServiceOptions { scheduler, queue_max, observer, tuner } = options;
        let (service, inbox) = Service::of(&engine, &scheduler, queue_max)?;
        let of_owner = Arc::clone(&service.shared);
        let run = move || {
            match crate::Scheduler::new(&mut engine.runner, &scheduler) {
                Ok(mut scheduler) => {
                    tuner.into_iter().for_each(|tuner| scheduler.set_tuner(tuner));
                    Owner::new(scheduler, inbox, of_owner, observer).run();
                }
                Err(error) => unreachable!("the options were checked: {error}"),
            }
            engine
        };
        let thread = std::thread::Builder::new().name("ruvllm-engine".to_owned()).spawn(run).map_err(|error| {
            let line = format!("cannot start the engine's thread: {error}");
            EngineError::new(ErrorKind::Stopped, line).with_source(error)
        })?;
        Ok((service, ServiceThread(thread)))
    }

    /// Makes the handle of a service, and the end of its channel that the owner reads.
    fn of(
        engine: &Engine,
        scheduler: &SchedulerOptions,
        queue_max: usize,
    ) -> Result<(Service, Receiver<Command>), EngineError> {
        let text = engine.text()?;
        let (info, n_seq_max) = (engine.info().clone(), engine.runner.n_free());
        scheduler.validate()?;
        let shared = Arc::new(Shared {
            info,
            text,
            grammars: OnceLock::new(),
            n_inside: AtomicUsize::new(0),
            of_tenants: Mutex::default(),
            n_inside_max: AtomicUsize::new(n_seq_max.saturating_add(queue_max)),
            n_running_max: n_seq_max,
            is_stopping: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            stats: Mutex::default(),
        });
        let (commands, inbox) = mpsc::channel();
        Ok((Service { shared, commands }, inbox))
    }

    /// Returns what is known about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.shared.info
    }

    /// Returns the tokenizer and the chat template.
    pub fn text(&self) -> &ModelText {
        &self.shared.text
    }

    /// Returns what compiles grammars for the model; it is built the first time, which looks at the whole vocabulary.
    ///
    /// # Errors
    /// The model has no token that ends an answer.
    pub fn grammar_compiler(&self) -> Result<&GrammarCompiler, EngineError> {
        let Shared { grammars, text, info, .. } = &*self.shared;
        if grammars.get().is_none() {
            let compiler = GrammarCompiler::new(text.tokenizer(), info.n_vocab);
            let compiler = compiler.map(|compiler| compiler.with_masks_ahead(info.device.n_threads))?;
            // Another thread may have been as fast.
            let _ = grammars.set(compiler);
        }
        Ok(grammars.get().expect("it was set just now"))
    }

    /// Returns how many requests can run at once.
    pub fn n_running_max(&self) -> usize {
        self.shared.n_running_max
    }

    /// Returns how many requests can wait and run together.
    pub fn n_inside_max(&self) -> usize {
        self.shared.n_inside_max.load(Ordering::Acquire)
    }

    /// Sets how many requests may wait beside those that run; those that wait already stay.
    pub fn set_queue_max(&self, n: usize) {
        self.shared.n_inside_max.store(self.shared.n_running_max.saturating_add(n), Ordering::Release);
    }

    /// Takes a request; its events go to `sink`. It is cancelled within one step, in its prompt too, when its own
    /// [`CancelToken`] is set, when the ticket is dropped and when the sink returns false.
    ///
    /// # Errors
    /// The prompt is empty or too long, an option is out of range; [`ErrorKind::QueueFull`] if as many wait as may;
    /// [`ErrorKind::Stopped`] if the service takes nothing any more.
    pub fn submit(&self, request: GenerateRequest, sink: Sink) -> Result<Ticket, EngineError> {
        check_writes(&self.shared.info)?;
        request_state::check(&self.shared.info, &request)?;
        let tenant = request.tenant;
        self.enter(tenant)?;
        let ticket = Ticket(request.cancel.clone());
        self.send(tenant, Command::Generate(Box::new(request), sink))?;
        Ok(ticket)
    }

    /// Computes the pooled embedding of a token sequence, of unit length, between steps; it goes to `sink`. The ticket
    /// cancels it while it waits.
    ///
    /// # Errors
    /// As [`Service::submit`].
    pub fn embed(&self, tokens: Vec<u32>, sink: EmbedSink) -> Result<Ticket, EngineError> {
        self.read_out(0, tokens, Readout::Embedding(None), AdapterSet::default(), sink)
    }

    /// Computes what is read from the vectors of a text's tokens with adapters for a tenant, as [`Service::embed`] does.
    ///
    /// # Errors
    /// As [`Service::submit`].
    pub fn read_out(
        &self,
        tenant: u64,
        tokens: Vec<u32>,
        readout: Readout,
        adapters: AdapterSet,
        sink: EmbedSink,
    ) -> Result<Ticket, EngineError> {
        self.enter(tenant)?;
        let (cancel, since) = (CancelToken::default(), Instant::now());
        let job = EmbedJob { tenant, since, tokens, readout, adapters, cancel: cancel.clone(), sink };
        self.send(tenant, Command::Embed(job))?;
        Ok(Ticket(cancel))
    }

    /// Computes an embedding as [`Service::embed`] does, and waits for it.
    ///
    /// # Errors
    /// As [`Service::submit`]; the tokens do not fit the model, or it makes none.
    pub fn embed_now(&self, tokens: Vec<u32>) -> Result<Vec<f32>, EngineError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let _ticket = self.embed(tokens, Box::new(move |result| drop(sender.send(result))))?;
        receiver.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Limits the bytes of KV cache that a tenant's requests hold together; `None` lifts the limit.
    pub fn set_tenant_quota(&self, tenant: u64, bytes: Option<usize>) {
        // An owner that has ended limits nobody.
        let _ = self.commands.send(Command::Quota(tenant, bytes));
    }

    /// Has adapters share the memory of the KV cache instead of having their own: both together take no more than
    /// that. Adapters that nobody uses are evicted for the KV cache; to adapters are evicted cached prefixes, but not what
    /// requests that run may come to need. To be called once, before any is loaded.
    ///
    /// # Errors
    /// [`ErrorKind::Stopped`] if the owner's thread has ended.
    pub fn share_memory(&self, adapters: &Arc<AdapterManager>) -> Result<(), EngineError> {
        let (reply, lent) = mpsc::sync_channel(1);
        self.commands.send(Command::Share(Arc::downgrade(adapters), reply)).map_err(|_| ended())?;
        if let Some((lender, n_pages_max)) = lent.recv().map_err(|_| ended())? {
            adapters.share(Box::new(memory::OfKeysAndValues::new(lender, self.commands.clone())), n_pages_max);
        }
        Ok(())
    }

    /// Has something computed with the model between two steps, and waits until it is.
    ///
    /// # Errors
    /// [`ErrorKind::Stopped`] if the owner's thread has ended, or ends before it comes to that.
    pub fn run(&self, work: Work) -> Result<(), EngineError> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let work: Work = Box::new(move |runner| {
            work(runner);
            // Who waits is there.
            let _ = sender.send(());
        });
        self.commands.send(Command::Run(work)).map_err(|_| ended())?;
        receiver.recv().map_err(|_| ended())
    }

    /// Counts somebody in.
    fn enter(&self, tenant: u64) -> Result<(), EngineError> {
        let (n_inside_max, n_running_max) = (self.n_inside_max(), self.n_running_max());
        if self.has_ended() {
            return Err(ended());
        }
        if self.is_stopping() {
            return Err(stopping());
        }
        if self.shared.enter(tenant) {
            return Ok(());
        }
        let seconds = self.retry_after_s();
        let line = match self.n_inside() < n_inside_max {
            true => format!("this key has its share of the queue; try again in {seconds} s"),
            false => {
                format!("the queue is full: {} requests wait; try again in {seconds} s", n_inside_max - n_running_max)
            }
        };
        Err(EngineError::new(ErrorKind::QueueFull, line))
    }

    /// Sends what somebody was counted in for.
    fn send(&self, tenant: u64, command: Command) -> Result<(), EngineError> {
        self.commands.send(command).map_err(|_| {
            self.shared.leave(tenant);
            ended()
        })
    }

    /// Returns after how many seconds (1 to 60) a request that was refused is likely to be taken.
    pub fn retry_after_s(&self) -> u64 {
        let request_s = self.shared.stats().request_s;
        ((request_s / self.shared.n_running_max.max(1) as f64).ceil() as u64).clamp(1, 60)
    }

    /// Returns what it does and did.
    pub fn stats(&self) -> ServiceStats {
        self.shared.stats().clone()
    }

    /// Returns how many requests wait or run.
    pub fn n_inside(&self) -> usize {
        self.shared.n_inside.load(Ordering::Acquire)
    }

    /// Takes nothing new from now on, and cancels after `limit` what is not over by then. The thread ends when all is
    /// over. Calling it again can only shorten the limit.
    pub fn drain(&self, limit: Duration) {
        self.shared.is_stopping.store(true, Ordering::Release);
        // An owner that has ended is drained.
        let _ = self.commands.send(Command::Drain(Instant::now() + limit));
    }

    /// Returns whether it takes nothing new any more.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping.load(Ordering::Acquire)
    }

    /// Returns whether the owner's thread has ended: it was drained, or broke.
    pub fn has_ended(&self) -> bool {
        self.shared.has_ended.load(Ordering::Acquire)
    }
}

/// What whoever comes too late is told.
fn stopping() -> EngineError {
    EngineError::new(ErrorKind::Stopped, "the server is stopping and takes no requests")
}

fn ended() -> EngineError {
    EngineError::new(ErrorKind::Stopped, "the engine's thread has ended and takes no requests")
}

impl std::fmt::Debug for Service {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Service").field("model", &self.shared.info.name).field("stats", &*self.shared.stats()).finish()
    }
}

impl ServiceThread {
    /// Waits until the service is drained, or all its handles are dropped and all requests over, and gives back what it
    /// owned.
    ///
    /// # Errors
    /// [`ErrorKind::Stopped`] if the thread panicked.
    pub fn join(self) -> Result<Engine, EngineError> {
        self.0
            .join()
            .map_err(|_| EngineError::new(ErrorKind::Stopped, "the engine's thread ended by an internal error"))
    }

    /// Returns whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}
