//! A model that another server answers for: requests wait here for their turn, and each that runs has a thread that hears the
//! answer.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_backend::{BackendError, CompletionEnd, CompletionEvent, CompletionRequest, Completions, Interrupt};
use ruvllm_engine::{FinishReason, Timings, Unread};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;

use super::slot::RemoteSource;
use crate::metrics::{CameTo, EngineObserver};
use crate::options::stopping;
use crate::shared::{Share, Shared};

/// The most bytes of an answer: a server that sends more is not believed.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Interval at which an answer whose reader is slow looks whether it was read.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
/// Time for which an answer to the question whether the other server is there is used again.
const CHECKED_FOR: Duration = Duration::from_secs(2);
/// Longest wait for requests that were ended to be over.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A model that another server answers for.
pub struct RemoteModel {
    name: Arc<str>,
    backend: Arc<dyn Completions>,
    /// Places for requests that wait or run.
    places: Arc<Shared>,
    n_inside_max: usize,
    n_running_max: usize,
    /// Turns of those that run.
    turns: Arc<Semaphore>,
    n_inside: AtomicUsize,
    n_requests: AtomicU64,
    is_stopping: AtomicBool,
    /// Switches that end the requests inside.
    interrupts: Mutex<HashMap<u64, Interrupt>>,
    observer: EngineObserver,
    /// Time of the last question whether the other server is there, and its answer.
    checked: tokio::sync::Mutex<Option<(Instant, Result<(), ApiError>)>>,
}

/// A request to another server.
pub struct RemoteJob {
    /// The request as the other server gets it.
    pub request: CompletionRequest,
    /// Number of the tenant, for shares.
    pub tenant: u64,
    /// Time at which the answer ends, if it has one.
    pub deadline: Option<Instant>,
    /// Pieces that nobody has read; too many of them stop the answer until some are.
    pub unread: Unread,
}

/// Event of a request to another server.
pub enum RemoteEvent {
    /// A piece of the answer.
    Piece(CompletionEvent),
    /// It is over; nothing follows.
    Done(Result<RemoteEnd, ApiError>),
}

/// An answer of another server that is over.
#[derive(Clone, Debug)]
pub struct RemoteEnd {
    /// Its text, without thoughts and calls.
    pub text: String,
    /// Reason for the end of the answer.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens of the answer.
    pub n_answer: usize,
    /// Times of the answer.
    pub timings: Timings,
}

/// Takes the events of a request; returns whether anybody listens still.
pub(super) type RemoteSink = Box<dyn FnMut(RemoteEvent) -> bool + Send>;

/// Ends its request when it is dropped.
pub struct RemoteTicket {
    interrupt: Interrupt,
    task: JoinHandle<()>,
}

impl Drop for RemoteTicket {
    fn drop(&mut self) {
        self.interrupt.set();
        // One that waits for its turn leaves its place.
        self.task.abort();
    }
}

/// A request that is inside, until this is dropped.
struct Inside {
    model: Arc<RemoteModel>,
    id: u64,
    _part: Share,
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.model.interrupts().remove(&self.id);
        self.model.n_inside.fetch_sub(1, Ordering::AcqRel);
        self.model.tell();
    }
}

impl RemoteModel {
    pub(super) fn new(
        name: &Arc<str>,
        source: RemoteSource,
        queue_max: usize,
        observer: EngineObserver,
    ) -> RemoteModel {
        let RemoteSource { backend, n_running_max } = source;
        let n_inside_max = n_running_max + queue_max;
        RemoteModel {
            name: Arc::clone(name),
            backend,
            places: Shared::new(n_inside_max),
            n_inside_max,
            n_running_max,
            turns: Arc::new(Semaphore::new(n_running_max)),
            n_inside: AtomicUsize::new(0),
            n_requests: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            interrupts: Mutex::default(),
            observer,
            checked: tokio::sync::Mutex::default(),
        }
    }

    fn interrupts(&self) -> MutexGuard<'_, HashMap<u64, Interrupt>> {
        self.interrupts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn n_running_max(&self) -> usize {
        self.n_running_max
    }

    pub(super) fn n_inside_max(&self) -> usize {
        self.n_inside_max
    }

    pub(super) fn n_inside(&self) -> usize {
        self.n_inside.load(Ordering::Acquire)
    }

    /// Takes nothing new from now on, and ends after `limit` what is not over by then.
    pub(super) fn drain(self: &Arc<Self>, limit: Duration) {
        self.is_stopping.store(true, Ordering::Release);
        if limit.is_zero() {
            return self.end_all();
        }
        let model = Arc::downgrade(self);
        std::thread::spawn(move || {
            std::thread::sleep(limit);
            model.upgrade().into_iter().for_each(|model| model.end_all());
        });
    }

    fn end_all(&self) {
        let all: Vec<Interrupt> = self.interrupts().values().cloned().collect();
        all.iter().for_each(Interrupt::set);
    }

    /// Waits until those that were ended are over.
    pub(super) fn wait(&self) {
        let start = Instant::now();
        while self.n_inside() > 0 && start.elapsed() < END_TIMEOUT {
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Tells the metrics how many run and wait.
    fn tell(&self) {
        let n_running = self.n_running_max - self.turns.available_permits();
        self.observer.waits(n_running, self.n_inside().saturating_sub(n_running));
    }

    /// Counts somebody in.
    fn enter(self: &Arc<Self>, tenant: u64, interrupt: &Interrupt) -> Result<Inside, ApiError> {
        if self.is_stopping.load(Ordering::Acquire) {
            return Err(stopping());
        }
        let part = self.places.take(tenant, 1).ok_or_else(|| {
            let line = match self.n_inside() < self.n_inside_max {
                true => "this key has its share of the queue; try again in 1 s".to_owned(),
                false => format!(
                    "the queue is full: {} requests wait; try again in 1 s",
                    self.n_inside_max - self.n_running_max
                ),
            };
            let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, line).code("queue_full");
            ApiError { retry_after_s: Some(1), ..error }
        })?;
        let id = self.n_requests.fetch_add(1, Ordering::Relaxed);
        self.interrupts().insert(id, interrupt.clone());
        self.n_inside.fetch_add(1, Ordering::AcqRel);
        self.tell();
        Ok(Inside { model: Arc::clone(self), id, _part: part })
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// 504: the request's time was over before.
    async fn turn(&self, deadline: Option<Instant>) -> Result<OwnedSemaphorePermit, ApiError> {
        let turn = within(deadline, Arc::clone(&self.turns).acquire_owned()).await?.map_err(|_| stopping())?;
        self.tell();
        Ok(turn)
    }

    /// Takes a request; its events go to `sink`. It ends when its ticket is dropped, when the sink returns false and when its time
    /// is over.
    ///
    /// # Errors
    /// 429: as many wait as may; 503: the server stops.
    pub fn submit(self: &Arc<Self>, job: RemoteJob, mut sink: RemoteSink) -> Result<RemoteTicket, ApiError> {
        let (interrupt, asked_at) = (job.request.interrupt.clone(), Instant::now());
        let inside = self.enter(job.tenant, &interrupt)?;
        let of_task = interrupt.clone();
        let task = tokio::spawn(async move {
            let turn = match inside.model.turn(job.deadline).await {
                Ok(turn) => turn,
                Err(error) => {
                    inside.model.observer.ended("deadline", None);
                    sink(RemoteEvent::Done(Err(error)));
                    return;
                }
            };
            let (deadline, (over, is_over)) = (job.deadline, oneshot::channel::<()>());
            let is_late = Arc::new(AtomicBool::new(false));
            let of_thread = Arc::clone(&is_late);
            let run = move || {
                let running = Running { inside: &inside, job, asked_at, is_late: of_thread };
                running.run(&mut sink);
                drop((turn, inside, over));
            };
            // A thread of its own: it waits for the other server, and others need those of the runtime.
            if let Err(error) = std::thread::Builder::new().name("ruvllm-remote".to_owned()).spawn(run) {
                return tracing::error!(%error, "no thread for a request to another server");
            }
            if within(deadline, is_over).await.is_err() {
                is_late.store(true, Ordering::Release);
                of_task.set();
            }
        });
        Ok(RemoteTicket { interrupt, task })
    }

    /// Has the other server embed texts.
    ///
    /// # Errors
    /// As [`RemoteModel::submit`], the other server's, or the request's time is over.
    pub async fn embed(
        self: &Arc<Self>,
        tenant: u64,
        texts: Vec<String>,
        deadline: Option<Instant>,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let inside = self.enter(tenant, &Interrupt::default())?;
        let turn = self.turn(deadline).await?;
        let backend = Arc::clone(&self.backend);
        let embed = tokio::task::spawn_blocking(move || {
            let _inside = (turn, inside);
            backend.embed(&texts)
        });
        let embedded = within(deadline, embed).await?.map_err(|_| broken())?;
        Ok(embedded?)
    }

    /// Asks whether the other server is there, unless it is known.
    ///
    /// # Errors
    /// 503: it does not answer, or does not take the key.
    pub async fn check(&self) -> Result<(), ApiError> {
        let mut checked = self.checked.lock().await;
        if let Some((_, known)) = checked.as_ref().filter(|(at, _)| at.elapsed() < CHECKED_FOR) {
            return known.clone();
        }
        let backend = Arc::clone(&self.backend);
        let answer = tokio::task::spawn_blocking(move || backend.check()).await.map_err(|_| broken())?;
        let answer = answer.map_err(|error| {
            let line = format!("another server answers for '{}': {error}", self.name);
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("backend_unavailable")
        });
        *checked = Some((Instant::now(), answer.clone()));
        answer
    }
}

/// A request whose turn it is.
struct Running<'i> {
    inside: &'i Inside,
    job: RemoteJob,
    asked_at: Instant,
    /// Its time is over.
    is_late: Arc<AtomicBool>,
}

/// An answer so far.
struct Heard {
    text: String,
    n_bytes: usize,
    n_pieces: usize,
    first_at: Option<Instant>,
}

impl Running<'_> {
    fn run(self, sink: &mut RemoteSink) {
        let (model, request, began_at) = (&self.inside.model, &self.job.request, Instant::now());
        let mut heard = Heard { text: String::new(), n_bytes: 0, n_pieces: 0, first_at: None };
        let told = model.backend.generate(request, &mut |event| self.hear(event, &mut heard, sink));
        let result = match told {
            Ok(_) if heard.n_bytes > ANSWER_BYTES_MAX => {
                let line = format!("the other server's answer has more than {ANSWER_BYTES_MAX} bytes; ask for less");
                Err(ApiError::new(StatusCode::BAD_GATEWAY, line).code("backend_refused"))
            }
            Ok(end) => Ok(self.end(end, heard, began_at)),
            Err(error) => Err(self.failed(error)),
        };
        match &result {
            Err(_) => model.observer.ended("error", None),
            Ok(end) => {
                let &RemoteEnd { ref timings, n_prompt, n_answer, finish_reason, .. } = end;
                model.observer.ended(finish_reason.as_str(), Some(&CameTo { timings, n_prompt, n_answer }));
            }
        }
        sink(RemoteEvent::Done(result));
    }

    /// Takes a piece, once there is room for it.
    fn hear(&self, event: CompletionEvent, heard: &mut Heard, sink: &mut RemoteSink) -> ControlFlow<()> {
        heard.first_at.get_or_insert_with(Instant::now);
        heard.n_pieces += 1;
        heard.n_bytes += match &event {
            CompletionEvent::Text(text) => {
                heard.text.push_str(text);
                text.len()
            }
            CompletionEvent::Thought(text) => text.len(),
            CompletionEvent::Call(piece) => piece.arguments.len() + 64,
            CompletionEvent::Logprobs(tokens) => {
                // They belong to the piece before.
                heard.n_pieces -= 1;
                64 * tokens.len()
            }
        };
        let (unread, interrupt) = (&self.job.unread, &self.job.request.interrupt);
        while unread.is_full() && !interrupt.is_set() {
            std::thread::sleep(LOOK_INTERVAL);
        }
        let goes_on = heard.n_bytes <= ANSWER_BYTES_MAX && !interrupt.is_set();
        unread.add();
        if goes_on && sink(RemoteEvent::Piece(event)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }

    fn end(&self, end: CompletionEnd, heard: Heard, began_at: Instant) -> RemoteEnd {
        let finish_reason = match end.finish_reason.as_deref() {
            Some("length") => FinishReason::Length,
            Some(_) => FinishReason::Stop,
            None if self.is_late.load(Ordering::Acquire) => FinishReason::Deadline,
            None => FinishReason::Cancelled,
        };
        // Where the other side does not count, a piece stands for a token.
        let usage =
            end.usage.unwrap_or(ruvllm_backend::Usage { completion_tokens: heard.n_pieces, ..Default::default() });
        let (n_prompt, n_answer) = (usage.prompt_tokens, usage.completion_tokens);
        let n_cached = usage.cached_tokens.min(n_prompt);
        let ms = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64() * 1e3;
        let first_at = heard.first_at.unwrap_or_else(Instant::now);
        let (prompt_ms, decode_ms) = (ms(began_at, first_at), ms(first_at, Instant::now()));
        let per_second = |n: usize, ms: f64| if ms > 0.0 { n as f64 * 1e3 / ms } else { 0.0 };
        let timings = Timings {
            queue_ms: ms(self.asked_at, began_at),
            prompt_ms,
            prompt_tps: per_second(n_prompt - n_cached, prompt_ms),
            cached_tokens: n_cached,
            decode_ms,
            decode_tps: per_second(n_answer.saturating_sub(1), decode_ms),
            ttft_ms: ms(self.asked_at, first_at),
            ..Timings::default()
        };
        RemoteEnd { text: heard.text, finish_reason, n_prompt, n_answer, timings }
    }

    /// Logs why the other server did not answer, and returns the error.
    fn failed(&self, error: BackendError) -> ApiError {
        tracing::warn!(model = &*self.inside.model.name, %error, "another server did not answer");
        error.into()
    }
}

/// Waits no longer than a request's time.
async fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Result<T, ApiError> {
    let Some(deadline) = deadline else { return Ok(future.await) };
    tokio::time::timeout_at(deadline.into(), future).await.map_err(|_| {
        let line = "the request's time was over before another server had answered it; allow more of it";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, line).code("timeout")
    })
}

fn broken() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the server's log tells more")
}
