//! `ruvllm sona`: the log of what a model was taught, undoing, going back, and what was learned from node to node.

mod patterns;
use std::fs;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use ruvllm_api::learning::{generation_json, item_json};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, ModelArgs, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::learning::{TENANT, check_place, open, stats_json};
use ruvllm_cli_tools::out_file::OutFile;
use ruvllm_cli_tools::output::{self, print, print_json, print_line, table, timestamp};
use ruvllm_cli_tools::{check, interrupt, signing_key};
use ruvllm_engine::{CancelToken, Engine, EngineError, LoadOptions};
use ruvllm_learning as learning;
use ruvllm_learning::{Item, Learning, LearningOptions, PublicKey, TenantLearning, TenantLog, check_tenant};
use ruvllm_sona::bank::{self, Imported, Trust};
use ruvllm_sona::history;
use serde_json::{Value, json};

use crate::commands::sona::patterns::PatternsArgs;

const EXAMPLES: &str = "\
Examples:
  ruvllm sona status                          generations of what was learned
  ruvllm sona log --limit 50                  what it was learned from, the newest first
  ruvllm sona undo 17                         as if item 17 had never been
  ruvllm sona rollback 2                      back to generation 2; 0 is the model alone
  ruvllm sona export knowledge.ruv            a signed file, for another node
  ruvllm sona import knowledge.ruv --trust KEY
  ruvllm sona patterns 'sort a list'          how tasks like this one went before
  ruvllm sona export --patterns tasks.ruv     these, for another node

While a server learns for the model, ask the server (/v1/learning).";

/// `ruvllm sona`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct SonaCommand {
    #[command(subcommand)]
    command: SonaSubcommand,
}

#[derive(Debug, Subcommand)]
enum SonaSubcommand {
    /// Show the tenants of a model, and the generations of one
    Status(StatusArgs),
    /// List what was taken in, the newest first
    Log(LogArgs),
    /// Take items back: what is known is then what would be known if they had never been
    Undo(UndoArgs),
    /// Go back to a generation; what came since is kept as one too
    Rollback(RollbackArgs),
    /// Write what was learned into a signed file
    Export(ExportArgs),
    /// Take over what another node has learned, in place of what is known here; its patterns beside those that are here
    Import(ImportArgs),
    /// List how judged tasks were gone about (the ReasoningBank), or find tasks like one
    Patterns(PatternsArgs),
}

/// Whose learning, of which model.
#[derive(Args, Clone, Debug)]
struct TenantArgs {
    /// Whose learning it is; a server's are 'everybody', or 'key.NAME' for a key
    #[arg(long, value_name = "NAME", default_value = TENANT)]
    tenant: String,
    /// File with the key that it is encrypted with: 32 bytes or 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    learn_key: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct StatusArgs {
    #[command(flatten)]
    of: TenantArgs,
}

#[derive(Args, Debug)]
struct LogArgs {
    /// The most items
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
    #[command(flatten)]
    of: TenantArgs,
}

#[derive(Args, Debug)]
struct UndoArgs {
    /// Items, as 'ruvllm sona log' numbers them
    #[arg(value_name = "ITEM", required = true)]
    items: Vec<u64>,
    #[command(flatten)]
    of: TenantArgs,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Args, Debug)]
struct RollbackArgs {
    /// The generation, as 'ruvllm sona status' numbers them; 0 is the model alone
    #[arg(value_name = "GENERATION")]
    generation: u64,
    #[command(flatten)]
    of: TenantArgs,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Args, Debug)]
struct ExportArgs {
    /// The file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The patterns of the ReasoningBank, not what the model learned
    #[arg(long)]
    patterns: bool,
    /// File with this node's secret key, 32 bytes; made if it is not there [default: node.key in RUVLLM_HOME]
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    #[command(flatten)]
    of: TenantArgs,
    #[command(flatten)]
    load: LoadArgs,
}

#[derive(Args, Debug)]
struct ImportArgs {
    /// The file to read
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// It is a file of patterns
    #[arg(long)]
    patterns: bool,
    /// Public key of a node whose files are taken, 64 hexadecimal digits; may be given several times
    #[arg(long, value_name = "KEY", required = true)]
    trust: Vec<String>,
    #[command(flatten)]
    of: TenantArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// A loaded model and what a tenant taught it.
struct Loaded {
    engine: Engine,
    learning: Learning,
    tenant: Arc<TenantLearning>,
}

impl TenantArgs {
    fn options(&self, app: &App) -> LearningOptions {
        LearningOptions {
            folder: Some(app.settings.learned_dir()),
            key: self.learn_key.clone(),
            process: "ruvllm sona".to_owned(),
            ..LearningOptions::default()
        }
    }

    /// Loads the model, under a progress bar.
    fn load(&self, app: &App, load: &LoadArgs) -> Result<Loaded> {
        self.check(app)?;
        let path = app.store().locate(&self.model.model, true)?;
        let mut engine = app.load(&path, &LoadOptions { n_seq_max: 1, ..load.options(&app.settings, None) })?;
        let (learning, tenant) = open(app, &mut engine, Some(&self.tenant), self.learn_key.as_deref())?;
        Ok(Loaded { engine, learning, tenant })
    }

    /// Checks whose it is, and where it is kept.
    fn check(&self, app: &App) -> Result<()> {
        check_place(app, &self.tenant, self.learn_key.as_deref())?;
        Ok(app.store().check(&self.model.model)?)
    }

    /// Returns how the log stands, without loading the model.
    fn look(&self, app: &App, n: usize) -> Result<Option<TenantLog>> {
        check_tenant(&self.tenant)?;
        check::key(self.learn_key.as_deref())?;
        let path = app.store().locate(&self.model.model, true)?;
        Ok(learning::look(&path, &self.options(app), &self.tenant, n)?)
    }

    fn nothing(&self) -> Result<()> {
        print_line(&format!("{} was taught nothing by '{}'", self.model.model, self.tenant))
    }
}

impl Loaded {
    /// Reads something again under a bar that counts tokens.
    fn reading<T>(
        &mut self,
        app: &App,
        work: impl FnOnce(&TenantLearning, &mut Engine, &mut learning::ReadWatch<'_>) -> Result<T>,
    ) -> Result<T> {
        let (bar, cancel) = (app.ui.spinner("reading again"), CancelToken::default());
        let _guard = interrupt::cancels(&cancel);
        let result = work(&self.tenant, &mut self.engine, &mut |n| {
            bar.inc(n as u64);
            if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        bar.finish_and_clear();
        result
    }

    /// Keeps what is known now, and says what that is.
    fn finish(&self, of: &TenantArgs, what: &str, more: Value) -> Result<()> {
        self.learning.save()?;
        let digest = hex::encode(self.tenant.digest());
        if !of.output.json {
            let stats = self.tenant.stats();
            return print_line(&format!(
                "{what}; {} knows {} entries and {} corrections now",
                self.tenant.name(),
                stats.n_entries,
                stats.n_corrections
            ));
        }
        let mut object = more;
        object["tenant"] = json!(self.tenant.name());
        object["digest"] = json!(digest);
        object["learned"] = stats_json(&self.tenant);
        print_json(&object)
    }
}

impl SonaCommand {
    /// Does what the subcommand says.
    ///
    /// # Errors
    /// Another process learns for the model, there is no such item or generation, or a file cannot be used.
    pub fn run(&self, app: &App) -> Result<()> {
        match &self.command {
            SonaSubcommand::Status(args) => args.run(app),
            SonaSubcommand::Log(args) => args.run(app),
            SonaSubcommand::Undo(args) => args.run(app),
            SonaSubcommand::Rollback(args) => args.run(app),
            SonaSubcommand::Export(args) => args.run(app),
            SonaSubcommand::Import(args) => args.run(app),
            SonaSubcommand::Patterns(args) => args.run(app),
        }
    }
}

impl StatusArgs {
    fn run(&self, app: &App) -> Result<()> {
        let path = app.store().locate(&self.of.model.model, true)?;
        let tenants = learning::tenants(&path, &self.of.options(app))?;
        let log = self.of.look(app, 1)?;
        if self.of.output.json {
            let log = log.unwrap_or_default();
            return print_json(&json!({
                "model": self.of.model.model,
                "tenants": tenants,
                "tenant": self.of.tenant,
                "generation": log.generation,
                "last_item": log.items.first().map_or(0, |(id, ..)| *id),
                "generations": log.generations.iter().map(generation_json).collect::<Vec<_>>(),
            }));
        }
        print_line(&format!("tenants: {}", if tenants.is_empty() { "none".to_owned() } else { tenants.join(", ") }))?;
        let Some(log) = log else { return self.of.nothing() };
        let last = log.items.first().map_or(0, |(id, ..)| *id);
        print_line(&format!("{} is at generation {}, item {last}", self.of.tenant, log.generation))?;
        let mut rows = vec![["GENERATION", "FROM", "ITEMS", "WHEN (UTC)", "WHY"].map(str::to_owned).to_vec()];
        rows.extend(log.generations.iter().map(|generation| {
            vec![
                generation.number.to_string(),
                generation.parent.to_string(),
                format!("{} to {}", generation.first, generation.end.saturating_sub(1)),
                when(generation.unix_ms),
                generation.why.clone(),
            ]
        }));
        if rows.len() > 1 { print(&table(&rows, &[0, 1])) } else { Ok(()) }
    }
}

impl LogArgs {
    fn run(&self, app: &App) -> Result<()> {
        let log = self.of.look(app, self.limit)?;
        if self.of.output.json {
            let items: Vec<Value> = log.unwrap_or_default().items.iter().map(item_json).collect();
            return print_json(&json!({ "tenant": self.of.tenant, "items": items }));
        }
        let Some(log) = log else { return self.of.nothing() };
        let mut rows = vec![["ITEM", "WHEN (UTC)", "WHAT", "UNDO"].map(str::to_owned).to_vec()];
        rows.extend(log.items.iter().map(|item| {
            let can_undo = if item.2.has_effect() { "yes" } else { "" };
            vec![item.0.to_string(), when(item.1), what(item), can_undo.to_owned()]
        }));
        print(&table(&rows, &[0]))
    }
}

/// Returns what an item was, in words.
fn what(item: &(u64, u64, Item)) -> String {
    let value = item_json(item);
    let text = |name: &str| match &value[name] {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    match text("kind").as_str() {
        "read" => format!("{} of {} tokens, quality {}", text("what"), text("tokens"), text("quality")),
        "told" if value["right"] == true => format!("an answer of {} tokens was told", text("tokens")),
        "told" => format!("an answer of {} tokens was called wrong", text("tokens")),
        "discarded" => format!("discarded: {}", text("why")),
        "rolled_back" => format!("back to generation {}", text("generation")),
        "took_back" => format!("item {} was taken back", text("of")),
        kind => kind.replace('_', " "),
    }
}

fn when(unix_ms: u64) -> String {
    timestamp(unix_ms / 1000).replace('T', " ").chars().take(16).collect()
}

impl UndoArgs {
    fn run(&self, app: &App) -> Result<()> {
        self.of.check(app)?;
        let log = self.of.look(app, usize::MAX)?.unwrap_or_default();
        if let Some(unknown) = self.items.iter().find(|&item| log.items.iter().all(|(id, ..)| id != item)) {
            let line = format!("there is no item {unknown}; 'ruvllm sona log' shows those that are kept");
            return Err(Error::failure(line));
        }
        let mut loaded = self.of.load(app, &self.load)?;
        loaded.reading(app, |tenant, engine, watch| Ok(tenant.undo(engine, &self.items, watch)?))?;
        let items = self.items.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        loaded.finish(&self.of, &format!("undone: {items}"), json!({ "undone": self.items }))
    }
}

impl RollbackArgs {
    fn run(&self, app: &App) -> Result<()> {
        self.of.check(app)?;
        let log = self.of.look(app, 1)?.unwrap_or_default();
        if self.generation != 0 && log.generations.iter().all(|generation| generation.number != self.generation) {
            let kept: String = log.generations.iter().map(|generation| format!(", {}", generation.number)).collect();
            let line = format!("generation {} is not kept; choose of: 0{kept}", self.generation);
            return Err(Error::failure(line));
        }
        let mut loaded = self.of.load(app, &self.load)?;
        loaded.reading(app, |tenant, engine, watch| Ok(tenant.rollback(engine, self.generation, watch)?))?;
        let generation = self.generation;
        loaded.finish(&self.of, &format!("back to generation {generation}"), json!({ "generation": generation }))
    }
}

impl ExportArgs {
    fn run(&self, app: &App) -> Result<()> {
        self.of.check(app)?;
        check::writable(&self.file, &[])?;
        let key_file = self.sign_key.clone().unwrap_or_else(|| app.settings.home.join("node.key"));
        let key = signing_key::read_or_create(&key_file)?;
        let model = app.store().locate(&self.of.model.model, true)?;
        let out = OutFile::create(&self.file, &[&model, &key_file])?;
        let loaded = self.of.load(app, &self.load)?;
        let file = if self.patterns { loaded.tenant.export_patterns(&key)? } else { loaded.tenant.export(&key)? };
        out.write_whole(&file)?;
        let (n, key) = (file.len(), key.public().to_string());
        let what = format!("{} in {}, signed by {key}", output::bytes(n as u64), self.file.display());
        loaded.finish(&self.of, &what, json!({ "file": self.file.display().to_string(), "bytes": n, "signed_by": key }))
    }
}

impl ImportArgs {
    fn run(&self, app: &App) -> Result<()> {
        let parse = |text: &String| PublicKey::parse(text).map_err(|error| Error::usage(format!("--trust: {error}")));
        let trusted = self.trust.iter().map(parse).collect::<Result<Vec<_>>>()?;
        let file = fs::read(&self.file).map_err(|error| Error::io("read", &self.file, &error))?;
        let refused = |error: EngineError| Error::failure(format_args!("{}: {error}", self.file.display()));
        let signed = match self.patterns {
            true => bank::signed_by(&file, &Trust::new(&trusted)),
            false => history::signed_by(&file, &trusted),
        };
        signed.map_err(|error| refused(learning::of_sona(error)))?;
        let loaded = self.of.load(app, &self.load)?;
        if self.patterns {
            let imported = loaded.tenant.import_patterns(&file, &trusted).map_err(refused)?;
            let Imported { n_added, n_known, signed_by } = imported;
            let what = format!("{n_added} patterns are new, {n_known} were known; signed by {signed_by}");
            let more = json!({ "added": n_added, "known": n_known, "signed_by": signed_by.to_string() });
            return loaded.finish(&self.of, &what, more);
        }
        let (generation, signed_by) = loaded.tenant.import(&file, &trusted).map_err(refused)?;
        let what = format!("generation {generation} is that of {}, signed by {signed_by}", self.file.display());
        loaded.finish(&self.of, &what, json!({ "generation": generation, "signed_by": signed_by.to_string() }))
    }
}
