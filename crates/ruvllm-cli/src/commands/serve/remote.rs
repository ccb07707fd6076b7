//! `ruvllm serve --backend remote`: models that another server answers for, behind this one's keys, limits and log.

use std::sync::Arc;

use ruvllm_backend::Completions as _;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::remote;
use ruvllm_engine::{SamplingParams, Speculation};
use ruvllm_server::ModelSource;

use super::options::Kept;
use super::{PREFILL_CHUNK, ServeArgs};
use crate::commands::serve::llama_server::words_of;
use ruvllm_hub::DEFAULT_MODEL;

/// Requests that are sent to another server at once, where nobody says how many.
const PARALLEL: usize = 64;

impl ServeArgs {
    /// Checks that no option is given that needs a model of this process.
    ///
    /// # Errors
    /// A usage error that names the first one.
    pub(super) fn check_remote(&self) -> Result<()> {
        self.check_aliases()?;
        remote::refuse_local(&remote::of_loading(&self.load, &self.context))?;
        remote::refuse_local(&[
            ("--models-dir", self.llama_server.models_dir.is_some()),
            ("--chat-template", self.template.is_given()),
            ("--kv-mib", self.kv_mib.is_some()),
            ("--cache-dir", self.cache_dir.is_some()),
            ("--cache-mib", self.cache_size.cache_mib.is_some()),
            ("--no-prefix-cache", self.no_prefix_cache),
            ("--adapter", !self.adapter.is_empty()),
            ("--adapters", self.adapters.is_some()),
            ("--learn", self.learn),
            ("--autotune", self.autotune),
            ("--prefill-chunk", self.prefill_chunk != PREFILL_CHUNK),
            ("--draft-model", self.speculation.draft_model.is_some()),
            ("--draft-history", self.draft_history.draft_history.is_some()),
            ("--speculate", self.speculation.speculate != Speculation::default()),
            ("--context-shift", self.llama_server.context_shift),
            ("--verbose", self.llama_server.verbose),
            ("--witness-keep tokens", self.witness_keep == Kept::Tokens),
            ("--witness-score", self.witness_score),
        ])?;
        match self.sampling.params() == SamplingParams::default() {
            true => Ok(()),
            false => {
                let line = "options of samplers are not for --backend remote: what a request leaves open is up to the other server";
                Err(Error::usage(line))
            }
        }
    }

    /// Returns models that another server answers for, and their names.
    ///
    /// # Errors
    /// It cannot be reached, refuses the key, or has no such model.
    pub(super) fn remote_models(&self, app: &App, url: &str) -> Result<(Vec<String>, Vec<ModelSource>)> {
        let (mut names, mut models) = (Vec::new(), Vec::new());
        for (i, spec) in self.model.iter().enumerate() {
            let backend = remote::connect_once(app, url, spec)?;
            let mut aliases = self.alias.get(i).map(|names| words_of(names)).unwrap_or_default().into_iter();
            // The default model stands for the one that the other server names first.
            let own = if spec == DEFAULT_MODEL { backend.info().0 } else { spec };
            let name = aliases.next().unwrap_or_else(|| own.to_owned());
            let n_at_once = self.parallel.unwrap_or(PARALLEL);
            let source = ModelSource::remote(&name, Arc::new(backend), n_at_once);
            models.push(source.with_aliases(aliases.collect()).with_tags(self.llama_server.tags_of(i)));
            names.push(name);
        }
        Ok((names, models))
    }
}
