//! What an engine does, under the names that llama.cpp's server has: dashboards that were made for that read them.

use metrics::{Counter, Gauge};
use ruvllm_engine::Step;

use crate::metrics::{CameTo, Metrics, Type};

/// Every metric and what it tells.
pub(super) const HELP: &[(Type, &str, &str)] = &[
    (Type::Counter, "llamacpp:prompt_tokens_total", "tokens of prompts that were computed"),
    (Type::Gauge, "llamacpp:prompt_seconds_total", "seconds that prompts took"),
    (Type::Counter, "llamacpp:tokens_predicted_total", "tokens written"),
    (Type::Gauge, "llamacpp:tokens_predicted_seconds_total", "seconds that writing took"),
    (Type::Counter, "llamacpp:n_decode_total", "steps of the model"),
    (Type::Gauge, "llamacpp:n_busy_slots_per_decode", "requests computed together in the last step"),
    (Type::Gauge, "llamacpp:prompt_tokens_seconds", "tokens of the last prompt computed in a second"),
    (Type::Gauge, "llamacpp:predicted_tokens_seconds", "tokens of the last answer written in a second"),
    (Type::Gauge, "llamacpp:requests_processing", "requests that run"),
    (Type::Gauge, "llamacpp:requests_deferred", "requests that wait"),
];

/// Writes what an engine does under llama.cpp's names.
pub(super) struct LlamaCppObserver {
    prompt_tokens: Counter,
    prompt_seconds: Gauge,
    tokens: Counter,
    token_seconds: Gauge,
    steps: Counter,
    busy: Gauge,
    prompt_rate: Gauge,
    token_rate: Gauge,
    running: Gauge,
    waiting: Gauge,
}

impl LlamaCppObserver {
    /// Makes the observer of a model's engine.
    pub(super) fn new(metrics: &Metrics, model: &str) -> LlamaCppObserver {
        let label = ("model", model);
        let (counter, gauge) = (|name| metrics.counter(name, &[label]), |name| metrics.gauge(name, &[label]));
        LlamaCppObserver {
            prompt_tokens: counter("llamacpp:prompt_tokens_total"),
            prompt_seconds: gauge("llamacpp:prompt_seconds_total"),
            tokens: counter("llamacpp:tokens_predicted_total"),
            token_seconds: gauge("llamacpp:tokens_predicted_seconds_total"),
            steps: counter("llamacpp:n_decode_total"),
            busy: gauge("llamacpp:n_busy_slots_per_decode"),
            prompt_rate: gauge("llamacpp:prompt_tokens_seconds"),
            token_rate: gauge("llamacpp:predicted_tokens_seconds"),
            running: gauge("llamacpp:requests_processing"),
            waiting: gauge("llamacpp:requests_deferred"),
        }
    }

    /// Takes note of a step.
    pub(super) fn step(&self, step: &Step<'_>) {
        self.steps.increment(1);
        self.busy.set(step.n_batch as f64);
    }

    /// Takes note of how many requests run and wait.
    pub(super) fn waits(&self, n_running: usize, n_waiting: usize) {
        self.running.set(n_running as f64);
        self.waiting.set(n_waiting as f64);
    }

    /// Takes note of an answer that is over.
    pub(super) fn done(&self, came: &CameTo<'_>) {
        let &CameTo { timings: times, n_prompt, n_answer } = came;
        self.prompt_tokens.increment(n_prompt.saturating_sub(times.cached_tokens) as u64);
        self.prompt_seconds.increment(times.prompt_ms / 1e3);
        self.tokens.increment(n_answer as u64);
        self.token_seconds.increment(times.decode_ms / 1e3);
        self.prompt_rate.set(times.prompt_tps);
        self.token_rate.set(times.decode_tps);
    }
}
