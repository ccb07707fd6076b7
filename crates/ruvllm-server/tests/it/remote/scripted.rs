//! A backend that answers as a script says.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use ruvllm_backend::{BackendError, CompletionEnd, CompletionEvent, CompletionRequest, Completions, DeviceInfo, Usage};

/// Act of the server on a request.
pub(super) enum Act {
    /// Tells these pieces, and ends for this reason.
    Answer(Vec<CompletionEvent>, &'static str, Option<Usage>),
    /// Fails.
    Fail(BackendError),
    /// Says nothing until it is given up, or told to go on.
    Wait,
}

#[derive(Default)]
struct State {
    acts: VecDeque<Act>,
    n_asked: usize,
    n_given_up: usize,
    goes_on: bool,
}

/// A backend with a script.
pub(super) struct Scripted {
    device: DeviceInfo,
    state: Mutex<State>,
    changed: Condvar,
}

impl Scripted {
    pub(super) fn new(acts: impl IntoIterator<Item = Act>) -> Scripted {
        let device = DeviceInfo { backend: "remote", name: "http://u".to_owned(), n_threads: 0 };
        let state = State { acts: acts.into_iter().collect(), ..State::default() };
        Scripted { device, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with it")
    }

    fn wait_until(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let waited = self.changed.wait_timeout_while(self.lock(), Duration::from_secs(20), |state| !is_so(state));
        assert!(!waited.expect("no test panics with it").1.timed_out(), "{what}");
    }

    pub(super) fn wait_until_asked(&self, n: usize) {
        self.wait_until("it is asked", |state| state.n_asked >= n);
    }

    pub(super) fn wait_until_given_up(&self, n: usize) {
        self.wait_until("the request is given up", |state| state.n_given_up >= n);
    }

    pub(super) fn n_asked(&self) -> usize {
        self.lock().n_asked
    }

    /// Lets requests that wait end.
    pub(super) fn go_on(&self) {
        self.lock().goes_on = true;
    }
}

impl Completions for Scripted {
    fn info(&self) -> (&str, &DeviceInfo) {
        ("scripted", &self.device)
    }

    fn generate(
        &self,
        request: &CompletionRequest,
        each: &mut dyn FnMut(CompletionEvent) -> ControlFlow<()>,
    ) -> Result<CompletionEnd, BackendError> {
        let act = {
            let mut state = self.lock();
            state.n_asked += 1;
            state.acts.pop_front().expect("the script goes on")
        };
        self.changed.notify_all();
        let end = |finish_reason: Option<&str>, usage| {
            Ok(CompletionEnd { finish_reason: finish_reason.map(str::to_owned), usage, model: "scripted".to_owned() })
        };
        match act {
            Act::Fail(error) => Err(error),
            Act::Answer(events, reason, usage) => match events.into_iter().try_for_each(each) {
                ControlFlow::Continue(()) => end(Some(reason), usage),
                ControlFlow::Break(()) => end(None, usage),
            },
            Act::Wait => loop {
                if request.interrupt.is_set() {
                    self.lock().n_given_up += 1;
                    self.changed.notify_all();
                    return end(None, None);
                }
                if self.lock().goes_on {
                    return end(Some("stop"), None);
                }
                std::thread::sleep(Duration::from_millis(2));
            },
        }
    }

    fn embed(&self, texts: &[String]) -> Result<Vec<Vec<f32>>, BackendError> {
        self.lock().n_asked += 1;
        Ok(texts.iter().map(|_| vec![1.0]).collect())
    }
}
