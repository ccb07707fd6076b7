//! Progress of long work, told to whoever shows it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

    /// Returns whether nobody wants the work's result any more. Work that takes long looks at it and ends with an error.
    fn is_cancelled(&self) -> bool {
        false
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
pub struct ProgressCalls {
    call: Arc<dyn Fn(Step<'_>) + Send + Sync>,
    is_cancelled: Arc<AtomicBool>,
}

impl ProgressCalls {
    /// Makes a listener of a function.
    pub fn new(call: impl Fn(Step<'_>) + Send + Sync + 'static) -> ProgressCalls {
        ProgressCalls { call: Arc::new(call), is_cancelled: Arc::default() }
    }

    /// Takes the flag by which the work is ended from outside.
    pub fn until(self, is_cancelled: Arc<AtomicBool>) -> ProgressCalls {
        ProgressCalls { is_cancelled, ..self }
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
            call: Arc::clone(&self.call),
            what: what.to_owned(),
            total: n_bytes,
            done: AtomicU64::new(0),
            called: Mutex::new(None),
        };
        task.tell(0);
        Box::new(task)
    }

    fn note(&self, _line: &str) {}

    fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }
}

struct CalledTask {
    call: Arc<dyn Fn(Step<'_>) + Send + Sync>,
    what: String,
    total: Option<u64>,
    done: AtomicU64,
    /// The last call: when it was, and what it told.
    called: Mutex<Option<(Instant, u64)>>,
}

impl CalledTask {
    /// Tells how much is done, unless it was told just now and more is to come.
    fn tell(&self, done: u64) {
        {
            let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
            let is_last = self.total == Some(done);
            if !is_last && called.is_some_and(|(at, _)| at.elapsed() < CALL_INTERVAL) {
                return;
            }
            *called = Some((Instant::now(), done));
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

impl Drop for CalledTask {
    /// Tells what was done at last, where the last call was too early for it.
    fn drop(&mut self) {
        let done = *self.done.get_mut();
        let told = *self.called.get_mut().unwrap_or_else(PoisonError::into_inner);
        if told.is_some_and(|(_, told)| told != done) {
            (self.call)(Step { what: &self.what, done, total: self.total });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a listener hears of a piece of work.
    fn heard(total: Option<u64>, work: impl Fn(&dyn Task)) -> Vec<u64> {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let listener = Arc::clone(&heard);
        let calls = ProgressCalls::new(move |step: Step<'_>| listener.lock().expect("no panic").push(step.done));
        work(&*calls.begin("loading", total));
        drop(calls);
        Arc::into_inner(heard).expect("the work is over").into_inner().expect("no panic")
    }

    #[test]
    fn the_last_state_is_told_however_fast_it_came() {
        assert_eq!(heard(Some(3), |task| (0..3).for_each(|_| task.add(1))), [0, 3]);
        assert_eq!(heard(None, |task| (0..3).for_each(|_| task.add(1))), [0, 3]);
        assert_eq!(heard(Some(9), |task| task.set(5)), [0, 5]);
        assert_eq!(heard(Some(9), |_| ()), [0]);
    }

    #[test]
    fn a_flag_cancels() {
        let flag = Arc::new(AtomicBool::new(false));
        let calls = ProgressCalls::new(|_: Step<'_>| ()).until(Arc::clone(&flag));
        assert!(!calls.is_cancelled());
        flag.store(true, Ordering::Relaxed);
        assert!(calls.is_cancelled() && !Silent.is_cancelled());
    }
}
