//! The record of what another server answers: digests of texts, since there are no tokens. It cannot be replayed.

use std::sync::Arc;
use std::time::Duration;

use ruvllm_engine::{FinishReason, KvPolicy, Timings};
use ruvllm_sona::Latency;
use ruvllm_sona::witness::{Content, Event, Served, WitnessLog};
use serde_json::{Value, json};

use crate::{About, Record, Recorder, Running, program};

/// A request that another server answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteRequest {
    /// Its conversation or text, as it is sent.
    pub prompt: String,
    /// Seed, if it has one.
    pub seed: Option<u64>,
    /// Options of the answer, as they are sent.
    pub settings: Value,
}

/// An answer of another server that is over.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAnswer<'a> {
    /// The whole answer.
    pub text: &'a str,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens of the prompt, as the other side counted them.
    pub n_prompt: usize,
    /// Tokens of the answer.
    pub n_answer: usize,
    /// Time that it took.
    pub timings: &'a Timings,
}

impl Recorder {
    /// Makes the recorder of a model at the address of another server. Texts are never kept.
    pub fn of_remote(address: &str, model: &str, log: Arc<WitnessLog>) -> Recorder {
        let running = Running { program: program(), isa: "remote".to_owned(), kv: KvPolicy::F16, n_ctx: 0 };
        let name = format!("remote {address} {model}");
        Recorder {
            log,
            model: *blake3::hash(name.as_bytes()).as_bytes(),
            template: [0; 32],
            running: Arc::new(running),
            keeps_tokens: false,
            scorer: None,
        }
    }

    /// Takes note of a request before it is sent.
    pub fn begin_remote(&self, request: &RemoteRequest, about: About) -> Record {
        let settings = json!({ "backend": "remote", "program": self.running.program, "request": request.settings });
        let served = Served {
            request: about.request,
            model: self.model,
            template: self.template,
            settings: settings.to_string(),
            seed: request.seed.unwrap_or_default(),
            prompt: digest(&request.prompt, 0),
            completion: digest("", 0),
            routing: about.routing,
            adapter_generation: about.generation,
            ..Served::default()
        };
        let (log, served) = (Arc::clone(&self.log), Some(Box::new(served)));
        Record { log, tenant: about.tenant, keeps_tokens: false, served, scored: None }
    }
}

impl Record {
    /// Records what came of a request to another server: its answer, or the line of an error.
    pub fn end_remote(mut self, result: Result<RemoteAnswer<'_>, &str>) {
        let Some(mut served) = self.served.take() else { return };
        match result {
            Err(line) => served.error = Some(line.to_owned()),
            Ok(RemoteAnswer { text, finish_reason, n_prompt, n_answer, timings }) => {
                let us = |ms: f64| Duration::from_secs_f64(ms.max(0.0) / 1e3).as_micros() as u64;
                served.prompt.n_tokens = n_tokens(n_prompt);
                served.completion = digest(text, n_answer);
                served.finish = finish_reason.as_str().to_owned();
                served.n_cached_tokens = n_tokens(timings.cached_tokens);
                served.latency = Latency {
                    queue_us: us(timings.queue_ms),
                    prefill_us: us(timings.prompt_ms),
                    decode_us: us(timings.decode_ms),
                };
            }
        }
        self.log.record(&self.tenant, Event::Served(served));
    }
}

/// Returns the digest that records have of a text: BLAKE3 of its bytes.
pub fn text_digest(text: &str) -> [u8; 32] {
    *blake3::hash(text.as_bytes()).as_bytes()
}

/// Returns the record of a text.
fn digest(text: &str, n: usize) -> Content {
    Content { digest: text_digest(text), n_tokens: n_tokens(n), tokens: None }
}

fn n_tokens(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
