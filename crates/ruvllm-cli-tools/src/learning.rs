//! `--learn`: opening what was learned for a tenant.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ruvllm_api::learning::with_stats;
use ruvllm_engine::{CancelToken, Engine};
use ruvllm_learning::{Correctness, Learning, LearningOptions, Question, TenantLearning, check_tenant};
use serde_json::{Value, json};

use crate::app::App;
use crate::error::{Error, Result};
use crate::lora::LoraArg;
use crate::{check, interrupt};

/// The tenant of who names none.
pub const TENANT: &str = "local";

/// Whether a command learns.
#[derive(Args, Clone, Debug)]
pub struct LearningArgs {
    /// Learn from what is asked, and answer with what was learned before
    #[arg(long, help_heading = "Learning")]
    pub learn: bool,
    /// Whose learning it is; nothing of one is known to another [default: local]
    #[arg(long, value_name = "NAME", requires = "learn", help_heading = "Learning")]
    pub tenant: Option<String>,
    /// File with the key that what is learned is encrypted with: 32 bytes or 64 hexadecimal digits
    #[arg(long, value_name = "FILE", requires = "learn", help_heading = "Learning")]
    pub learn_key: Option<PathBuf>,
}

/// Checks a tenant's name, the file of a key, and that what is learned can be kept.
///
/// # Errors
/// One of them cannot be.
pub fn check_place(app: &App, tenant: &str, key: Option<&Path>) -> Result<()> {
    check_tenant(tenant)?;
    check::key(key)?;
    check::writable_folder(&app.settings.learned_dir())
}

impl LearningArgs {
    /// Checks that no adapter changes the states that learning keeps, whose it is, and where it is kept.
    ///
    /// # Errors
    /// A usage error if one does; as [`check_place`].
    pub fn check(&self, app: &App, lora: &[LoraArg]) -> Result<()> {
        match self.learn {
            true if !lora.is_empty() => Err(Error::usage("--learn is of the model as it is; leave --lora out")),
            true => check_place(app, self.tenant.as_deref().unwrap_or(TENANT), self.learn_key.as_deref()),
            false => Ok(()),
        }
    }

    /// Opens what was learned, if `--learn` is given.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(&self, app: &App, engine: &mut Engine) -> Result<Option<(Learning, Arc<TenantLearning>)>> {
        match self.learn {
            true => open(app, engine, self.tenant.as_deref(), self.learn_key.as_deref()).map(Some),
            false => Ok(None),
        }
    }
}

/// Opens what a tenant has learned; the first time with a model that is calibrated, under a progress bar.
///
/// # Errors
/// The folder cannot be used, the model makes no text, another process learns for the tenant.
pub fn open(
    app: &App,
    engine: &mut Engine,
    tenant: Option<&str>,
    key: Option<&Path>,
) -> Result<(Learning, Arc<TenantLearning>)> {
    let options = LearningOptions { key: key.map(Path::to_owned), ..LearningOptions::default() };
    let learning = open_model(app, engine, options)?;
    let tenant = learning.tenant(engine, tenant.unwrap_or(TENANT))?;
    Ok((learning, tenant))
}

/// Makes a model ready to learn.
///
/// # Errors
/// As [`Learning::open`].
pub fn open_model(app: &App, engine: &mut Engine, options: LearningOptions) -> Result<Learning> {
    let command = std::env::args().nth(1).unwrap_or_default();
    let options =
        LearningOptions { folder: Some(app.settings.learned_dir()), process: format!("ruvllm {command}"), ..options };
    let (bar, cancel) = (app.ui.steps_bar("calibrating", 0), CancelToken::default());
    let _guard = interrupt::cancels(&cancel);
    let learning = Learning::open(engine, options, &mut |progress| {
        bar.set_length(progress.n_tokens as u64);
        bar.set_position(progress.n_done as u64);
        if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    Ok(learning?)
}

/// Remembers an answer to a question, as `run` and `chat` would ask it.
///
/// # Errors
/// The engine's.
pub fn tell(
    engine: &mut Engine,
    tenant: &TenantLearning,
    question: &str,
    answer: &str,
    verdict: Correctness,
) -> Result<()> {
    let (prompt, answer) = (engine.encode_prompt(question, false)?, engine.text()?.encode_answer(answer)?);
    let question = Question { prompt: &prompt, text: Some(question) };
    ruvllm_learning::add_correction(engine, tenant, question, &answer, verdict)?;
    Ok(())
}

/// Returns what a tenant has learned, as JSON.
pub fn stats_json(tenant: &TenantLearning) -> Value {
    let stats = tenant.stats();
    with_stats(json!({ "generation": stats.generation }), &stats)
}
