//! Something that takes time, for threads that wait and for event loops.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use tokio::task::AbortHandle;

use crate::error::Failure;
use crate::runtime::{self, OfProcess};

/// Interval in which a thread that waits looks whether a signal came, such as that of Ctrl-C.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Makes Python's value of what a future gave.
type Convert = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

type Work = Pin<Box<dyn Future<Output = Convert> + Send>>;

/// Something that takes time.
#[pyclass(frozen, module = "ruvllm._native")]
pub struct Pending(OfProcess<Mutex<State>>);

enum State {
    Made(Work),
    Told(AbortHandle),
    Taken,
}

impl Pending {
    /// Makes one of a future and of what turns its result into Python's.
    pub(crate) fn new<T, O, F>(
        future: impl Future<Output = Result<T, Failure>> + Send + 'static,
        into_python: F,
    ) -> Pending
    where
        T: Send + 'static,
        F: FnOnce(Python<'_>, T) -> PyResult<O> + Send + 'static,
        O: for<'py> IntoPyObject<'py>,
    {
        let work = async move {
            let convert: Convert = match caught(future).await {
                Ok(value) => Box::new(move |py| into_python(py, value)?.into_py_any(py)),
                Err(failure) => Box::new(move |_| Err(failure.into())),
            };
            convert
        };
        Pending(OfProcess::new(Mutex::new(State::Made(Box::pin(work)))))
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, Failure> {
        Ok(self.0.get()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self) -> Result<Work, Failure> {
        let mut state = self.state()?;
        match std::mem::replace(&mut *state, State::Taken) {
            State::Made(work) => Ok(work),
            other => {
                *state = other;
                Err(Failure::Internal("it is waited for once".to_owned()))
            }
        }
    }
}

#[pymethods]
impl Pending {
    /// Waits for it on this thread and returns it; other threads of Python run meanwhile. A signal ends the waiting as its handler says.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (mut work, handle) = (self.take()?, runtime::handle()?);
        loop {
            let waiting = || handle.block_on(async { tokio::time::timeout(SIGNAL_INTERVAL, &mut work).await });
            match py.detach(waiting) {
                Ok(convert) => return convert(py),
                Err(_) => py.check_signals()?,
            }
        }
    }

    /// Begins it, and has `callback` called with its value and `None`, or `None` and an exception, on another thread.
    fn then(&self, callback: Py<PyAny>) -> PyResult<()> {
        let (work, handle) = (self.take()?, runtime::handle()?);
        let task = handle.spawn(async move {
            let convert = work.await;
            runtime::tell(|py| {
                let told = match convert(py) {
                    Ok(value) => callback.call1(py, (value, py.None())),
                    Err(error) => callback.call1(py, (py.None(), error.into_value(py))),
                };
                if let Err(error) = told {
                    error.write_unraisable(py, None);
                }
            });
        });
        *self.state()? = State::Told(task.abort_handle());
        Ok(())
    }

    /// Ends it; nobody is told.
    fn cancel(&self) {
        // A child of the process that asked has no part in it.
        let Ok(mut state) = self.state() else { return };
        if let State::Told(task) = &*state {
            task.abort();
        }
        *state = State::Taken;
    }
}

/// Waits for a future, whose panic is an error.
async fn caught<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let mut future = std::pin::pin!(future);
    poll_fn(|cx| {
        catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))).unwrap_or_else(|_| {
            Poll::Ready(Err(Failure::Internal("internal error; standard error tells where".to_owned())))
        })
    })
    .await
}
