//! Progress of fetching and loading, told to a function of Python.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use ruvllm_hub::{Progress, Task};

use crate::runtime;

/// Least time between two calls about one task.
const INTERVAL: Duration = Duration::from_millis(50);

/// Listener that tells a function, called with the name of the task, the bytes that are done and all bytes, where their number is
/// known.
pub(crate) struct Listener(pub(crate) Arc<Py<PyAny>>);

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
    on_progress: Arc<Py<PyAny>>,
    what: String,
    total: Option<u64>,
    done: AtomicU64,
    told_at: Mutex<Option<Instant>>,
}

impl Told {
    /// Tells how much is done, unless it was told just now and more is to come.
    fn tell(&self, done: u64) {
        {
            let mut told_at = self.told_at.lock().unwrap_or_else(PoisonError::into_inner);
            let is_last = self.total == Some(done);
            if !is_last && told_at.is_some_and(|at| at.elapsed() < INTERVAL) {
                return;
            }
            *told_at = Some(Instant::now());
        }
        runtime::tell(|py| {
            if let Err(error) = self.on_progress.call1(py, (&self.what, done, self.total)) {
                error.write_unraisable(py, None);
            }
        });
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
