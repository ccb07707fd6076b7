//! The engine of a page: a model, and the requests that it answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::ValidBody;
use ruvllm_api::form::{AnswerForm, for_stops_of};
use ruvllm_api::generation::{Chooser, Parsed, prompt_max};
use ruvllm_api::input::{encode_part, read_input, text_of};
use ruvllm_api::openai::{UNSUPPORTED, chat, completions, embeddings};
use ruvllm_api::tokens::{self, DETOKENIZE, TOKENIZE};
use ruvllm_api::{messages, thinking, tools};
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tokenizer::DecodeOptions;
use ruvllm_engine::tools::ToolUse;
use ruvllm_engine::{
    Engine, EngineError, GenerateRequest, SamplingParams, SchedulerOptions, Service, ServiceOptions, ServiceSteps,
    seed_of_clock,
};
use ruvllm_gguf::{ByteSource, GgufFile};
use serde_json::{Value, json};
use web_time::{Duration, Instant};

use crate::answer::{Answer, Kind, Question, Taken};
use crate::body;
use crate::capabilities::capabilities;
use crate::embed::Embedding;
#[cfg(feature = "gpu")]
use crate::gpu;
use crate::learn::{Learned, Telling};
#[cfg(feature = "gpu")]
use crate::options::WebBackend;
use crate::options::{STEP_TOKENS, WebOptions, WebProgress};

/// Requests that wait beside those that run, at most.
const QUEUE_MAX: usize = 64;

/// Bytes of a file that is taken, at most: the weights that are made of it lie in a memory of 4 GiB, beside what they compute.
pub const FILE_BYTES_MAX: usize = 2 << 30;

/// A loaded model that answers requests, several at once, in steps that its caller takes.
pub struct WebEngine {
    model: String,
    service: Service,
    steps: ServiceSteps,
    learned: Option<Learned>,
    calls: BTreeMap<u32, Call>,
    n_calls: u32,
}

/// A call on its way.
enum Call {
    Answer(Box<Answer>),
    Embedding(Embedding),
    Telling(Box<Telling>),
}

impl WebEngine {
    /// Loads a GGUF file, whose tensors are read one by one. `options` are JSON, as [`WebOptions`]; `calibration` is what [`WebEngine::calibration`] gave for this model before,
    /// where it learns.
    ///
    /// # Errors
    /// An option cannot be; the file is too large, damaged, not supported or cannot be read; there is not so much memory.
    pub fn load(
        source: Arc<dyn ByteSource>,
        options: &str,
        calibration: Option<&[u8]>,
        progress: &mut dyn FnMut(WebProgress),
    ) -> Result<WebEngine, ApiError> {
        let options = WebOptions::read(options)?;
        check_size(source.n_bytes())?;
        let n_ctx_train = n_ctx_of(Arc::clone(&source)).map_err(ApiError::from)?;
        let name = options.name.as_deref().unwrap_or("model");
        let mut tell = |ruvllm_engine::LoadProgress { done_bytes, total_bytes }| {
            progress(WebProgress { phase: "load", done: done_bytes, total: total_bytes });
        };
        let of_engine = options.of_engine(n_ctx_train);
        let mut engine = match options.backend {
            #[cfg(feature = "gpu")]
            WebBackend::Gpu => gpu::load(name, &source, &of_engine, &mut tell)?,
            _ => Engine::load_source(name, source, &of_engine, &mut tell)?,
        };
        if let Some(template) = &options.chat_template {
            engine.set_chat_template(template)?;
        }
        let model = options.name.clone().unwrap_or_else(|| engine.info().name.clone());
        let learned = options.learn.then(|| Learned::open(&mut engine, calibration, progress)).transpose()?;
        let scheduler =
            SchedulerOptions { step_tokens: STEP_TOKENS, prefill_tokens: STEP_TOKENS, ..Default::default() };
        let service = ServiceOptions { queue_max: QUEUE_MAX, scheduler, ..ServiceOptions::default() };
        let (service, steps) = Service::stepped(engine, service)?;
        Ok(WebEngine { model, service, steps, learned, calls: BTreeMap::new(), n_calls: 0 })
    }

    /// Returns the name of the model in answers.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Computes one step of everything that was asked for, and returns whether there was something to compute.
    pub fn step(&mut self) -> bool {
        self.steps.step()
    }

    /// Begins to answer a conversation, by the body of `/v1/chat/completions`; returns the number of the call.
    ///
    /// # Errors
    /// As the server has them.
    pub fn chat(&mut self, body: &str) -> Result<u32, ApiError> {
        let given = body::read(body, chat::TABLE, UNSUPPORTED, &self.model)?;
        let mut parsed = self.parsed(&given, chat::max_tokens(&given)?)?;
        parsed.request.logprobs = chat::n_logprobs(&given)?;
        let text = self.service.text();
        let tool_use = tools::read(&given, text)?;
        let (tool_use, form) = match tool_use {
            Some(tool_use) => {
                let (tool_use, form) = AnswerForm::of_calls(&given, tool_use, &mut parsed.request)?;
                (Some(tool_use), Some(form))
            }
            None => (None, AnswerForm::of_field(&given, &parsed.request)?),
        };
        self.hold(&mut parsed.request, form)?;
        let mut messages = messages::for_template(given.list("messages").map_or(&[][..], Vec::as_slice), text)?;
        let begun = messages::begun(&given, &mut messages)?;
        let input = ChatInput {
            messages,
            tools: tool_use.as_ref().map(ToolUse::definitions),
            add_generation_prompt: begun.is_some() || given.flag(messages::OPENS_ANSWER.name, true),
            extra: thinking::variables(&given, text, &self.model)?,
            ..ChatInput::default()
        };
        let n_ctx = self.service.info().n_ctx;
        let encoding = messages::Encoding {
            n_max: parsed.is_truncated.unwrap_or(false).then(|| prompt_max(n_ctx, &parsed.request)),
            parse_special: given.is_set("parse_special"),
            thinks_not: thinking::is_off(&given),
            begun: begun.as_deref().unwrap_or_default(),
        };
        let prompt = messages::encode(text, input, encoding)?;
        thinking::begin(&given, text, &mut parsed.request, &prompt);
        self.answer(Question { given, parsed, prompts: vec![prompt], kind: Kind::Chat(tool_use) })
    }

    /// Begins to continue texts, by the body of `/v1/completions`; returns the number of the call.
    ///
    /// # Errors
    /// As the server has them.
    pub fn complete(&mut self, body: &str) -> Result<u32, ApiError> {
        let given = body::read(body, completions::TABLE, UNSUPPORTED, &self.model)?;
        let mut parsed = self.parsed(&given, Some(completions::MAX_TOKENS))?;
        parsed.request.logprobs = given.count("logprobs");
        if given.count("best_of").is_some_and(|n| n != parsed.n_choices) {
            return Err(
                ApiError::bad("best_of", "answers are not ranked here; leave out 'best_of'").code("unsupported")
            );
        }
        let is_echoed = given.is_set("echo");
        if is_echoed && parsed.request.logprobs.is_some() {
            let line = "log-probabilities of prompts are not told here; leave out 'echo' or 'logprobs'";
            return Err(ApiError::bad("logprobs", line).code("unsupported"));
        }
        let form = AnswerForm::of_field(&given, &parsed.request)?;
        self.hold(&mut parsed.request, form)?;
        let (input, tokenizer) = (given.get("prompt").cloned().unwrap_or_default(), self.service.text().tokenizer());
        let is_truncated = parsed.is_truncated.unwrap_or(false);
        let mut prompts = match given.text("suffix").filter(|suffix| !suffix.is_empty()) {
            Some(suffix) => vec![tokenizer.encode_infill(infilled(&input, is_truncated)?, suffix)?],
            None => {
                let parse_special = given.flag("parse_special", true);
                read_input(&input, "prompt", |part| encode_part(tokenizer, part, parse_special))?
            }
        };
        if is_truncated {
            let n_max = prompt_max(self.service.info().n_ctx, &parsed.request);
            prompts.iter_mut().for_each(|prompt| drop(prompt.drain(..prompt.len().saturating_sub(n_max))));
        }
        let decode = |prompt: &[u32]| tokenizer.decode(prompt, DecodeOptions::default());
        let echo = |(i, prompt): (usize, &Vec<u32>)| {
            let given = text_of(&input, i).filter(|_| !is_truncated);
            given.unwrap_or_else(|| decode(prompt))
        };
        let echoes = if is_echoed { prompts.iter().enumerate().map(echo).collect() } else { Vec::new() };
        self.answer(Question { given, parsed, prompts, kind: Kind::Completion(echoes) })
    }

    /// Begins to embed texts, by the body of `/v1/embeddings`; returns the number of the call.
    ///
    /// # Errors
    /// As the server has them.
    pub fn embed(&mut self, body: &str) -> Result<u32, ApiError> {
        let given = body::read(body, &[embeddings::FIELDS], &[], &self.model)?;
        let embedding = Embedding::start(&self.service, &self.model, given)?;
        Ok(self.add(Call::Embedding(embedding)))
    }

    /// Returns the tokens of a text, by the body of `/tokenize`.
    ///
    /// # Errors
    /// As the server has them.
    pub fn tokenize(&self, body: &str) -> Result<Value, ApiError> {
        let given = body::read(body, &[TOKENIZE], &[], &self.model)?;
        tokens::tokenize(&given, self.service.text(), self.service.info().n_ctx)
    }

    /// Returns the text of tokens, by the body of `/detokenize`.
    ///
    /// # Errors
    /// As the server has them.
    pub fn detokenize(&self, body: &str) -> Result<Value, ApiError> {
        let given = body::read(body, &[DETOKENIZE], &[], &self.model)?;
        tokens::detokenize(&given, self.service.text())
    }

    /// Begins to take what an answer was worth, or what it should have been, by the body of `/v1/feedback`; returns the number of the
    /// call.
    ///
    /// # Errors
    /// The model does not learn; no answer of this id waits; otherwise as the server has them.
    pub fn feedback(&mut self, body: &str) -> Result<u32, ApiError> {
        let telling = self.learned()?.feedback(&self.service, &self.model, body)?;
        Ok(self.add(Call::Telling(Box::new(telling))))
    }

    /// Begins to remember an answer to a question, by the body of `/v1/memory`; returns the number of the call.
    ///
    /// # Errors
    /// The model does not learn; otherwise as the server has them.
    pub fn remember(&mut self, body: &str) -> Result<u32, ApiError> {
        let telling = self.learned()?.remember(&self.service, &self.model, body)?;
        Ok(self.add(Call::Telling(Box::new(telling))))
    }

    /// Returns how learning stands.
    ///
    /// # Errors
    /// The model does not learn.
    pub fn learning(&self) -> Result<Value, ApiError> {
        Ok(self.learned()?.status(&self.model))
    }

    /// Forgets everything that was learned.
    ///
    /// # Errors
    /// The model does not learn.
    pub fn forget(&mut self) -> Result<Value, ApiError> {
        self.learned()?.forget()?;
        self.learning()
    }

    /// Returns what was learned as bytes for [`WebEngine::import_learned`].
    ///
    /// # Errors
    /// The model does not learn.
    pub fn export_learned(&self) -> Result<Vec<u8>, ApiError> {
        Ok(self.learned()?.export())
    }

    /// Puts what was exported in the place of what was learned.
    ///
    /// # Errors
    /// The model does not learn; the bytes are damaged, or of another model.
    pub fn import_learned(&mut self, bytes: &[u8]) -> Result<Value, ApiError> {
        self.learned()?.import(bytes)?;
        self.learning()
    }

    /// Returns what learning was calibrated by, so that it need not be computed when the same model is loaded again.
    ///
    /// # Errors
    /// The model does not learn.
    pub fn calibration(&self) -> Result<Vec<u8>, ApiError> {
        Ok(self.learned()?.calibration())
    }

    /// Returns what the engine has and takes.
    pub fn capabilities(&self) -> Value {
        capabilities(&self.service, &self.model, self.learned.is_some())
    }

    /// Returns what came of a call since the last time: `chunks`, and with the last ones `result` or `error`; none once it is over.
    pub fn take(&mut self, id: u32) -> Option<Value> {
        let call = self.calls.get_mut(&id)?;
        let Taken { chunks, end } = match call {
            Call::Answer(answer) => answer.take(),
            Call::Embedding(embedding) => Taken { chunks: Vec::new(), end: embedding.take() },
            Call::Telling(telling) => {
                let end = telling.take(self.learned.as_ref());
                Taken { chunks: Vec::new(), end }
            }
        };
        let mut taken = json!({ "chunks": chunks });
        if let Some(end) = end {
            self.calls.remove(&id);
            match end {
                Ok(result) => taken["result"] = result,
                Err(error) => taken["error"] = error_json(&error),
            }
        }
        Some(taken)
    }

    /// Ends a call; what came of it is forgotten.
    pub fn cancel(&mut self, id: u32) {
        // Its tickets are dropped with it.
        self.calls.remove(&id);
    }

    fn add(&mut self, call: Call) -> u32 {
        self.n_calls = self.n_calls.wrapping_add(1);
        self.calls.insert(self.n_calls, call);
        self.n_calls
    }

    fn learned(&self) -> Result<&Learned, ApiError> {
        self.learned.as_ref().ok_or_else(|| {
            let line = "this engine learns nothing; load it with learn: true";
            ApiError::new(http::StatusCode::NOT_FOUND, line).code("learning_off")
        })
    }

    /// Reads what a request says of its answers.
    fn parsed(&self, given: &ValidBody, max_tokens: Option<usize>) -> Result<Parsed, ApiError> {
        let (text, info) = (self.service.text(), self.service.info());
        if info.is_encoder {
            let line = format!("model '{}' makes embeddings, not text; ask it for those", self.model);
            return Err(ApiError::bad("model", line));
        }
        let sampling = SamplingParams::default();
        let chooser = Chooser { tokenizer: text.tokenizer(), n_vocab: info.n_vocab, sampling: &sampling };
        let mut parsed = Parsed::read(given, max_tokens, Some(chooser))?;
        parsed.request.priority = given.int("priority").unwrap_or(0) as i8;
        let timeout =
            given.count("timeout_ms").and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms as u64)));
        parsed.request.deadline = timeout;
        Ok(parsed)
    }

    /// Holds the answer of a request to a form.
    fn hold(&self, request: &mut GenerateRequest, form: Option<AnswerForm>) -> Result<(), ApiError> {
        let Some(form) = form else { return Ok(()) };
        let compile = || Ok(form.compile(self.service.grammar_compiler()?)?);
        let grammar = compile().map_err(|error| form.named(error))?;
        request.grammar = Some(for_stops_of(request, grammar));
        Ok(())
    }

    fn answer(&mut self, question: Question) -> Result<u32, ApiError> {
        // Ids of answers differ, also over loads: what is learned is told by them.
        let id = format!("{:016x}{:08x}", seed_of_clock(), self.n_calls);
        let learner = self.learned.as_ref().map(|learned| learned.learner(&question.given, &id));
        let answer = Answer::start(&self.service, &self.model, id, question, &|i| Some(learner.as_ref()?(i)))?;
        Ok(self.add(Call::Answer(Box::new(answer))))
    }
}

impl std::fmt::Debug for WebEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebEngine").field("model", &self.model).field("n_calls", &self.calls.len()).finish()
    }
}

/// Checks that a file of this size can be loaded.
///
/// # Errors
/// It is too large for a memory of 32-bit addresses.
pub fn check_size(n_bytes: u64) -> Result<(), ApiError> {
    if n_bytes <= FILE_BYTES_MAX as u64 {
        return Ok(());
    }
    let line = format!(
        "the file has {n_bytes} bytes; a page's memory has 4 GiB of addresses, and a file may have 2 GiB ({FILE_BYTES_MAX} bytes); \
         load a smaller one, or one of fewer bits a weight"
    );
    Err(ApiError::new(http::StatusCode::PAYLOAD_TOO_LARGE, line).code("file_too_large"))
}

/// Returns an error as JavaScript makes one of its classes of it.
pub(crate) fn error_json(error: &ApiError) -> Value {
    let mut json = error.body(Shape::OpenAi)["error"].take();
    json["status"] = json!(error.status.as_u16());
    json["retry_after"] = json!(error.retry_after_s);
    json
}

/// Returns the context that a model was trained with, as its file says.
fn n_ctx_of(source: Arc<dyn ByteSource>) -> Result<Option<usize>, EngineError> {
    let file = GgufFile::from_source(source)?;
    let arch = file.metadata().str("general.architecture")?.unwrap_or_default();
    let n_ctx = file.metadata().u64(&format!("{arch}.context_length"))?;
    Ok(n_ctx.and_then(|n_ctx| usize::try_from(n_ctx).ok()))
}

/// Returns the text before a gap.
///
/// # Errors
/// 400: the prompt is no single text, or is to be shortened.
fn infilled(input: &Value, is_truncated: bool) -> Result<&str, ApiError> {
    input.as_str().filter(|_| !is_truncated).ok_or_else(|| {
        let line = "'suffix' goes with one prompt of text, which is not shortened; send a text, without 'truncation'";
        ApiError::bad("suffix", line)
    })
}
