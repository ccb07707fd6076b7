//! The threads that requests run on: one tokio runtime a process.

use std::sync::{Mutex, PoisonError};

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

/// Checks that this is the process that something was made in.
///
/// # Errors
/// It is a child of that one.
pub(crate) fn check_process(pid: u32) -> Result<(), Failure> {
    match pid == std::process::id() {
        true => Ok(()),
        false => Err(Failure::Internal(
            "the engine was loaded before this process was forked, and its threads did not come along; load it in the \
             process that uses it"
                .to_owned(),
        )),
    }
}
