//! Progress of long work, told to whoever shows it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Listener to long work. A program shows it as bars or lines; [`Silent`] shows nothing.
pub trait Progress: Sync {
    /// Begins work of `n_bytes`, or of unknown length. The work is over when the task is dropped.
    fn begin(&self, what: &str, n_bytes: Option<u64>) -> Box<dyn Task>;

    /// Tells something that is no part of the answer.
    fn note(&self, line: &str);

    /// Tells something that changes the answer.
    fn warn(&self, line: &str) {
        self.note(line);
    }
}

/// Work under way.
pub trait Task {
    /// Sets how many bytes are done.
    fn set(&self, n_bytes: u64);

    /// Adds bytes that are done.
    fn add(&self, n_bytes: u64);
}

/// Progress that nobody looks at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _what: &str, _n_bytes: Option<u64>) -> Box<dyn Task> {
        Box::new(Silent)
    }

    fn note(&self, _line: &str) {}
}

impl Task for Silent {
    fn set(&self, _n_bytes: u64) {}

    fn add(&self, _n_bytes: u64) {}
}

/// Least time between two calls of [`ProgressCalls`] about one task.
const CALL_INTERVAL: Duration = Duration::from_millis(50);

/// State of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step<'a> {
    /// Name of the work, such as `loading`.
    pub what: &'a str,
    /// Bytes that are done.
    pub done: u64,
    /// All bytes, where their number is known.
    pub total: Option<u64>,
}

/// Listener that calls a function, at most twenty times a second for one piece of work, and at its end.
///
/// ```
/// use ruvllm_hub::{Progress, ProgressCalls, Step};
///
/// let calls = ProgressCalls::new(|Step { what, done, total }: Step<'_>| println!("{what}: {done} of {total:?}"));
/// calls.begin("loading", Some(10)).add(10);
/// ```
pub struct ProgressCalls(Arc<dyn Fn(Step<'_>) + Send + Sync>);

impl ProgressCalls {
    /// Makes a listener of a function.
    pub fn new(call: impl Fn(Step<'_>) + Send + Sync + 'static) -> ProgressCalls {
        ProgressCalls(Arc::new(call))
    }
}

impl fmt::Debug for ProgressCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressCalls").finish_non_exhaustive()
    }
}

impl Progress for ProgressCalls {
    fn begin(&self, what: &str, n_bytes: Option<u64>) -> Box<dyn Task> {
        let task = CalledTask {
            call: Arc::clone(&self.0),
            what: what.to_owned(),
            total: n_bytes,
            done: AtomicU64::new(0),
            called_at: Mutex::new(None),
        };
        task.tell(0);
        Box::new(task)
    }

    fn note(&self, _line: &str) {}
}

struct CalledTask {
    call: Arc<dyn Fn(Step<'_>) + Send + Sync>,
    what: String,
    total: Option<u64>,
    done: AtomicU64,
    called_at: Mutex<Option<Instant>>,
}

impl CalledTask {
    /// Tells how much is done, unless it was told just now and more is to come.
    fn tell(&self, done: u64) {
        {
            let mut called_at = self.called_at.lock().unwrap_or_else(PoisonError::into_inner);
            let is_last = self.total == Some(done);
            if !is_last && called_at.is_some_and(|at| at.elapsed() < CALL_INTERVAL) {
                return;
            }
            *called_at = Some(Instant::now());
        }
        (self.call)(Step { what: &self.what, done, total: self.total });
    }
}

impl Task for CalledTask {
    fn set(&self, n_bytes: u64) {
        self.done.store(n_bytes, Ordering::Relaxed);
        self.tell(n_bytes);
    }

    fn add(&self, n_bytes: u64) {
        self.tell(self.done.fetch_add(n_bytes, Ordering::Relaxed) + n_bytes);
    }
}
