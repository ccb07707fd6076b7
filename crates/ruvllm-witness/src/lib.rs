//! What is put on record of a request, and running it again.
//!
//! A [`Recorder`] belongs to a loaded model and writes to a [`WitnessLog`]: it fixes a request's seed before the request
//! runs, so that it can be repeated, and records what came of it. [`replay`] does so in another process and compares.
//!
//! ```
//! use std::sync::Arc;
//! use ruvllm_witness::{About, Recorder, replay};
//! use ruvllm_engine::{Engine, GenerateRequest, LoadOptions};
//! use ruvllm_sona::store::{self, OpenOptions};
//! use ruvllm_sona::witness::{Event, LogOptions, Query, WitnessLog, search};
//!
//! # let folder = tempfile::tempdir().expect("a folder");
//! let store = store::open(&folder.path().join("witness.redb"), &OpenOptions::default())?;
//! let log = Arc::new(WitnessLog::start(Arc::clone(&store), LogOptions::default())?);
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {})?;
//! let recorder = Recorder::new(&engine, Arc::clone(&log), true)?;
//!
//! let prompt = engine.encode_prompt("Name three rivers.", true)?;
//! let mut request = GenerateRequest { prompt, max_tokens: Some(8), ..Default::default() };
//! let record = recorder.begin(&mut request, About { request: 1, tenant: "alice".into(), ..Default::default() });
//! let result = engine.generate(&request)?.for_each_token(|_| {});
//! record.end(result.as_ref());
//! log.flush()?;
//!
//! let found = search(store.as_ref(), "alice", &Query::default())?;
//! let Event::Served(served) = &found[0].event else { panic!("a request was served") };
//! assert!(replay(&mut engine, served, &Default::default())?.is_same());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod folder;
mod remote;
mod replay;
mod score;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ruvllm_sona::Latency;
use ruvllm_sona::quality::Scorer;
use ruvllm_sona::witness::{Content, Event, Served, WitnessLog};

pub use folder::{ANCHOR_FILE, NOBODY, STORE_FILE, WitnessError, WitnessOptions, fault_name, number_of, open_store};
pub use remote::{RemoteAnswer, RemoteRequest, text_digest};
pub use replay::{Replayed, adapters_of, check, compare, load_options, replay};
pub use settings::decimal;

use ruvllm_engine::{
    Engine, EngineError, FinishReason, GenerateRequest, GenerationSummary, Grammar, KvPolicy, NUMERICS_VERSION,
    seed_of_clock,
};

/// Returns what computes here: the version of the program and that of its numbers.
fn program() -> String {
    format!("{}+{NUMERICS_VERSION}", env!("CARGO_PKG_VERSION"))
}

/// How a model runs, as far as its tokens depend on it.
#[derive(Clone, Debug, PartialEq)]
struct Running {
    program: String,
    isa: String,
    kv: KvPolicy,
    n_ctx: usize,
}

impl Running {
    fn of(engine: &Engine) -> Running {
        let info = engine.info();
        Running { program: program(), isa: info.device.name.clone(), kv: engine.kv_policy(), n_ctx: info.n_ctx }
    }
}

/// Puts a model's requests on record; clones write to the same log.
#[derive(Clone)]
pub struct Recorder {
    log: Arc<WitnessLog>,
    model: [u8; 32],
    template: [u8; 32],
    running: Arc<Running>,
    keeps_tokens: bool,
    scorer: Option<Arc<Mutex<Scorer>>>,
}

/// Facts of a request that the caller knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Its number, by which feedback names it.
    pub request: u64,
    /// Whose it is.
    pub tenant: String,
    /// Routing: the chosen model with the reason; empty if nobody chose.
    pub routing: String,
    /// The generation of what was learned that it sees; 0 where nothing was.
    pub generation: u64,
    /// Question, where it is known apart from the prompt: answers to the same are compared by it when they are scored.
    pub question: Option<String>,
}

/// A request that runs, on its way to the record. Dropped without an end, it is recorded as one that was lost.
#[must_use = "a record is written when it ends"]
pub struct Record {
    log: Arc<WitnessLog>,
    tenant: String,
    keeps_tokens: bool,
    served: Option<Box<Served>>,
    scored: Option<Scored>,
}

/// By what an answer is scored.
struct Scored {
    scorer: Arc<Mutex<Scorer>>,
    question: Option<String>,
    grammar: Option<Grammar>,
}

impl Recorder {
    /// Makes the recorder of a model. Hashes the model's file: a second for some gigabytes.
    ///
    /// `keeps_tokens`: put prompts and answers on record, and stop strings and grammars, not only their digests. Without
    /// them nothing can be replayed.
    ///
    /// # Errors
    /// The model's file cannot be read again.
    pub fn new(engine: &Engine, log: Arc<WitnessLog>, keeps_tokens: bool) -> Result<Recorder, EngineError> {
        let template = match engine.chat_template() {
            Ok(Some(template)) => *blake3::hash(template.source().as_bytes()).as_bytes(),
            // One that does not compile renders nothing.
            Ok(None) | Err(_) => [0; 32],
        };
        let running = Arc::new(Running::of(engine));
        Ok(Recorder { log, model: engine.content_hash()?, template, running, keeps_tokens, scorer: None })
    }

    /// Scores each answer when its record is written: behind the answer, on the log's thread.
    pub fn with_scorer(self, scorer: Arc<Mutex<Scorer>>) -> Recorder {
        Recorder { scorer: Some(scorer), ..self }
    }

    /// Returns the hash of its model.
    pub fn model(&self) -> [u8; 32] {
        self.model
    }

    /// Returns the log it writes to.
    pub fn log(&self) -> &Arc<WitnessLog> {
        &self.log
    }

    /// Takes note of a request before it runs, and gives it a seed if it has none.
    pub fn begin(&self, request: &mut GenerateRequest, about: About) -> Record {
        let seed = *request.sampling.seed.get_or_insert_with(seed_of_clock);
        let served = Served {
            request: about.request,
            model: self.model,
            template: self.template,
            settings: settings::write(request, &self.running, self.keeps_tokens).to_string(),
            seed,
            prompt: Content::new(&request.prompt, self.keeps_tokens),
            completion: Content::new(&[], false),
            routing: about.routing,
            adapter_generation: about.generation,
            ..Served::default()
        };
        let (log, keeps_tokens) = (Arc::clone(&self.log), self.keeps_tokens);
        let scored = |scorer: &Arc<Mutex<Scorer>>| Scored {
            scorer: Arc::clone(scorer),
            question: about.question,
            grammar: request.grammar.clone(),
        };
        let scored = self.scorer.as_ref().map(scored);
        Record { log, tenant: about.tenant, keeps_tokens, served: Some(Box::new(served)), scored }
    }
}

impl Record {
    /// Records what came of it.
    pub fn end(mut self, result: Result<&GenerationSummary, &EngineError>) {
        let Some(mut served) = self.served.take() else { return };
        match result {
            Err(error) => served.error = Some(error.to_string()),
            Ok(summary) => {
                let timings = &summary.timings;
                served.completion = Content::new(&summary.tokens, self.keeps_tokens);
                served.finish = summary.finish_reason.as_str().to_owned();
                served.n_cached_tokens = timings.cached_tokens as u32;
                served.n_disk_tokens = timings.disk_tokens as u32;
                let us = |ms: f64| Duration::from_secs_f64(ms.max(0.0) / 1e3).as_micros() as u64;
                let (queue_us, prefill_us, decode_us) =
                    (us(timings.queue_ms), us(timings.prompt_ms), us(timings.decode_ms));
                served.latency = Latency { queue_us, prefill_us, decode_us };
                served.policy = summary.choices.to_string();
                if let Some(kv) = summary.kv {
                    served.settings = settings::with_kv(&served.settings, kv);
                }
                // What was cut off from outside says nothing of the model.
                let is_whole = matches!(summary.finish_reason, FinishReason::Stop | FinishReason::Length);
                if let (true, Some(Scored { scorer, question, grammar })) = (is_whole, self.scored.take()) {
                    let judged = score::Judged::new(&scorer, &self.tenant, question, grammar, summary);
                    let finish = |event: &mut Event| {
                        if let Event::Served(served) = event {
                            judged.score(served);
                        }
                    };
                    self.log.record_then(&self.tenant, Event::Served(served), finish);
                    return;
                }
            }
        }
        self.log.record(&self.tenant, Event::Served(served));
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(mut served) = self.served.take() {
            served.error = Some("its end was never told: the engine broke, or the process ended".to_owned());
            self.log.record(&self.tenant, Event::Served(served));
        }
    }
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("keeps_tokens", &self.keeps_tokens).finish_non_exhaustive()
    }
}
