//! Progress of fetching and loading, told to a function of JavaScript.

use napi::Status;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi_derive::napi;
use ruvllm_hub::{ProgressCalls, Step};

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

/// Makes a listener that tells JavaScript.
pub(crate) fn listener(on_progress: OnProgress) -> ProgressCalls {
    ProgressCalls::new(move |Step { what, done, total }: Step<'_>| {
        let total = total.map(|total| total as f64);
        let event = ProgressEvent { what: what.to_owned(), done: done as f64, total };
        on_progress.call(event, ThreadsafeFunctionCallMode::NonBlocking);
    })
}
