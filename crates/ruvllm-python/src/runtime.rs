//! The threads that requests run on: one tokio runtime a process.

use std::sync::{Mutex, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};

use crate::error::Failure;

/// Threads of tokio; what computes has its own.
const N_THREADS: usize = 2;

/// Runtime with the process that it belongs to: after a fork its threads are gone.
static RUNTIME: Mutex<Option<(u32, &'static Runtime)>> = Mutex::new(None);

/// Returns the runtime of this process, starting it the first time. It is never stopped: Python's exit ends it.
///
/// # Errors
/// The system starts no threads.
pub(crate) fn handle() -> Result<Handle, Failure> {
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if let Some((of, runtime)) = *runtime
        && of == pid
    {
        return Ok(runtime.handle().clone());
    }
    let made = tokio::runtime::Builder::new_multi_thread().worker_threads(N_THREADS).enable_all().build();
    let made = made.map_err(|error| Failure::Internal(format!("cannot start the threads of requests: {error}")))?;
    // That of the parent process is left as it is: to stop it would wait for threads that are not there.
    let (_, made) = runtime.insert((pid, Box::leak(Box::new(made))));
    Ok(made.handle().clone())
}

/// Whether the interpreter is ending; read while a thread of ours calls into it.
static IS_ENDING: RwLock<bool> = RwLock::new(false);
/// Longest time that the end waits for calls that are under way.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// Calls into the interpreter from a thread of ours, unless it is ending: a thread that is inside when the interpreter goes would
/// take the process along.
pub(crate) fn tell(work: impl FnOnce(Python<'_>)) {
    let is_ending = IS_ENDING.read().unwrap_or_else(PoisonError::into_inner);
    if !*is_ending {
        Python::try_attach(work);
    }
}

/// Ends calls into the interpreter from threads of ours, and waits for those that are under way; for the end of the interpreter.
#[pyfunction]
pub fn end(py: Python<'_>) {
    py.detach(|| {
        let start = Instant::now();
        loop {
            match IS_ENDING.try_write() {
                Ok(mut is_ending) => return *is_ending = true,
                Err(TryLockError::Poisoned(poisoned)) => return *poisoned.into_inner() = true,
                // In a child of the process, a thread that is not there may hold it.
                Err(TryLockError::WouldBlock) if start.elapsed() > END_TIMEOUT => return,
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    });
}

/// Value that threads of one process have a part in. A child of that process has a copy without the threads, whose locks may be held for
/// ever: there it is neither used nor dropped.
pub(crate) struct OfProcess<T> {
    pid: u32,
    /// There until it is dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    /// Takes a value of this process.
    pub(crate) fn new(value: T) -> OfProcess<T> {
        OfProcess { pid: std::process::id(), value: Some(value) }
    }

    /// Returns the value.
    ///
    /// # Errors
    /// This process is a child of the one that made it.
    pub(crate) fn get(&self) -> Result<&T, Failure> {
        if self.pid != std::process::id() {
            let line = "this was made before the process was forked, and its threads did not come along; load an engine in the \
                        process that uses it";
            return Err(Failure::Internal(line.to_owned()));
        }
        Ok(self.value.as_ref().expect("it is there until it is dropped"))
    }

    /// Takes the value out; `None` in a child, which leaves it as it is.
    pub(crate) fn take(&mut self) -> Option<T> {
        let is_own = self.pid == std::process::id();
        let value = self.value.take();
        if is_own {
            return value;
        }
        std::mem::forget(value);
        None
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}
