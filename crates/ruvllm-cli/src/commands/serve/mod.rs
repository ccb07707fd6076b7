//! `ruvllm serve`: models behind the APIs of OpenAI and Anthropic.

mod adapter;
mod llama_server;
mod log;
mod mcp;
mod options;
mod reload;
mod remote;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::cache::CacheSizeArgs;
use ruvllm_cli_tools::args::sampling::SamplingArgs;
use ruvllm_cli_tools::args::{ContextArgs, LoadArgs, MAX_CTX};
use ruvllm_cli_tools::backend::LocalBackend;
use ruvllm_cli_tools::error::{Error, Result, one_line};
use ruvllm_cli_tools::remote::{BackendArgs, Chosen};
use ruvllm_cli_tools::speculation::{DraftHistoryArgs, SpeculationArgs};
use ruvllm_cli_tools::template::{self, TemplateArgs};
use ruvllm_cli_tools::values::count;
use ruvllm_cli_tools::{check, interrupt, lora, output};
use ruvllm_engine::{KvPolicy, LoadOptions};
use ruvllm_gguf::GgufFile;
use ruvllm_server::{AdapterOptions, DraftTextsOptions, KeyOptions, ModelSource, ServerOptions};

use adapter::AdapterArg;
use llama_server::{LlamaServerArgs, words_of};
use log::LogFormat;
use mcp::ServeMcpArgs;
use options::Kept;
use reload::SettingsReload;
use ruvllm_hub::DEFAULT_MODEL;

const EXAMPLES: &str = "\
Examples:
  ruvllm serve                                            SmolLM2 on http://127.0.0.1:8080
  ruvllm serve --model qwen2.5-coder:0.5b --ctx 16384 --parallel 8
  ruvllm serve --model smollm2:135m --model qwen2.5-coder:0.5b --idle-timeout 600
  ruvllm serve --adapter poet=./poet --adapter facts=facts.gguf --adapters ./more
  ruvllm serve --backend remote --url http://10.0.0.2:8000/v1 --api-key-file keys.txt
  ruvllm serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem
  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\
       -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Ctrl-C or SIGTERM: no new requests are taken, those at work may end; a second one stops at once.";

/// Requests that are computed at once, where nobody says how many.
const PARALLEL: usize = 8;
/// Tokens of prompts that are computed in one step, where nobody says how many.
const PREFILL_CHUNK: usize = 128;

/// The most seconds that can be asked for.
const MAX_SECONDS: usize = 1 << 30;

/// Options of `ruvllm serve`.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// Address to listen on; 0.0.0.0 is open to the network
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", help_heading = "Server")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8080, help_heading = "Server")]
    port: u16,
    /// Name of the model in the API, and others behind commas that it answers to as well; the second one is of the second
    /// --model [default: as --model names it]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    alias: Vec<String>,
    /// Answer requests whatever they call the model, where one is served; otherwise a name that is not served is 404
    #[arg(long, help_heading = "Server")]
    any_model_name: bool,
    /// The most models in memory at once: another one makes the least recently used go [default: all]
    #[arg(long, value_name = "N", value_parser = count::<1, 4096>, help_heading = "Server")]
    models_max: Option<usize>,
    /// Seconds after which a model that nobody uses is dropped; it is loaded again when it is asked for [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = count::<1, MAX_SECONDS>, help_heading = "Server")]
    idle_timeout: Option<usize>,
    /// Requests that are computed at once, or sent to another server [default: 8, and 64 with --backend remote]
    #[arg(long, value_name = "N", value_parser = count::<1, 4096>, help_heading = "Server")]
    parallel: Option<usize>,
    /// Requests that may wait beside them; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = count::<0, 1_000_000>, help_heading = "Server")]
    queue: usize,
    /// The most seconds that a request may take in all [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = count::<1, MAX_SECONDS>, help_heading = "Server")]
    timeout: Option<usize>,
    /// Seconds that requests may go on after the server was asked to stop
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = count::<0, MAX_SECONDS>, help_heading = "Server")]
    drain: usize,
    /// File with a line 'name key [concurrent=N] [priority=P] [kv_mib=N] [adapter_mib=N] [salt=WORD] [admin]' for each
    /// API key, or sha256:HEX in its place; an admin key may make and delete keys; read again when it changes
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    api_key_file: Option<PathBuf>,
    /// Name of the key that alone may read /metrics [default: each key may]
    #[arg(long, value_name = "NAME", help_heading = "Server")]
    metrics_key: Option<String>,
    /// Certificate in PEM, with those that vouch for it: connections are encrypted; read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key", help_heading = "Server")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert", help_heading = "Server")]
    tls_key: Option<PathBuf>,
    /// Origin whose web pages may ask, '*' for all; may be given several times
    #[arg(long, value_name = "ORIGIN", help_heading = "Server")]
    cors_origin: Vec<String>,
    /// The most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = count::<1024, { 1 << 32 }>, help_heading = "Server")]
    max_body: usize,
    /// Tokens of prompts that are computed in one step beside answers; more of them read prompts sooner and slow answers
    #[arg(long, value_name = "N", default_value_t = PREFILL_CHUNK, value_parser = count::<1, MAX_CTX>, help_heading = "Server")]
    prefill_chunk: usize,
    /// Measure other ways to fill steps, and take those that are faster; answers stay the same. With --witness what was
    /// learned is kept, and each answer's record says what was chosen and why
    #[arg(long, alias = "optimise", help_heading = "Server")]
    autotune: bool,
    /// Ways to keep the keys and values of long prompts that --autotune may choose from beside f16: q8, tiered. Answers may
    /// change a little by them
    #[arg(
        long,
        alias = "optimise-kv",
        value_name = "POLICY,...",
        value_delimiter = ',',
        requires = "autotune",
        help_heading = "Server"
    )]
    autotune_kv: Vec<KvPolicy>,
    /// Name from 'ruvllm list', hf:..., pypi:..., or path; may be given several times: the first is loaded at once and
    /// answers requests that name none, others are loaded when they are asked for [default: smollm2:135m]
    #[arg(short, long, value_name = "NAME|PATH", help_heading = "Model")]
    model: Vec<String>,
    /// Those of `model` that do not come from a folder of models: the first of them is loaded at once.
    #[arg(skip)]
    n_named: usize,
    #[command(flatten)]
    llama_server: LlamaServerArgs,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    backend: BackendArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    template: TemplateArgs,
    /// Most MiB for keys and values of each model, and its adapters [default: enough for all requests at once]
    #[arg(long, value_name = "MIB", value_parser = count::<2, { 1 << 24 }>, help_heading = "Model")]
    kv_mib: Option<usize>,
    /// Folder that keeps computed prompts for the next start, and what POST /slots/N?action=save is to keep [default: they are
    /// kept in memory only]
    #[arg(
        long,
        visible_alias = "slot-save-path",
        value_name = "DIR",
        conflicts_with = "no_prefix_cache",
        help_heading = "Cache"
    )]
    cache_dir: Option<PathBuf>,
    #[command(flatten)]
    cache_size: CacheSizeArgs,
    /// Compute every prompt from its first token on, also what is known from before
    #[arg(long, help_heading = "Cache")]
    no_prefix_cache: bool,
    /// LoRA adapter that requests may name: a PEFT folder, a GGUF file, or without PATH what 'ruvllm lora add' keeps by the
    /// name; MODEL: stands before it if it is not for the first one; may be given several times
    #[arg(long, value_name = "[MODEL:]NAME[=PATH]", help_heading = "Adapters")]
    adapter: Vec<AdapterArg>,
    /// Folder of adapters that requests may name and load while the server runs; of several models each has its own in it
    #[arg(long, value_name = "DIR", help_heading = "Adapters")]
    adapters: Option<PathBuf>,
    /// Most MiB of that for adapters that are ready for use; those that nobody uses are evicted for keys and values
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = count::<2, { 1 << 24 }>, help_heading = "Adapters")]
    adapter_memory: usize,
    /// Learn from requests, each key's for itself, and answer with what was learned; POST /v1/learning switches it off for a key
    #[arg(long, help_heading = "Learning")]
    learn: bool,
    /// File with the key that what is learned is encrypted with: 32 bytes or 64 hexadecimal digits
    #[arg(long, value_name = "FILE", requires = "learn", help_heading = "Learning")]
    learn_key: Option<PathBuf>,
    /// Seconds between two merges of what was learned fast into what is kept; 0 merges nothing
    #[arg(long, value_name = "SECONDS", requires = "learn", default_value_t = 300, help_heading = "Learning")]
    consolidate_every: u64,
    /// Seconds between two questions whether what was learned is good, by text that was held back; 0 asks nothing, and holds
    /// nothing back
    #[arg(long, value_name = "SECONDS", requires = "learn", default_value_t = 900, help_heading = "Learning")]
    judge_every: u64,
    /// Folder of a router ('ruvllm route train'): it chooses among the models where a request asks for the model 'auto'
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    router: Option<PathBuf>,
    /// Folder where each answer is put on record, in a chain that shows when somebody touched it [default: nowhere]
    #[arg(long, value_name = "DIR", help_heading = "Witness log")]
    witness: Option<PathBuf>,
    /// What of prompts and answers is kept: digests, or their tokens too, which replaying needs
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Kept::Digests, requires = "witness", help_heading = "Witness log")]
    witness_keep: Kept,
    /// Score each answer behind its end and put that on record: its form, coherence, diversity, consistency and novelty
    #[arg(long, requires = "witness", help_heading = "Witness log")]
    witness_score: bool,
    /// File for the newest anchor, best on another disk [default: anchor in that folder]
    #[arg(long, value_name = "FILE", requires = "witness", help_heading = "Witness log")]
    witness_anchor: Option<PathBuf>,
    /// File with 32 random bytes or 64 hexadecimal digits: the log is encrypted with them
    #[arg(long, value_name = "FILE", requires = "witness", help_heading = "Witness log")]
    witness_key: Option<PathBuf>,
    /// Let only every tenth batch wait for the disk; what a crash takes along is the last seconds
    #[arg(long, requires = "witness", help_heading = "Witness log")]
    witness_relaxed: bool,
    /// Refuse requests with 503 while the log cannot be written, rather than answer them without a record.
    #[arg(long, requires = "witness", help_heading = "Witness log")]
    witness_required: bool,
    /// Folder that keeps files and batches (/v1/files, /v1/batches): requests that are answered while nobody else asks [default: there
    /// are none]
    #[arg(long, value_name = "DIR", help_heading = "Server")]
    batch_dir: Option<PathBuf>,
    /// Most MiB of each key's files and answers there
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = count::<1, { 1 << 24 }>, help_heading = "Server")]
    batch_mib: usize,
    #[command(flatten)]
    mcp: ServeMcpArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    speculation: SpeculationArgs,
    #[command(flatten)]
    draft_history: DraftHistoryArgs,
    /// How the log is written: as text, or as JSON with one object a line
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormat::Text, help_heading = "Server")]
    log_format: LogFormat,
    /// Level of the log: error, warn, info, debug or off, also by part of the program (warn,ruvllm_server=debug). Requests
    /// are info, probes of /health, /ready and /metrics are debug
    #[arg(
        long,
        value_name = "LEVEL",
        env = "RUST_LOG",
        hide_env_values = true,
        default_value = "info",
        help_heading = "Server"
    )]
    log_level: log::Levels,
    /// Send the span of each request to an OpenTelemetry collector, such as http://127.0.0.1:4318/v1/traces
    #[cfg(feature = "otlp")]
    #[arg(long, value_name = "URL", help_heading = "Server")]
    otlp_endpoint: Option<String>,
    /// Write the log and where the server listens as JSON
    #[arg(long)]
    json: bool,
}

impl ServeArgs {
    /// Serves until it is asked to stop.
    ///
    /// # Errors
    /// A failure if the model cannot be had, the keys cannot be read or the address is taken.
    pub fn run(&self, app: &App) -> Result<()> {
        self.with_models()?.serve(app)
    }

    /// Returns the options with all models that are to be served in one list.
    fn with_models(&self) -> Result<ServeArgs> {
        let (mut args, found) = (self.clone(), self.llama_server.models()?);
        if args.model.is_empty() && found.is_empty() {
            args.model.push(DEFAULT_MODEL.to_owned());
        }
        args.n_named = args.model.len();
        args.model.extend(found.iter().map(|path| path.to_string_lossy().into_owned()));
        Ok(args)
    }

    fn serve(&self, app: &App) -> Result<()> {
        let options = self.options(app)?;
        let chosen = self.backend.chosen(&self.load)?;
        match &chosen {
            Chosen::Local(_) => self.check(app)?,
            Chosen::Remote(_) => self.check_remote()?,
        }
        self.check_places(app)?;
        ruvllm_server::check(&options).map_err(Error::failure)?;
        let log = log::start(
            if self.json { LogFormat::Json } else { self.log_format },
            self.log_level.clone(),
            #[cfg(feature = "otlp")]
            self.otlp_endpoint.as_deref(),
        )?;
        let app = &app.in_log();
        let (names, models) = match chosen {
            Chosen::Local(backend) => self.models(app, backend)?,
            Chosen::Remote(url) => self.remote_models(app, url)?,
        };
        if options.keys.is_open() && !options.address.ip().is_loopback() {
            tracing::warn!("everybody who reaches {} may ask; --api-key-file says who may", options.address);
        }
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let ready = |address: SocketAddr| {
            // Who started the server reads this; that nobody does is no reason to stop.
            let line = match self.json {
                true => {
                    let (url, first) = (format!("{scheme}://{address}"), &names[0]);
                    serde_json::json!({ "listening": url, "model": first, "models": names }).to_string()
                }
                false if names.len() == 1 => format!("{} is served at {scheme}://{address}", names[0]),
                false => format!("{} are served at {scheme}://{address}", names.join(", ")),
            };
            let _ = output::print_line(&line);
        };
        let reload = SettingsReload::watch(app, self, log.levels.clone(), names.clone())?;
        let engines = ruvllm_server::run_reloading(models, options, reload, &ready, interrupt::stop());
        let engines = engines.map_err(Error::failure)?;
        for engine in engines {
            engine.flush_cache()?;
            if let Some(stats) = engine.disk_stats().filter(|stats| stats.n_failed > 0) {
                let (model, why) = (&engine.info().name, stats.last_failure.unwrap_or_default());
                app.ui.warn(&format!(
                    "{} blocks of computed prompts of {model} are not in the cache folder, whose disk failed and works again: {}",
                    stats.n_failed,
                    one_line(&why)
                ));
            }
        }
        Ok(())
    }

    /// Returns the names of the models, the models and the options of a server that takes requests of this process only.
    ///
    /// # Errors
    /// As [`ServeArgs::run`], but for its connections.
    pub fn embedded(&self, app: &App) -> Result<(Vec<String>, Vec<ModelSource>, ServerOptions)> {
        let args = self.with_models()?;
        let options = ServerOptions { keys: KeyOptions::default(), has_page: false, ..args.options(app)? };
        options.sampling.validate()?;
        let (names, models) = match args.backend.chosen(&args.load)? {
            Chosen::Local(backend) => {
                args.check(app)?;
                args.check_places(app)?;
                args.models(app, backend)?
            }
            Chosen::Remote(url) => {
                args.check_remote()?;
                args.check_places(app)?;
                args.remote_models(app, url)?
            }
        };
        Ok((names, models, options))
    }

    /// Checks that there is a model for each list of names.
    fn check_aliases(&self) -> Result<()> {
        if self.alias.len() > self.model.len() {
            let (n, n_models) = (self.alias.len(), self.model.len());
            return Err(Error::usage(format_args!("{n} times --alias for {n_models} of --model; give one for each")));
        }
        Ok(())
    }

    /// Checks what was given before a model is brought or loaded.
    fn check(&self, app: &App) -> Result<()> {
        self.check_aliases()?;
        self.model.iter().try_for_each(|spec| app.store().check(spec))?;
        self.speculation.check(app)?;
        self.template.read()?;
        let names: Vec<String> = self.names();
        if let Some(name) = names.iter().enumerate().find_map(|(i, name)| names[..i].contains(name).then_some(name)) {
            return Err(Error::usage(format_args!(
                "two models are called '{name}'; give them different names by --alias"
            )));
        }
        self.check_adapters(&names)?;
        for (i, name) in names.iter().enumerate() {
            let adapters = self.adapters(app, name, i == 0)?;
            adapters.named.iter().try_for_each(|(_, path)| lora::check_there(path))?;
            self.cache_dir(name).map_or(Ok(()), |folder| check::writable_folder(&folder))?;
        }
        Ok(())
    }

    /// Checks the places where what is learned and the record are kept.
    fn check_places(&self, app: &App) -> Result<()> {
        if self.learn {
            check::key(self.learn_key.as_deref())?;
            check::writable_folder(&app.settings.learned_dir())?;
        }
        if let Some(folder) = &self.witness {
            check::key(self.witness_key.as_deref())?;
            check::writable_folder(folder)?;
            self.witness_anchor.as_deref().map_or(Ok(()), |anchor| check::writable(anchor, &[]))?;
        }
        Ok(())
    }

    /// Returns what the models are called.
    fn names(&self) -> Vec<String> {
        let name = |(i, spec): (usize, &String)| {
            let of_folder = || self.llama_server.name_of(Path::new(spec)).filter(|_| i >= self.n_named);
            let alias = self.alias.get(i).and_then(|names| words_of(names).into_iter().next());
            alias.or_else(of_folder).unwrap_or_else(|| model_name(spec))
        };
        self.model.iter().enumerate().map(name).collect()
    }

    /// Returns the models and their names; the first is loaded. All are there as sound files then.
    fn models(&self, app: &App, backend: LocalBackend) -> Result<(Vec<String>, Vec<ModelSource>)> {
        let (names, mut models, template) = (self.names(), Vec::new(), self.template.read()?);
        for (i, (spec, name)) in self.model.iter().zip(&names).enumerate() {
            let path = app.store().locate(spec, true)?;
            let is_loaded = i == 0 && self.n_named > 0;
            if let Some(error) = (!is_loaded).then(|| GgufFile::open(&path).err()).flatten() {
                // It is loaded when it is first asked for, and then refused; the others are served.
                tracing::warn!(model = name, %error, "it cannot be used as it is");
            }
            let load = LoadOptions {
                n_seq_max: self.parallel.unwrap_or(PARALLEL),
                kv_others: self.autotune_kv.clone(),
                kv_bytes: self.kv_mib.map(|mib| mib << 20),
                adapter_bytes: self.adapter_memory << 20,
                prefix_cache: !self.no_prefix_cache,
                cache_dir: self.cache_dir(name),
                cache_bytes: self.cache_size.bytes_max(),
                draft: if i == 0 { self.speculation.draft(app)? } else { None },
                ..self.load.options(&app.settings, self.context.n_ctx)
            };
            let template = template.clone().filter(|_| i == 0);
            let mut engine = if is_loaded { Some(app.load_on(backend, &path, &load)?) } else { None };
            engine.iter_mut().try_for_each(|engine| template::apply(engine, template.as_deref()))?;
            let file = path.file_name().map(|file| file.to_string_lossy().into_owned()).unwrap_or_default();
            engine.iter().for_each(|engine| app.warn_context(engine.info()));
            let gpu = app.settings.gpu.clone();
            let again = move || {
                let mut engine = backend.load(&path, &load, gpu.as_deref(), &mut |_| {})?;
                template::apply(&mut engine, template.as_deref()).map(|()| engine)
            };
            let source = ModelSource::new(name, Box::new(again));
            let aliases =
                self.alias.get(i).map(|names| words_of(names).into_iter().skip(1).collect()).unwrap_or_default();
            let source = source.with_aliases(aliases).with_tags(self.llama_server.tags_of(i));
            let source = source.with_file(file).with_adapters(self.adapters(app, name, i == 0)?);
            let source = source.with_draft_texts(self.draft_texts(app, name));
            models.push(match engine {
                Some(engine) => source.with_engine(engine),
                None => source,
            });
        }
        Ok((names, models))
    }

    /// Returns the adapters of a model.
    fn adapters(&self, app: &App, model: &str, is_first: bool) -> Result<AdapterOptions> {
        let folder = self.adapters.as_ref().map(|folder| self.own_folder(folder, model));
        if let Some(folder) = folder.as_ref().filter(|folder| !folder.is_dir()) {
            let line = format!("--adapters: there is no folder {}; make it", folder.display());
            return Err(Error::failure(line));
        }
        let is_its_own = |arg: &&AdapterArg| arg.model.as_deref().map_or(is_first, |named| named == model);
        let named = self.adapter.iter().filter(is_its_own);
        let named = named.map(|arg| (arg.name.clone(), lora::locate(app, &arg.path))).collect();
        Ok(AdapterOptions { folder, named, bytes_max: self.adapter_memory << 20 })
    }

    /// Checks that adapters are for models that are served.
    fn check_adapters(&self, names: &[String]) -> Result<()> {
        let unknown = self.adapter.iter().find_map(|arg| arg.model.as_ref().filter(|model| !names.contains(model)));
        match unknown {
            None => Ok(()),
            Some(model) => {
                let line = format!("--adapter: the model '{model}' is not served; {} are", names.join(", "));
                Err(Error::usage(line))
            }
        }
    }

    /// Returns the cache folder of a model: of several each has its own within.
    fn cache_dir(&self, name: &str) -> Option<PathBuf> {
        self.cache_dir.as_ref().map(|folder| self.own_folder(folder, name))
    }

    /// Returns what is kept of texts that drafts are made of: in the cache folder, else where learned state is.
    fn draft_texts(&self, app: &App, name: &str) -> DraftTextsOptions {
        let learned = || self.learn.then(|| app.settings.learned_dir());
        DraftTextsOptions {
            bytes_max: self.draft_history.bytes_max(&app.settings),
            folder: self.cache_dir(name).or_else(learned),
            key: self.learn_key.clone(),
        }
    }

    /// Returns what a model has of a folder: of several each has its own within.
    fn own_folder(&self, folder: &Path, name: &str) -> PathBuf {
        let own: String =
            name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
        if self.model.len() > 1 { folder.join(own) } else { folder.to_owned() }
    }
}

/// Returns what a model is called: its name as it was given, or that of its file.
fn model_name(name: &str) -> String {
    let is_path = name.ends_with(".gguf") && !name.starts_with("hf:") && !name.starts_with("pypi:");
    let stem = std::path::Path::new(name).file_stem().filter(|_| is_path);
    stem.map_or_else(|| name.to_owned(), |stem| stem.to_string_lossy().into_owned())
}
