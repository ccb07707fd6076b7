//! Options of speculative decoding.

use clap::Args;
use ruvllm_engine::{DraftOptions, Speculation};

use crate::app::App;
use crate::error::{Error, Result};
use crate::settings::{DRAFT_HISTORY_MIB_MAX, ProcessSettings};
use crate::values::count;

/// Options of speculative decoding.
#[derive(Args, Clone, Debug)]
pub struct SpeculationArgs {
    /// Where draft tokens come from: ngram (what followed the same ones before), draft (--draft-model), auto (both) or off
    ///
    /// The answer is the same, to the token; drafts that do not pay end by themselves.
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Model")]
    pub speculate: Speculation,
    /// A smaller model of the same vocabulary that drafts tokens [default: none]
    #[arg(long, value_name = "NAME|PATH", help_heading = "Model")]
    pub draft_model: Option<String>,
}

impl SpeculationArgs {
    /// Checks that the model is named, and is there or can be pulled.
    ///
    /// # Errors
    /// It is not named, or cannot be had.
    pub fn check(&self, app: &App) -> Result<()> {
        match &self.draft_model {
            None if self.speculate == Speculation::Draft => {
                Err(Error::usage("--speculate draft needs --draft-model NAME|PATH"))
            }
            None => Ok(()),
            Some(name) => Ok(app.store().check(name)?),
        }
    }

    /// Returns the model that drafts, brought to this machine if it is not there.
    ///
    /// # Errors
    /// It cannot be had, or is asked for and not named.
    pub fn draft(&self, app: &App) -> Result<Option<DraftOptions>> {
        self.check(app)?;
        let Some(name) = self.draft_model.as_deref() else { return Ok(None) };
        Ok(Some(DraftOptions { path: app.store().locate(name, true)?, n_branches: 1 }))
    }
}

/// Options of drafts from earlier prompts and answers.
#[derive(Args, Clone, Debug)]
pub struct DraftHistoryArgs {
    /// Most MiB of earlier prompts and answers that drafts are made of; 0 makes them of the request's own text alone [default: 32]
    ///
    /// Each key has drafts from its own texts only. A server with --cache-dir or --learn keeps them for its next start.
    #[arg(long, value_name = "MIB", value_parser = count::<0, DRAFT_HISTORY_MIB_MAX>, help_heading = "Model")]
    pub draft_history: Option<usize>,
}

/// MiB of earlier texts where nothing else is said.
const DRAFT_HISTORY_MIB: usize = 32;

impl DraftHistoryArgs {
    /// Returns the most bytes of earlier texts: the option, else `RUVLLM_DRAFT_HISTORY`, else 32 MiB.
    pub fn bytes_max(&self, settings: &ProcessSettings) -> usize {
        self.draft_history.or(settings.draft_history_mib).unwrap_or(DRAFT_HISTORY_MIB) << 20
    }
}
