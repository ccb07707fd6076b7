//! The options of the server, as the command line gives them.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_learning::{BackgroundOptions, LearningOptions, MaintenanceOptions};
use ruvllm_server::{BatchOptions, KeyOptions, ServerOptions, TlsOptions};
use ruvllm_witness::WitnessOptions;

use super::ServeArgs;

/// The values of `--witness-keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Kept {
    Digests,
    Tokens,
}

impl ServeArgs {
    /// Returns the options of the server.
    ///
    /// # Errors
    /// The address is none of this machine, or the file of MCP servers cannot be used.
    pub(super) fn options(&self, app: &App) -> Result<ServerOptions> {
        let seconds = |n: usize| Duration::from_secs(n as u64);
        let defaults = ServerOptions::default();
        let mut scheduler = defaults.scheduler.clone();
        scheduler.prefill_tokens = self.prefill_chunk;
        scheduler.step_tokens = scheduler.step_tokens.max(self.prefill_chunk);
        Ok(ServerOptions {
            address: self.address()?,
            any_model_name: self.any_model_name,
            models_max: self.models_max.unwrap_or(usize::MAX),
            idle_timeout: self.idle_timeout.map(seconds),
            sampling: self.sampling.params(),
            speculation: self.speculation.speculate,
            learning: self.learn.then(|| LearningOptions {
                folder: Some(app.settings.learned_dir()),
                key: self.learn_key.clone(),
                process: "ruvllm serve".to_owned(),
                maintenance: self.upkeep(),
                ..LearningOptions::default()
            }),
            scheduler,
            autotune: self.autotune,
            queue_max: self.queue,
            is_verbose: self.llama_server.verbose,
            has_slots: !self.llama_server.no_slots,
            has_page: !self.llama_server.no_ui,
            truncates: self.llama_server.context_shift,
            loads_models: !self.llama_server.no_models_autoload,
            keys: KeyOptions {
                file: self.api_key_file.clone(),
                lines: app.settings.api_keys.iter().cloned().chain(self.llama_server.key_lines()).collect(),
            },
            metrics_key: self.metrics_key.clone(),
            router: self.router.clone(),
            witness: self.witness(),
            batches: self
                .batch_dir
                .clone()
                .map(|folder| BatchOptions { folder, tenant_bytes_max: (self.batch_mib as u64) << 20 }),
            mcp: self.mcp.options(app)?,
            tls: self.tls_cert.clone().zip(self.tls_key.clone()).map(|(cert, key)| TlsOptions { cert, key }),
            cors_origins: self.cors_origin.clone(),
            body_bytes_max: self.max_body,
            request_timeout: self.timeout.map(seconds),
            drain_timeout: seconds(self.drain),
            ..defaults
        })
    }

    /// Returns what is done with what was learned while nobody asks.
    fn upkeep(&self) -> Option<MaintenanceOptions> {
        let every = |seconds: u64| (seconds > 0).then(|| Duration::from_secs(seconds));
        let merge = |interval| BackgroundOptions { interval, ..BackgroundOptions::default() };
        let background = every(self.consolidate_every).map(merge);
        let judge_every = every(self.judge_every);
        let upkeep = MaintenanceOptions { background, evaluate_every: judge_every, ..MaintenanceOptions::default() };
        (upkeep.background.is_some() || upkeep.evaluate_every.is_some()).then_some(upkeep)
    }

    fn witness(&self) -> Option<WitnessOptions> {
        let options = |folder: &PathBuf| WitnessOptions {
            folder: folder.clone(),
            anchor: self.witness_anchor.clone(),
            keeps_tokens: self.witness_keep == Kept::Tokens,
            scores: self.witness_score,
            key: self.witness_key.clone(),
            syncs_each_batch: !self.witness_relaxed,
            is_required: self.witness_required,
        };
        self.witness.as_ref().map(options)
    }

    fn address(&self) -> Result<SocketAddr> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        found.ok_or_else(|| Error::usage(format_args!("--host {} is no address of this machine", self.host)))
    }
}
