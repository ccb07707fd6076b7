//! Learning, routing and autotuning joined to an engine: what `ruvllm-sona` and `ruvllm-router` know, in the engine's hooks.
//!
//! [`Learning`] is what one model can be taught: its [`Calibration`] (made once by [`calibrate()`]), the rows of its
//! head, and a folder. Each [`Tenant`] has learned something of its own there. A request learns through
//! [`Tenant::logits_processor`]; a document is read by [`study()`] or a [`Course`]; [`Tenant::judge`] and [`tell`] are what people say of
//! answers.
//!
//! ```text
//! a request begins:  what its tenant knows then is what it sees to its end: an Arc, never a lock held
//! its prompt:        states become keys (those that are computed; cached ones were seen before)
//! its answer:        logits changed by what is known; what is new is noted
//! it ends:           the prompt is learned; the answer waits until somebody judges it
//! behind it:         a thread of the tenant's takes in what waits, in order, and rehearses the gate
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
//! use ruvllm_learning::{Learning, LearningOptions, Task, Verdict, tell};
//!
//! // Any GGUF file; here a tiny one of the test data.
//! let path = ruvllm_testkit::Golden::load("llama-a").model("f32");
//! let mut engine = Engine::load(&path, &LoadOptions::default(), &mut |_| {})?;
//! let learning = Learning::open(&mut engine, LearningOptions::default(), &mut |_| ControlFlow::Continue(()))?;
//! let tenant = learning.transient()?;
//!
//! let (question, answer) = ("Where is Ulm?", [11, 22, 33, 44]);
//! let prompt = engine.encode_prompt(question, true)?;
//! tell(&mut engine, &tenant, (&prompt, question), &answer, Verdict::Right)?;
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
mod course;
#[cfg(feature = "train")]
mod deep;
mod error;
mod file;
mod kept;
mod learning;
mod log;
mod logits_hook;
mod patterns;
mod reading;
mod routing;
mod score;
mod study;
mod tenant;
mod upkeep;

pub use calibrate::{CalibrationProgress, N_TEXTS, calibrate};
pub use course::{Course, CourseOptions, Rows, Shown, WindowOptions, read_text};
#[cfg(feature = "train")]
pub use deep::DeepTrainer;
pub use error::of_sona;
pub use kept::STORE_FILE;
pub use learning::{Learning, LearningOptions};
pub use log::{TenantLog, look, tenants};
pub use reading::{Passes, ReadSums, Watch};
pub use routing::{Decision, EmbedderName, ModelEmbedder, ModelRouter, NearestIndex, ServiceEmbedder};
pub use ruvllm_sona::background::{BackgroundOptions, Consolidate};
pub use ruvllm_sona::episodes::Verdict;
pub use ruvllm_sona::history::{Generation, Item, Passage};
pub use ruvllm_sona::memory::MemoryOptions;
pub use ruvllm_sona::{Calibration, LearnOptions, Learned, MicroOptions};
pub use ruvllm_sona::{PublicKey, SigningKey};
pub use score::{AnswerScore, answer_states, score_answer, tell};
pub use study::study;
pub use tenant::{Judged, Outcome, Task, Tenant, TenantStats, check_tenant};
pub use upkeep::{UpkeepOptions, Upkept};
