//! What the model is taught in a page: corrections and judgements of its answers, and what it read.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::ValidBody;
use ruvllm_api::learning::{FEEDBACK, MEMORY, answer_id, not_empty, own_id, with_stats};
use ruvllm_api::routing::query_of;
use ruvllm_engine::{AdapterSet, Engine, EngineError, ErrorKind, LogitsProcessor, Readout, Service, Ticket};
use ruvllm_learning::{Correctness, Learning, LearningOptions, Task, TenantLearning};
use serde_json::{Value, json};

use crate::body;
use crate::options::WebProgress;

/// What the model was taught.
pub(crate) struct Learned {
    learning: Learning,
    tenant: Arc<TenantLearning>,
}

impl Learned {
    /// Makes a model ready to learn, by its calibration or, where there is none yet, by reading some texts.
    ///
    /// # Errors
    /// The model makes no text.
    pub(crate) fn open(
        engine: &mut Engine,
        calibration: Option<&[u8]>,
        progress: &mut dyn FnMut(WebProgress),
    ) -> Result<Learned, ApiError> {
        let mut tell = |done: ruvllm_learning::CalibrationProgress| {
            progress(WebProgress { phase: "calibrate", done: done.n_done as u64, total: done.n_tokens as u64 });
            ControlFlow::Continue(())
        };
        let learning = Learning::open_with(engine, LearningOptions::default(), calibration, &mut tell)?;
        let tenant = learning.transient()?;
        Ok(Learned { learning, tenant })
    }

    /// Returns the calibration as bytes.
    pub(crate) fn calibration(&self) -> Vec<u8> {
        self.learning.calibration().snapshot()
    }

    /// Returns what makes what the answers to a request learn by.
    pub(crate) fn learner(&self, given: &ValidBody, id: &str) -> impl Fn(usize) -> Arc<dyn LogitsProcessor> + use<> {
        let task = query_of(given).map(|question| Task::of(&question)).unwrap_or_default();
        let (tenant, id) = (Arc::clone(&self.tenant), id.to_owned());
        move |i| tenant.logits_processor(task.clone(), Some(&answer_id(&id, i)))
    }

    /// Returns how learning stands.
    pub(crate) fn status(&self, model: &str) -> Value {
        let stats = self.tenant.stats();
        let status = json!({
            "model": model,
            "enabled": true,
            "waiting": stats.n_waiting,
            "generation": stats.generation,
            "version": stats.version,
            "digest": hex::encode(self.tenant.digest()),
        });
        with_stats(status, &stats)
    }

    /// Forgets everything.
    ///
    /// # Errors
    /// None: nothing is kept elsewhere.
    pub(crate) fn forget(&self) -> Result<(), ApiError> {
        Ok(self.tenant.forget()?)
    }

    /// Returns what was learned as bytes.
    pub(crate) fn export(&self) -> Vec<u8> {
        self.tenant.snapshot()
    }

    /// Puts what was exported in the place of what was learned.
    ///
    /// # Errors
    /// The bytes are damaged, or of another model.
    pub(crate) fn import(&self, bytes: &[u8]) -> Result<(), ApiError> {
        self.tenant.restore(bytes).map_err(|error| ApiError::bad("", error.to_string()))
    }

    /// Begins to take what an answer was worth, or what it should have been.
    ///
    /// # Errors
    /// No answer of this id waits; neither is said.
    pub(crate) fn feedback(&self, service: &Service, model: &str, body: &str) -> Result<Telling, ApiError> {
        let given = body::read(body, &[FEEDBACK], &[], model)?;
        let id = given.text("id").unwrap_or_default().to_owned();
        let own = answer_id(own_id(&id), given.count("choice").unwrap_or(0));
        let told = |item: Option<u64>| json!({ "id": id, "learned": item.is_some(), "item": item, "pattern": null });
        let score = given.get("score").and_then(Value::as_f64);
        match (score, given.text("correction")) {
            (None, None) => Err(ApiError::bad("score", "say 'score', 'correction' or both")),
            (Some(score), None) => {
                let outcome = self.tenant.judge(&own, score as f32).map_err(unknown)?;
                Ok(Telling::Done(Some(told(outcome.item))))
            }
            (_, Some(correction)) => {
                not_empty("correction", correction)?;
                let (prompt, task) = self.tenant.correct(&own).map_err(unknown)?;
                let text = task.question.unwrap_or_default();
                let question = Question { prompt, text, verdict: Correctness::Right, told: told(None) };
                Telling::start(service, question, correction)
            }
        }
    }

    /// Begins to remember an answer to a question.
    ///
    /// # Errors
    /// One of them is empty; as the template has them.
    pub(crate) fn remember(&self, service: &Service, model: &str, body: &str) -> Result<Telling, ApiError> {
        let given = body::read(body, &[MEMORY], &[], model)?;
        let [question, answer] = ["question", "answer"].map(|name| given.text(name).unwrap_or_default());
        not_empty("question", question)?;
        not_empty("answer", answer)?;
        let prompt = service.text().encode_prompt(question, false)?;
        let verdict = if given.is_set("wrong") { Correctness::Wrong } else { Correctness::Right };
        let question = Question { prompt, text: question.to_owned(), verdict, told: self.status(model) };
        Telling::start(service, question, answer)
    }
}

/// A question that is given an answer.
pub(crate) struct Question {
    prompt: Vec<u32>,
    text: String,
    verdict: Correctness,
    /// What the caller is answered; `item` and `learned`, or the status, are set at the end.
    told: Value,
}

/// States that a correction needs, once they are computed.
type States = Arc<Mutex<Option<Result<Vec<f32>, EngineError>>>>;

/// Something that is taught.
pub(crate) enum Telling {
    /// It is; the answer to the caller, until it is taken.
    Done(Option<Value>),
    /// The model reads the answer that is to be learned.
    Reading {
        /// The question.
        question: Box<Question>,
        /// Tokens of the answer.
        answer: Vec<u32>,
        /// States that they follow.
        states: States,
        /// Ends the reading.
        _ticket: Ticket,
    },
}

impl Telling {
    fn start(service: &Service, question: Question, answer: &str) -> Result<Telling, ApiError> {
        let answer = service.text().encode_answer(answer)?;
        let n = answer.len();
        let tokens = [&question.prompt[..], &answer[..n.saturating_sub(1)]].concat();
        let states = States::default();
        let of_sink = Arc::clone(&states);
        let sink = move |result| *of_sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        let readout = Readout::States { n_last: n };
        let ticket = service.read_out(0, tokens, readout, AdapterSet::default(), Box::new(sink))?;
        Ok(Telling::Reading { question: Box::new(question), answer, states, _ticket: ticket })
    }

    /// Returns the answer to the caller, once it is learned.
    pub(crate) fn take(&mut self, learned: Option<&Learned>) -> Option<Result<Value, ApiError>> {
        let (question, answer, states) = match self {
            Telling::Done(told) => return told.take().map(Ok),
            Telling::Reading { question, answer, states, .. } => (question, answer, states),
        };
        let states = states.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        let learned = learned?;
        let learn = || {
            let Question { text, verdict, .. } = &**question;
            learned.tenant.add_correction(text, &states?, answer, *verdict)
        };
        Some(learn().map_err(ApiError::from).map(|item| {
            let mut told = question.told.take();
            match told["id"].is_null() {
                true => told = learned.status(told["model"].as_str().unwrap_or_default()),
                false => told["learned"] = json!(item.is_some()),
            }
            (told["item"], told["pattern"]) = (json!(item), Value::Null);
            told
        }))
    }
}

/// An answer that does not wait to be judged is not known.
fn unknown(error: EngineError) -> ApiError {
    match error.kind() {
        ErrorKind::Learning => {
            let line = error.to_string();
            let error = ApiError::new(StatusCode::NOT_FOUND, line).code("unknown_answer");
            ApiError { param: Some("id".to_owned()), ..error }
        }
        _ => error.into(),
    }
}
