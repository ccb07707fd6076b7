//! Observers of a service.

use std::time::Duration;

use crate::EngineError;
use crate::request::GenerationSummary;

/// A step, when it is over.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Time that it took.
    pub took: Duration,
    /// Requests whose tokens it computed together.
    pub n_batch: usize,
    /// Requests that run after it.
    pub n_running: usize,
    /// Requests that wait after it.
    pub n_waiting: usize,
    /// For each token that was not its request's first: how long after the one before.
    pub gaps: &'a [Duration],
}

/// Is told what happens, on the owner's thread: it must not block.
pub trait Observer: Send {
    /// A step that computed something is over.
    fn step(&mut self, step: &Step<'_>);

    /// A request is over.
    fn done(&mut self, result: &Result<GenerationSummary, EngineError>);
}

/// Observes nothing.
impl Observer for () {
    fn step(&mut self, _: &Step<'_>) {}

    fn done(&mut self, _: &Result<GenerationSummary, EngineError>) {}
}
