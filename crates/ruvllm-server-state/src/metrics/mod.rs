//! What `/metrics` tells, in Prometheus' text format.

mod llamacpp;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use ruvllm_engine::{DraftSources, EngineError, GenerationSummary, Observer, ServiceStats, Step, Timings};
use ruvllm_lora::manager::ManagerStats;
use ruvllm_sona::witness::LogStats;

use llamacpp::LlamaCppObserver;

/// Bounds of the histograms of times, in seconds.
const SECONDS: [f64; 18] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
/// Bounds of the histogram of batch sizes.
const SIZES: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0];

const METADATA: Metadata<'static> = Metadata::new("ruvllm", Level::INFO, None);

/// Every metric: its name and what it tells. What an engine does has the label `model`.
const HELP: &[(Type, &str, &str)] = &[
    (Type::Counter, "ruvllm_http_requests_total", "requests answered, by path and status"),
    (Type::Counter, "ruvllm_rejected_total", "requests refused or failed, by the reason"),
    (Type::Counter, "ruvllm_finished_total", "requests of the engine that are over, by the reason"),
    (Type::Counter, "ruvllm_prompt_tokens_total", "tokens of prompts"),
    (Type::Counter, "ruvllm_cached_tokens_total", "tokens of prompts that were cached"),
    (Type::Counter, "ruvllm_generated_tokens_total", "tokens written"),
    (Type::Counter, "ruvllm_spec_draft_tokens_total", "draft tokens of speculative decoding"),
    (Type::Counter, "ruvllm_spec_accepted_tokens_total", "draft tokens that the model accepted"),
    (
        Type::Counter,
        "ruvllm_spec_source_draft_tokens_total",
        "draft tokens by source: context (the request's own text), history (earlier texts of the tenant) or model (the draft model)",
    ),
    (Type::Counter, "ruvllm_spec_source_accepted_tokens_total", "draft tokens that the model accepted, by source"),
    (Type::Gauge, "ruvllm_spec_history_bytes", "bytes of earlier prompts and answers that drafts are made of"),
    (
        Type::Counter,
        "ruvllm_guessed_tokens_total",
        "deprecated: now ruvllm_spec_draft_tokens_total and ruvllm_spec_accepted_tokens_total",
    ),
    (Type::Counter, "ruvllm_computed_tokens_total", "tokens computed, of prompts and answers"),
    (Type::Counter, "ruvllm_preemptions_total", "preemptions: times that a request gave its memory to another"),
    (Type::Counter, "ruvllm_cache_lookups_total", "looks into the prefix cache, by what was found"),
    (Type::Counter, "ruvllm_cache_evictions_total", "cached blocks given up for others"),
    (Type::Counter, "ruvllm_model_loads_total", "how often a model was loaded"),
    (Type::Gauge, "ruvllm_model_loaded", "1 while a model is loaded"),
    (
        Type::Counter,
        "ruvllm_adapter_requests_total",
        "adapters asked for, by whether they were hot or had to be loaded",
    ),
    (Type::Counter, "ruvllm_adapter_evictions_total", "adapters that were evicted for others"),
    (Type::Gauge, "ruvllm_adapters", "adapters that are known, by tier: hot, warm (files mapped) or cold"),
    (Type::Gauge, "ruvllm_adapter_bytes", "bytes of hot adapters, those in use that were replaced among them"),
    (Type::Gauge, "ruvllm_adapter_committed_bytes", "bytes of the memory for keys and values that adapters have"),
    (Type::Gauge, "ruvllm_adapter_bytes_max", "bytes that hot adapters may take"),
    (Type::Counter, "ruvllm_witness_records_total", "records that the witness log has written"),
    (Type::Counter, "ruvllm_witness_lost_total", "records that found its queue full; the chain counts them too"),
    (
        Type::Counter,
        "ruvllm_witness_failed_batches_total",
        "batches that could not be written and wait, or whose anchor could not",
    ),
    (Type::Gauge, "ruvllm_witness_waiting", "records that wait to be written"),
    (
        Type::Gauge,
        "ruvllm_witness_unrecorded",
        "answers that are not on record because the log cannot be written; 0 when it can",
    ),
    (Type::Counter, "ruvllm_sessions_unsaved_total", "turns of sessions that could not be saved"),
    (Type::Gauge, "ruvllm_build_info", "1, with the version as its label"),
    (Type::Counter, "ruvllm_responses_unsaved_total", "answers that were to be kept and could not be"),
    (
        Type::Counter,
        "ruvllm_batch_requests_total",
        "requests of batches that were answered, by the outcome: completed or failed",
    ),
    (Type::Gauge, "ruvllm_batch_requests_waiting", "requests of batches that wait or are being answered"),
    (
        Type::Counter,
        "ruvllm_mcp_calls_total",
        "calls of tools of MCP servers, by server and outcome: ran, failed, denied or cancelled",
    ),
    (Type::Gauge, "ruvllm_connections", "open connections"),
    (Type::Gauge, "ruvllm_requests_running", "requests that run"),
    (Type::Gauge, "ruvllm_requests_waiting", "requests that wait"),
    (Type::Gauge, "ruvllm_kv_bytes", "bytes of keys and values that somebody holds, by format"),
    (Type::Gauge, "ruvllm_kv_committed_bytes", "bytes of keys and values that may be memory"),
    (Type::Gauge, "ruvllm_kv_blocks", "blocks of keys and values, by who holds them"),
    (Type::Seconds, "ruvllm_ttft_seconds", "from the request to its first token"),
    (Type::Seconds, "ruvllm_inter_token_seconds", "from a token of a request to its next"),
    (Type::Seconds, "ruvllm_queue_seconds", "from the request to its first step"),
    (Type::Seconds, "ruvllm_step_seconds", "a step of the model"),
    (Type::Seconds, "ruvllm_http_request_seconds", "from the head of a request to the end of its answer, by path"),
    (Type::Sizes, "ruvllm_batch_size", "requests computed together in a step"),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Type {
    Counter,
    Gauge,
    Seconds,
    Sizes,
}

/// All metrics of a server.
pub struct Metrics {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    process: metrics_process::Collector,
    /// By path and status: looked up for every request.
    requests: Mutex<HashMap<(&'static str, u16), Answered>>,
}

/// What answered requests are counted by.
struct Answered {
    n: Counter,
    seconds: Histogram,
}

impl Default for Metrics {
    /// Returns metrics of which nothing is counted yet.
    fn default() -> Metrics {
        let mut builder = PrometheusBuilder::new();
        for (ty, name, _) in HELP.iter().filter(|(ty, ..)| matches!(ty, Type::Seconds | Type::Sizes)) {
            let bounds: &[f64] = if *ty == Type::Seconds { &SECONDS } else { &SIZES };
            let matcher = Matcher::Full((*name).to_owned());
            builder = builder.set_buckets_for_metric(matcher, bounds).expect("there are bounds");
        }
        let recorder = builder.build_recorder();
        for (ty, name, help) in HELP.iter().chain(llamacpp::HELP) {
            match ty {
                Type::Counter => recorder.describe_counter((*name).into(), None, (*help).into()),
                Type::Gauge => recorder.describe_gauge((*name).into(), None, (*help).into()),
                Type::Seconds | Type::Sizes => recorder.describe_histogram((*name).into(), None, (*help).into()),
            }
        }
        let (handle, process) = (recorder.handle(), metrics_process::Collector::default());
        metrics::with_local_recorder(&recorder, || process.describe());
        let metrics = Metrics { recorder, handle, process, requests: Mutex::default() };
        metrics.gauge("ruvllm_build_info", &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        metrics
    }
}

impl Metrics {
    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.recorder.register_counter(&key(name, labels), &METADATA)
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.recorder.register_histogram(&key(name, labels), &METADATA)
    }

    /// Counts an answered request.
    pub fn answered(&self, path: &'static str, status: u16, seconds: f64) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = requests.entry((path, status)).or_insert_with(|| {
            let (status, seconds) = (status.to_string(), "ruvllm_http_request_seconds");
            let n = self.counter("ruvllm_http_requests_total", &[("path", path), ("status", &status)]);
            Answered { n, seconds: self.histogram(seconds, &[("path", path)]) }
        });
        answered.n.increment(1);
        answered.seconds.record(seconds);
    }

    /// Counts a request that was refused or failed.
    pub fn rejected(&self, reason: &str) {
        self.counter("ruvllm_rejected_total", &[("reason", reason)]).increment(1);
    }

    /// Counts a request of a batch that was answered.
    pub fn batched(&self, is_completed: bool) {
        let outcome = if is_completed { "completed" } else { "failed" };
        self.counter("ruvllm_batch_requests_total", &[("outcome", outcome)]).increment(1);
    }

    /// Counts a call of a tool of an MCP server.
    pub fn mcp_called(&self, server: &str, outcome: &str) {
        self.counter("ruvllm_mcp_calls_total", &[("server", server), ("outcome", outcome)]).increment(1);
    }

    /// Tells how many requests of batches are left.
    pub fn batches(&self, n: usize) {
        self.gauge("ruvllm_batch_requests_waiting", &[]).set(n as f64);
    }

    /// Tells how many connections are open.
    pub fn connections(&self, n: usize) {
        self.gauge("ruvllm_connections", &[]).set(n as f64);
    }

    /// Takes note that a model was loaded.
    pub fn loaded(&self, model: &str) {
        self.counter("ruvllm_model_loads_total", &[("model", model)]).increment(1);
        self.gauge("ruvllm_model_loaded", &[("model", model)]).set(1.0);
    }

    /// Takes note that a model is there no more, and with it whatever it held.
    pub fn unloaded(&self, model: &str, last: &ServiceStats) {
        self.gauge("ruvllm_model_loaded", &[("model", model)]).set(0.0);
        let kv_bytes = last.kv_bytes.iter().map(|&(format, _)| (format, 0)).collect();
        let nothing = ServiceStats { kv_bytes, ..ServiceStats::default() };
        self.tell(model, &nothing, &nothing);
        self.tell_adapters(model, &ManagerStats::default(), &ManagerStats::default());
    }

    /// Returns what observes the engine of a model.
    pub fn observer(&self, model: &str) -> EngineObserver {
        let label = ("model", model);
        let finished = |reason| self.counter("ruvllm_finished_total", &[label, ("reason", reason)]);
        EngineObserver {
            of_llamacpp: LlamaCppObserver::new(self, model),
            ttft: self.histogram("ruvllm_ttft_seconds", &[label]),
            gap: self.histogram("ruvllm_inter_token_seconds", &[label]),
            queue: self.histogram("ruvllm_queue_seconds", &[label]),
            step: self.histogram("ruvllm_step_seconds", &[label]),
            batch: self.histogram("ruvllm_batch_size", &[label]),
            prompt_tokens: self.counter("ruvllm_prompt_tokens_total", &[label]),
            cached_tokens: self.counter("ruvllm_cached_tokens_total", &[label]),
            generated_tokens: self.counter("ruvllm_generated_tokens_total", &[label]),
            drafted: self.counter("ruvllm_spec_draft_tokens_total", &[label]),
            accepted: self.counter("ruvllm_spec_accepted_tokens_total", &[label]),
            by_source: DraftSources::default().by_name().map(|(source, _)| {
                let labels = [label, ("source", source)];
                let drafted = self.counter("ruvllm_spec_source_draft_tokens_total", &labels);
                (drafted, self.counter("ruvllm_spec_source_accepted_tokens_total", &labels))
            }),
            right_guesses: self.counter("ruvllm_guessed_tokens_total", &[label, ("guess", "right")]),
            wrong_guesses: self.counter("ruvllm_guessed_tokens_total", &[label, ("guess", "wrong")]),
            finished: ["stop", "length", "cancelled", "deadline", "error"].map(|reason| (reason, finished(reason))),
            running: self.gauge("ruvllm_requests_running", &[label]),
            waiting: self.gauge("ruvllm_requests_waiting", &[label]),
        }
    }

    /// Tells what a model's engine does `now`; `before` it was told the last time.
    pub fn tell(&self, model: &str, now: &ServiceStats, before: &ServiceStats) {
        let label = ("model", model);
        self.gauge("ruvllm_requests_running", &[label]).set(now.n_running as f64);
        self.gauge("ruvllm_requests_waiting", &[label]).set(now.n_waiting as f64);
        LlamaCppObserver::new(self, model).waits(now.n_running, now.n_waiting);
        for &(format, bytes) in &now.kv_bytes {
            self.gauge("ruvllm_kv_bytes", &[label, ("format", format)]).set(bytes as f64);
        }
        self.gauge("ruvllm_kv_committed_bytes", &[label]).set(now.kv.committed_bytes as f64);
        self.gauge("ruvllm_spec_history_bytes", &[label]).set(now.history_bytes as f64);
        let blocks = [("free", now.kv.free), ("cached", now.kv.cached_only), ("in_use", now.kv.in_use)];
        for (state, n) in blocks {
            self.gauge("ruvllm_kv_blocks", &[label, ("state", state)]).set(n as f64);
        }
        let count = |name, labels: &[(&'static str, &str)], now: u64, before: u64| {
            self.counter(name, labels).increment(now.saturating_sub(before));
        };
        let (new, old) = (&now.scheduler, &before.scheduler);
        count("ruvllm_computed_tokens_total", &[label], new.n_tokens, old.n_tokens);
        count("ruvllm_preemptions_total", &[label], new.n_preemptions, old.n_preemptions);
        if let Some(new) = &now.cache {
            let old = before.cache.unwrap_or_default();
            let found =
                [("all", new.full, old.full), ("some", new.partial, old.partial), ("none", new.misses, old.misses)];
            for (found, new, old) in found {
                count("ruvllm_cache_lookups_total", &[label, ("found", found)], new, old);
            }
            count("ruvllm_cache_evictions_total", &[label], new.evictions, old.evictions);
        }
    }

    /// Tells what a model's adapters do `now`; `before` it was told the last time.
    pub fn tell_adapters(&self, model: &str, now: &ManagerStats, before: &ManagerStats) {
        let label = ("model", model);
        for (tier, n) in [("hot", now.n_hot), ("warm", now.n_warm), ("cold", now.n_cold)] {
            self.gauge("ruvllm_adapters", &[label, ("tier", tier)]).set(n as f64);
        }
        self.gauge("ruvllm_adapter_bytes", &[label]).set(now.held_bytes as f64);
        self.gauge("ruvllm_adapter_committed_bytes", &[label]).set(now.shared_bytes as f64);
        self.gauge("ruvllm_adapter_bytes_max", &[label]).set(now.total_bytes as f64);
        let count = |name, labels: &[(&'static str, &str)], now: u64, before: u64| {
            self.counter(name, labels).increment(now.saturating_sub(before));
        };
        count("ruvllm_adapter_requests_total", &[label, ("found", "hot")], now.n_hits, before.n_hits);
        count("ruvllm_adapter_requests_total", &[label, ("found", "loaded")], now.n_loads, before.n_loads);
        count("ruvllm_adapter_evictions_total", &[label], now.n_evictions, before.n_evictions);
    }

    /// Tells what the witness log has done.
    pub fn tell_witness(&self, stats: &LogStats, n_unsaved: u64) {
        self.counter("ruvllm_sessions_unsaved_total", &[]).absolute(n_unsaved);
        self.counter("ruvllm_witness_records_total", &[]).absolute(stats.n_written);
        self.counter("ruvllm_witness_lost_total", &[]).absolute(stats.n_lost);
        self.counter("ruvllm_witness_failed_batches_total", &[]).absolute(stats.n_failed_batches);
        self.gauge("ruvllm_witness_waiting", &[]).set(stats.n_queued as f64);
        let n_unrecorded = stats.failing.as_ref().map_or(0, |_| stats.n_queued as u64 + stats.n_lost);
        self.gauge("ruvllm_witness_unrecorded", &[]).set(n_unrecorded as f64);
    }

    /// Tells how many answers were to be kept and are not.
    pub fn tell_kept(&self, n_unsaved: u64) {
        self.counter("ruvllm_responses_unsaved_total", &[]).absolute(n_unsaved);
    }

    /// Returns the text of `/metrics`.
    pub fn render(&self) -> String {
        metrics::with_local_recorder(&self.recorder, || self.process.collect());
        self.handle.render()
    }

    /// Puts what histograms were told into their buckets; to be called every few seconds, so that what waits for it stays
    /// small.
    pub fn maintenance(&self) {
        self.handle.run_upkeep();
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // A bucket of the recorder that goes leaves what was not read of it; a process may have many servers, one after the other.
        self.maintenance();
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    match labels {
        [] => Key::from_static_name(name),
        _ => Key::from_parts(
            name,
            labels.iter().map(|&(label, value)| Label::new(label, value.to_owned())).collect::<Vec<_>>(),
        ),
    }
}

/// Writes what the engine does into the metrics.
pub struct EngineObserver {
    of_llamacpp: LlamaCppObserver,
    ttft: Histogram,
    gap: Histogram,
    queue: Histogram,
    step: Histogram,
    batch: Histogram,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    drafted: Counter,
    accepted: Counter,
    /// Drafted and accepted tokens, in the order of [`DraftSources::by_name`].
    by_source: [(Counter, Counter); 3],
    right_guesses: Counter,
    wrong_guesses: Counter,
    /// By reason.
    finished: [(&'static str, Counter); 5],
    running: Gauge,
    waiting: Gauge,
}

impl EngineObserver {
    /// Tells how many requests run and wait.
    pub fn waits(&self, n_running: usize, n_waiting: usize) {
        self.of_llamacpp.waits(n_running, n_waiting);
        self.running.set(n_running as f64);
        self.waiting.set(n_waiting as f64);
    }

    /// Tells why a request ended, and what it came to.
    pub fn ended(&self, reason: &str, came: Option<&CameTo<'_>>) {
        if let Some((_, counter)) = self.finished.iter().find(|(name, _)| *name == reason) {
            counter.increment(1);
        }
        let Some(came) = came else { return };
        let &CameTo { timings, n_prompt, n_answer } = came;
        self.of_llamacpp.done(came);
        self.prompt_tokens.increment(n_prompt as u64);
        self.cached_tokens.increment(timings.cached_tokens as u64);
        self.generated_tokens.increment(n_answer as u64);
        let (n_drafted, n_accepted) = (timings.draft_tokens, timings.accepted_tokens);
        self.drafted.increment(n_drafted as u64);
        self.accepted.increment(n_accepted as u64);
        for ((drafted, accepted), (_, count)) in self.by_source.iter().zip(timings.draft_sources.by_name()) {
            drafted.increment(count.draft_tokens as u64);
            accepted.increment(count.accepted_tokens as u64);
        }
        self.right_guesses.increment(n_accepted as u64);
        self.wrong_guesses.increment(n_drafted.saturating_sub(n_accepted) as u64);
        self.queue.record(timings.queue_ms / 1e3);
        if n_answer > 0 {
            self.ttft.record(timings.ttft_ms / 1e3);
        }
    }
}

/// Times and tokens of an answer that is over.
pub struct CameTo<'t> {
    /// Times of the answer.
    pub timings: &'t Timings,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens of the answer.
    pub n_answer: usize,
}

impl Observer for EngineObserver {
    fn step(&mut self, step: &Step<'_>) {
        self.of_llamacpp.step(step);
        self.step.record(step.took.as_secs_f64());
        self.batch.record(step.n_batch as f64);
        step.gaps.iter().for_each(|gap| self.gap.record(gap.as_secs_f64()));
        self.waits(step.n_running, step.n_waiting);
    }

    fn done(&mut self, result: &Result<GenerationSummary, EngineError>) {
        let reason = result.as_ref().map_or("error", |summary| summary.finish_reason.as_str());
        let came = result.as_ref().ok().map(|summary| CameTo {
            timings: &summary.timings,
            n_prompt: summary.prompt_tokens.len(),
            n_answer: summary.tokens.len(),
        });
        self.ended(reason, came.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Returns the words of a text that begin like a metric of ours or of the process.
    fn named(text: &str) -> BTreeSet<String> {
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
        let is_metric = |word: &&str| word.starts_with("ruvllm_") || word.starts_with("process_");
        words.filter(is_metric).map(str::to_owned).collect()
    }

    #[test]
    fn dashboard_and_alerts_name_metrics_that_there_are() {
        let metrics = Metrics::default();
        let process = metrics.render();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
        for file in ["grafana-dashboard.json", "prometheus-alerts.yml"] {
            let text = std::fs::read_to_string(folder.join(file)).expect("it is in the repository");
            let named = named(&text);
            assert!(named.len() > 8, "{file}: {named:?}");
            for name in named {
                let of_histogram = |ty: &Type| matches!(ty, Type::Seconds | Type::Sizes);
                let is_ours = HELP.iter().any(|(ty, own, _)| match of_histogram(ty) {
                    true => ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{own}{end}")),
                    false => name == *own,
                });
                let is_of_process = process.lines().any(|line| line.starts_with(&format!("# TYPE {name} ")));
                assert!(is_ours || is_of_process, "{file} names {name}, which is no metric");
            }
        }
        let text = std::fs::read_to_string(folder.join("grafana-dashboard.json")).expect("it is in the repository");
        let dashboard: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 20));
    }
}
