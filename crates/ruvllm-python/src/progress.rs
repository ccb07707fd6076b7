//! Progress of fetching and loading, told to a function of Python.

use pyo3::prelude::*;
use ruvllm_hub::{ProgressCalls, Step};

use crate::runtime;

/// Makes a listener that tells a function, called with the name of the task, the bytes that are done and all bytes, where their number
/// is known.
pub(crate) fn listener(on_progress: Py<PyAny>) -> ProgressCalls {
    ProgressCalls::new(move |Step { what, done, total }: Step<'_>| {
        runtime::tell(|py| {
            if let Err(error) = on_progress.call1(py, (what, done, total)) {
                error.write_unraisable(py, None);
            }
        });
    })
}
