//! Progress of fetching and loading, told to a function of JavaScript.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use napi::Status;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use ruvllm_hub::{Progress, Task};

/// Least time between two events of one task.
const INTERVAL: Duration = Duration::from_millis(50);

/// Function that progress is told to. It does not keep the process alive.
pub(crate) type OnProgress = ThreadsafeFunction<ProgressEvent, (), ProgressEvent, Status, false, true>;

/// State of a task of loading.
#[napi(object)]
pub struct ProgressEvent {
    /// Name of the task, such as `loading`.
    pub what: String,
    /// Bytes that are done.
    pub done: f64,
    /// All bytes, where their number is known.
    pub total: Option<f64>,
}

/// Listener that tells JavaScript.
pub(crate) struct Listener(pub(crate) Arc<OnProgress>);

impl Progress for Listener {
    fn begin(&self, what: &str, n_bytes: Option<u64>) -> Box<dyn Task> {
        let task = Told {
            on_progress: Arc::clone(&self.0),
            what: what.to_owned(),
            total: n_bytes,
            done: AtomicU64::new(0),
            told_at: Mutex::new(None),
        };
        task.tell(0);
        Box::new(task)
    }

    fn note(&self, _line: &str) {}
}

struct Told {
    on_progress: Arc<OnProgress>,
    what: String,
    total: Option<u64>,
    done: AtomicU64,
    told_at: Mutex<Option<Instant>>,
}

impl Told {
    /// Tells how much is done, unless it was told just now and more is to come.
    fn tell(&self, done: u64) {
        let mut told_at = self.told_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_last = self.total == Some(done);
        if !is_last && told_at.is_some_and(|at| at.elapsed() < INTERVAL) {
            return;
        }
        *told_at = Some(Instant::now());
        let total = self.total.map(|total| total as f64);
        let event = ProgressEvent { what: self.what.clone(), done: done as f64, total };
        self.on_progress.call(event, ThreadsafeFunctionCallMode::NonBlocking);
    }
}

impl Task for Told {
    fn set(&self, n_bytes: u64) {
        self.done.store(n_bytes, Ordering::Relaxed);
        self.tell(n_bytes);
    }

    fn add(&self, n_bytes: u64) {
        self.tell(self.done.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes);
    }
}
