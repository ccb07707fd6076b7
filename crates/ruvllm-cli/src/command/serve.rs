//! `ruvllm serve`: one model behind the APIs of OpenAI and Anthropic.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use ruvllm_engine::LoadOptions;
use ruvllm_server::{KeyOptions, ServerOptions};

use super::App;
use crate::args::{ContextArgs, LoadArgs, MAX_CTX, ModelArgs, SamplingArgs, SpeculationArgs, count};
use crate::error::{Error, Result};
use crate::{interrupt, output};

const EXAMPLES: &str = "\
Examples:
  ruvllm serve                                            SmolLM2 on http://127.0.0.1:8080
  ruvllm serve --model qwen2.5-coder:0.5b --ctx 16384 --parallel 8
  ruvllm serve --host 0.0.0.0 --api-key-file keys.txt     for others, who need a key
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Ctrl-C or SIGTERM: no new requests are taken, those at work may end; a second one stops at once.";

/// The most seconds that can be asked for.
const MAX_SECONDS: usize = 1 << 30;

/// Options of `ruvllm serve`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Address to listen on; 0.0.0.0 is open to the network
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Server")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080, help_heading = "Server")]
    port: u16,
    /// Name of the model in the API [default: as --model names it]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    alias: Option<String>,
    /// Requests that are computed at once
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count::<1, 4096>, help_heading = "Server")]
    parallel: usize,
    /// Requests that may wait beside them; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = count::<0, 1_000_000>, help_heading = "Server")]
    queue: usize,
    /// The most seconds that a request may take in all [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = count::<1, MAX_SECONDS>, help_heading = "Server")]
    timeout: Option<usize>,
    /// Seconds that requests may go on after the server was asked to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = count::<0, MAX_SECONDS>, help_heading = "Server")]
    drain: usize,
    /// File with a line 'name key [concurrent=N] [priority=P]' for each API key; read again when it changes
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    api_key_file: Option<PathBuf>,
    /// Origin whose web pages may ask, '*' for all; may be given several times
    #[arg(long, value_name = "ORIGIN", help_heading = "Server")]
    cors_origin: Vec<String>,
    /// The most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = count::<1024, { 1 << 32 }>, help_heading = "Server")]
    max_body: usize,
    /// Tokens of prompts that are computed in one step beside answers; more of them read prompts sooner and slow answers
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count::<1, MAX_CTX>, help_heading = "Server")]
    prefill_chunk: usize,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    load: LoadArgs,
    /// Most MiB for keys and values [default: enough for all requests at once]
    #[arg(long, value_name = "MIB", value_parser = count::<2, { 1 << 24 }>, help_heading = "Model")]
    kv_mib: Option<usize>,
    /// Folder that keeps computed prompts for the next start [default: they are kept in memory only]
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix_cache", help_heading = "Cache")]
    cache_dir: Option<PathBuf>,
    /// Compute every prompt from its first token on, also what is known from before
    #[arg(long, help_heading = "Cache")]
    no_prefix_cache: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    /// Write the log as JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl ServeArgs {
    /// Serves until it is asked to stop.
    ///
    /// # Errors
    /// A failure if the model cannot be had, the keys cannot be read or the address is taken.
    pub fn run(&self, app: &App) -> Result<()> {
        let options = self.options(app)?;
        let path = app.store().locate(&self.model.model, true)?;
        let load = LoadOptions {
            n_seq_max: self.parallel,
            kv_bytes: self.kv_mib.map(|mib| mib << 20),
            prefix_cache: !self.no_prefix_cache,
            cache_dir: self.cache_dir.clone(),
            draft: self.speculation.draft(app)?,
            ..self.load.options(&app.settings, self.context.n_ctx)
        };
        let engine = app.load(&path, &load)?;
        output::log(self.json);
        if options.keys.is_open() && !options.address.ip().is_loopback() {
            tracing::warn!("everybody who reaches {} may ask; --api-key-file says who may", options.address);
        }
        let model = options.model.clone();
        let ready = |address: SocketAddr| {
            // Who started the server reads this; that nobody does is no reason to stop.
            let line = match self.json {
                true => serde_json::json!({ "listening": format!("http://{address}"), "model": model }).to_string(),
                false => format!("{model} is served at http://{address}"),
            };
            let _ = output::print_line(&line);
        };
        let engine = ruvllm_server::run(engine, options, &ready, interrupt::stop()?);
        let engine = engine.map_err(Error::failure)?;
        engine.flush_cache()?;
        Ok(())
    }

    fn options(&self, app: &App) -> Result<ServerOptions> {
        let seconds = |n: usize| Duration::from_secs(n as u64);
        let defaults = ServerOptions::default();
        let mut scheduler = defaults.scheduler.clone();
        scheduler.prefill_tokens = self.prefill_chunk;
        scheduler.step_tokens = scheduler.step_tokens.max(self.prefill_chunk);
        Ok(ServerOptions {
            address: self.address()?,
            model: self.alias.clone().unwrap_or_else(|| self.model_name()),
            sampling: self.sampling.params(),
            speculation: self.speculation.speculate,
            scheduler,
            queue_max: self.queue,
            keys: KeyOptions { file: self.api_key_file.clone(), lines: app.settings.api_keys.clone() },
            cors_origins: self.cors_origin.clone(),
            body_bytes_max: self.max_body,
            request_timeout: self.timeout.map(seconds),
            drain_timeout: seconds(self.drain),
            ..defaults
        })
    }

    fn address(&self) -> Result<SocketAddr> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let found = (self.host.as_str(), self.port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        found.ok_or_else(|| Error::usage(format_args!("--host {} is no address of this machine", self.host)))
    }

    /// Returns what the model is called: its name as it was given, or that of its file.
    fn model_name(&self) -> String {
        let name = &self.model.model;
        let is_path = name.ends_with(".gguf") && !name.starts_with("hf:") && !name.starts_with("pypi:");
        let stem = std::path::Path::new(name).file_stem().filter(|_| is_path);
        stem.map_or_else(|| name.clone(), |stem| stem.to_string_lossy().into_owned())
    }
}
