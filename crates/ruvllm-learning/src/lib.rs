//! Learning, routing and autotuning joined to an engine: what `ruvllm-sona` and `ruvllm-router` know, in the engine's hooks.
//!
//! [`Learning`] is what one model can be taught: its [`Calibration`] (made once by [`calibrate()`]), the rows of its
//! head, and a folder. Each [`TenantLearning`] has learned something of its own there. A request learns through
//! [`TenantLearning::logits_processor`]; a document is read by [`learn_document()`] or an [`EvaluationStream`]; [`TenantLearning::judge`] and [`add_correction`] take what people say of
//! answers.
//!
//! ```text
//! a request begins:  what its tenant knows then is what it sees to its end: an Arc, never a lock held
//! its prompt:        states become keys (those that are computed; cached ones were seen before)
//! its answer:        logits changed by what is known; what is new is traced
//! it ends:           the prompt is learned; the answer waits until somebody judges it
//! behind it:         a thread of the tenant's ingests what waits, in order, and fits λ on calibration text
//! ```
//! An answer is what the model thinks already: learned unjudged it would only make it surer. So nothing is learned of it
//! unless somebody says that it was good, or [`LearningOptions::unjudged`] says so for all.
//!
//! [`ModelRouter`] chooses a model for a query by vectors that the engine makes, and [`autotune`] chooses how the steps of its
//! scheduler are filled. This crate knows no HTTP.
//!
//! ```
//! use std::ops::ControlFlow;
//! use ruvllm_engine::{Engine, GenerateRequest, LoadOptions, SamplingParams};
//! use ruvllm_learning::{Correctness, Learning, LearningOptions, Question, Task, add_correction};
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {})?;
//! let learning = Learning::open(&mut engine, LearningOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! let tenant = learning.transient()?;
//!
//! let (question, answer) = ("Where is Ulm?", [11, 22, 33, 44]);
//! let prompt = engine.encode_prompt(question, true)?;
//! add_correction(&mut engine, &tenant, Question { prompt: &prompt, text: Some(question) }, &answer, Correctness::Right)?;
//!
//! let logits_processor = Some(tenant.logits_processor(Task::of(question), None));
//! let (max_tokens, sampling) = (Some(answer.len()), SamplingParams::greedy());
//! let request = GenerateRequest { prompt, logits_processor, max_tokens, sampling, ..Default::default() };
//! assert_eq!(engine.generate(&request)?.for_each_token(|_| {})?.tokens, answer);
//! # Ok::<(), ruvllm_engine::EngineError>(())
//! ```

#![forbid(unsafe_code)]

pub mod autotune;
mod calibrate;
#[cfg(feature = "train")]
mod deep;
mod document;
mod draft_history;
mod error;
mod evaluation_stream;
mod file;
mod kept;
mod learning;
mod log;
mod logits_hook;
mod maintenance;
mod patterns;
mod reading;
mod routing;
mod score;
mod snapshot;
mod tenant;

pub use calibrate::{CalibrationProgress, N_TEXTS, calibrate};
#[cfg(feature = "train")]
pub use deep::{DeepTrainer, DeepTrainerOptions};
pub use document::learn_document;
pub use draft_history::{DraftHistory, DraftHistoryFile, DraftHistoryOptions};
pub use error::of_sona;
pub use evaluation_stream::{EvaluationStream, EvaluationStreamOptions, TextChunk, TextRows, WindowOptions, read_text};
pub use kept::STORE_FILE;
pub use learning::{Learning, LearningOptions};
pub use log::{TenantLog, look, tenants};
pub use maintenance::{MaintenanceOptions, MaintenanceOutcome};
pub use reading::{Passes, ReadSums, ReadWatch};
pub use routing::{Decision, EmbedderName, ModelEmbedder, ModelRouter, NearestIndex, ServiceEmbedder};
pub use ruvllm_sona::background::{BackgroundOptions, Consolidate};
pub use ruvllm_sona::corrections::Correctness;
pub use ruvllm_sona::datastore::DatastoreOptions;
pub use ruvllm_sona::history::{Generation, Item, Span};
pub use ruvllm_sona::{Calibration, LearnOptions, Learned, MicroOptions};
pub use ruvllm_sona::{PublicKey, SigningKey};
pub use score::{AnswerScore, Question, add_correction, answer_states, score_answer};
pub use tenant::{Evaluation, FeedbackOutcome, Task, TenantLearning, TenantStats, check_tenant};
