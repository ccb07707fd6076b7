//! `ruvllm witness`: what a server put on record, whether it was touched, and running it again.

mod replay;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use ruvllm_api::record::record_json;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::check;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::out_file::OutFile;
use ruvllm_cli_tools::output::{print, print_json, print_line, table, timestamp};
use ruvllm_cli_tools::values::age;
use ruvllm_cli_tools::witness_store::open_written;
use ruvllm_engine::tokenizer::{DecodeOptions, Tokenizer};
use ruvllm_gguf::GgufFile;
use ruvllm_router::HashedWords;
use ruvllm_sona::store::Store;
use ruvllm_sona::witness::{self, Anchor, Event, LogOptions, Query, Recorded, Served, WitnessLog};
use ruvllm_sona::{SonaError, now_ms};
use ruvllm_witness::{ANCHOR_FILE, STORE_FILE, WitnessOptions, fault_name, number_of};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm serve --witness ./log --witness-keep tokens     a server that can be asked afterwards
  ruvllm witness list ./log
  ruvllm witness search ./log --since 1d --failed --json
  ruvllm witness search ./log --like \"parcel never came\" --model smollm2:135m
  ruvllm witness verify ./log --anchor 1742:9f3c...      against an anchor that was kept elsewhere
  ruvllm witness replay ./log --model smollm2:135m       run it again, token for token
  ruvllm witness erase ./log --tenant ann                contents go, the chain over them stands

One process has the log at a time: while a server writes it, ask the server (/v1/witness).";

/// `ruvllm witness`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct WitnessCommand {
    #[command(subcommand)]
    command: WitnessSubcommand,
}

#[derive(Debug, Subcommand)]
enum WitnessSubcommand {
    /// List the newest records
    List(ListArgs),
    /// Find records by time, model, quality, error or likeness
    Search(SearchArgs),
    /// Check that nothing was edited, removed or swapped
    Verify(VerifyArgs),
    /// Run recorded requests again and compare their tokens
    Replay(replay::ReplayArgs),
    /// Write records to a file, one JSON object a line
    Export(ExportArgs),
    /// Erase the contents of a tenant's records, or of old ones
    Erase(EraseArgs),
}

/// Which log.
#[derive(Args, Clone, Debug)]
struct LogArgs {
    /// The folder that 'ruvllm serve --witness' writes to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// File with the log's key, if it is encrypted
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct ListArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Of this tenant only [default: of all]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// The most records, the newest
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,
}

#[derive(Args, Debug)]
struct SearchArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Nearest first to what this text is about, by its words; needs kept tokens and --model
    #[arg(long, value_name = "TEXT", requires = "model")]
    like: Option<String>,
    /// The model whose tokens they are, for --like
    #[arg(short, long, value_name = "NAME|PATH")]
    model: Option<String>,
}

/// Which records.
#[derive(Args, Clone, Debug)]
struct FilterArgs {
    /// Of this tenant only [default: of all]
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Recorded at most so long ago: 7d, 12h, 30m
    #[arg(long, value_name = "AGE", value_parser = age)]
    since: Option<Duration>,
    /// Recorded at least so long ago
    #[arg(long, value_name = "AGE", value_parser = age)]
    until: Option<Duration>,
    /// Of this request: its x-request-id, or the id of its answer
    #[arg(long, value_name = "ID")]
    request: Option<String>,
    /// Of the model whose hash begins so
    #[arg(long, value_name = "HASH")]
    model_hash: Option<String>,
    /// Of at least this quality, as said last
    #[arg(long, value_name = "Q")]
    quality_min: Option<f32>,
    /// Of at most this quality
    #[arg(long, value_name = "Q")]
    quality_max: Option<f32>,
    /// Only requests that failed
    #[arg(long, conflicts_with = "succeeded")]
    failed: bool,
    /// Only requests that did not
    #[arg(long)]
    succeeded: bool,
    /// Failed with a line that has this in it
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// The most records, the newest
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
}

#[derive(Args, Debug)]
struct VerifyArgs {
    #[command(flatten)]
    log: LogArgs,
    /// An anchor that was kept elsewhere, or a file with one [default: the one in the folder]
    #[arg(long, value_name = "ANCHOR|FILE")]
    anchor: Option<String>,
}

#[derive(Args, Debug)]
struct ExportArgs {
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    filter: FilterArgs,
    /// Where to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

#[derive(Args, Debug)]
struct EraseArgs {
    #[command(flatten)]
    log: LogArgs,
    /// Whose contents
    #[arg(long, value_name = "NAME", required_unless_present = "older_than")]
    tenant: Option<String>,
    /// Contents that are older, whosever they are
    #[arg(long, value_name = "AGE", value_parser = age, conflicts_with = "tenant")]
    older_than: Option<Duration>,
}

impl WitnessCommand {
    /// Does what the subcommand says.
    ///
    /// # Errors
    /// The log cannot be read, is in use, was touched, or does not come out again.
    pub fn run(&self, app: &App) -> Result<()> {
        match &self.command {
            WitnessSubcommand::List(args) => args.run(),
            WitnessSubcommand::Search(args) => args.run(app),
            WitnessSubcommand::Verify(args) => args.run(app),
            WitnessSubcommand::Replay(args) => args.run(app),
            WitnessSubcommand::Export(args) => args.run(),
            WitnessSubcommand::Erase(args) => args.run(),
        }
    }
}

fn failed(error: SonaError) -> Error {
    Error::failure(format_args!("the witness log: {error}"))
}

impl LogArgs {
    fn options(&self) -> WitnessOptions {
        WitnessOptions { folder: self.folder.clone(), key: self.key.clone(), ..WitnessOptions::default() }
    }

    fn open(&self) -> Result<Arc<dyn Store>> {
        check::key(self.key.as_deref())?;
        open_written(&self.options(), ["there is no witness log", "makes one"])
    }
}

/// A record and whose it is.
struct Found {
    tenant: String,
    recorded: Recorded,
}

impl Found {
    fn json(&self) -> Value {
        let mut value = record_json(&self.recorded);
        value["tenant"] = json!(self.tenant);
        value
    }

    fn served(&self) -> Option<&Served> {
        match &self.recorded.event {
            Event::Served(served) => Some(served),
            _ => None,
        }
    }

    fn row(&self) -> Vec<String> {
        let Recorded { seq, unix_ms, event, quality } = &self.recorded;
        let time = timestamp(unix_ms / 1000).replace('T', " ").trim_end_matches('Z').to_owned();
        let quality = quality.map_or_else(String::new, |quality| format!("{quality:.2}"));
        let what = match event {
            Event::Served(served) => [
                format!("{:016x}", served.request),
                hex::encode(&served.model[..4]),
                format!("{} → {}", served.prompt.n_tokens, served.completion.n_tokens),
                served.error.clone().unwrap_or_else(|| served.finish.clone()),
            ],
            Event::Feedback { request, quality } => {
                [format!("{request:016x}"), String::new(), String::new(), format!("feedback: {quality:.2}")]
            }
            Event::Learning { what } | Event::Pack { what } => {
                [String::new(), String::new(), String::new(), what.clone()]
            }
            Event::Lost { n } => {
                [String::new(), String::new(), String::new(), format!("{n} records found the queue full")]
            }
            Event::Erased { seqs } => {
                [String::new(), String::new(), String::new(), format!("{} records were erased", seqs.len())]
            }
        };
        let [request, model, tokens, what] = what;
        vec![seq.to_string(), time, self.tenant.clone(), request, model, tokens, quality, what]
    }
}

/// Returns the records of `tenant`, or of all, that `query` means, newest first.
fn find(store: &dyn Store, tenant: Option<&str>, query: &Query) -> Result<Vec<Found>> {
    let tenants = match tenant {
        Some(tenant) => vec![tenant.to_owned()],
        None => witness::tenants(store).map_err(failed)?,
    };
    let mut found = Vec::new();
    for tenant in tenants {
        let records = witness::search(store, &tenant, query).map_err(failed)?;
        found.extend(records.into_iter().map(|recorded| Found { tenant: tenant.clone(), recorded }));
    }
    found.sort_by_key(|found| std::cmp::Reverse(found.recorded.seq));
    found.truncate(query.n_max);
    Ok(found)
}

fn show(found: &[Found], json: bool) -> Result<()> {
    if json {
        return print_json(&json!({ "records": found.iter().map(Found::json).collect::<Vec<_>>() }));
    }
    if found.is_empty() {
        return print_line("there are no such records");
    }
    let head =
        ["SEQ", "TIME (UTC)", "TENANT", "REQUEST", "MODEL", "TOKENS", "QUALITY", "END"].map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(head).chain(found.iter().map(Found::row)).collect();
    print(&table(&rows, &[0, 5, 6]))
}

impl ListArgs {
    fn run(&self) -> Result<()> {
        let store = self.log.open()?;
        let query = Query { n_max: self.limit, ..Query::default() };
        show(&find(store.as_ref(), self.tenant.as_deref(), &query)?, self.log.output.json)
    }
}

impl FilterArgs {
    /// Checks the options.
    fn check(&self) -> Result<Option<u64>> {
        let number = |id: &str| {
            let wrong = || Error::usage(format_args!("--request '{id}' is no request; use its x-request-id"));
            number_of(id).ok_or_else(wrong)
        };
        self.request.as_deref().map(number).transpose()
    }

    /// Returns the records that the options mean, newest first.
    fn find(&self, store: &dyn Store) -> Result<Vec<Found>> {
        let ago = |age: Duration| now_ms().saturating_sub(age.as_millis() as u64);
        let query = Query {
            from_ms: self.since.map_or(0, ago),
            to_ms: self.until.map_or(u64::MAX, ago),
            request: self.check()?,
            quality_min: self.quality_min,
            quality_max: self.quality_max,
            has_failed: (self.failed || self.succeeded).then_some(self.failed),
            error: self.error.clone(),
            n_max: self.limit,
            ..Query::default()
        };
        let mut found = find(store, self.tenant.as_deref(), &query)?;
        if let Some(begins) = self.model_hash.as_deref().map(str::to_lowercase) {
            let hash = |served: &Served| hex::encode(served.model);
            found.retain(|found| found.served().is_some_and(|served| hash(served).starts_with(&begins)));
        }
        Ok(found)
    }
}

impl SearchArgs {
    fn run(&self, app: &App) -> Result<()> {
        self.filter.check()?;
        let tokenizer = self.model.as_ref().map(|model| {
            let path = app.store().locate(model, false)?;
            Ok::<_, Error>(Tokenizer::from_metadata(GgufFile::open(&path)?.metadata())?)
        });
        let tokenizer = tokenizer.transpose()?;
        let store = self.log.open()?;
        let mut found = self.filter.find(store.as_ref())?;
        if let (Some(text), Some(tokenizer)) = (&self.like, tokenizer) {
            found = by_likeness(found, text, &tokenizer);
        }
        show(&found, self.log.output.json)
    }
}

/// Returns the records whose tokens were kept, those first whose prompts and answers share most words with a text.
fn by_likeness(found: Vec<Found>, text: &str, tokenizer: &Tokenizer) -> Vec<Found> {
    let words = HashedWords::new(4096);
    let wanted = words.vector(text);
    let text_of = |tokens: &Option<Vec<u32>>| {
        let known = tokens.iter().flatten().copied().filter(|&id| (id as usize) < tokenizer.vocab_len());
        tokenizer.decode(&known.collect::<Vec<u32>>(), DecodeOptions { render_special: false })
    };
    let likeness = |served: &Served| {
        let (prompt, answer) = (text_of(&served.prompt.tokens), text_of(&served.completion.tokens));
        let vector = words.vector(&format!("{prompt}\n{answer}"));
        vector.iter().zip(&wanted).map(|(a, b)| a * b).sum::<f32>()
    };
    let mut ranked: Vec<(f32, Found)> = Vec::new();
    for found in found {
        let kept = found.served().filter(|served| served.prompt.tokens.is_some()).map(likeness);
        ranked.extend(kept.filter(|&likeness| likeness > 0.0).map(|likeness| (likeness, found)));
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0));
    ranked.into_iter().map(|(_, found)| found).collect()
}

/// Reads an anchor, or the file that holds one.
fn read_anchor(text: &str) -> Result<Anchor> {
    if let Ok(anchor) = Anchor::parse(text) {
        return Ok(anchor);
    }
    let path = Path::new(text);
    let text = std::fs::read_to_string(path).map_err(|error| Error::io("read the anchor", path, &error))?;
    Anchor::parse(&text).map_err(|error| Error::failure(format_args!("{}: {error}", path.display())))
}

impl VerifyArgs {
    fn run(&self, app: &App) -> Result<()> {
        let given = self.anchor.as_deref().map(read_anchor).transpose()?;
        let store = self.log.open()?;
        let beside = self.log.folder.join(ANCHOR_FILE);
        let anchor = match given {
            Some(anchor) => Some(anchor),
            None if beside.is_file() => Some(read_anchor(&beside.to_string_lossy())?),
            None => None,
        };
        let work = app.ui.spinner("verifying").of(self.log.folder.display().to_string());
        let verified = witness::verify(store.as_ref(), anchor.as_ref()).map_err(failed)?;
        drop(work);
        let (n, n_faults) = (verified.n_records, verified.faults.len());
        if self.log.output.json {
            let faults =
                verified.faults.iter().map(|fault| json!({ "seq": fault.seq, "kind": fault_name(fault.kind) }));
            print_json(&json!({
                "sound": n_faults == 0,
                "records": n,
                "erased": verified.n_erased,
                "lost": verified.n_lost,
                "anchor": verified.head.to_string(),
                "anchored": anchor.map(|anchor| anchor.n_links),
                "faults": faults.collect::<Vec<_>>(),
            }))?;
        } else {
            for fault in &verified.faults {
                print_line(&format!("record {}: {}", fault.seq, fault_name(fault.kind)))?;
            }
            if verified.n_lost > 0 {
                let n_lost = verified.n_lost;
                print_line(&format!(
                    "{n_lost} records are missing, which the log says itself: it could not be written"
                ))?;
            }
            if n_faults == 0 {
                let against = match anchor {
                    Some(anchor) => format!("through an anchor at {}", anchor.n_links),
                    None => "without an anchor: what was cut off at the end would not show".to_owned(),
                };
                print_line(&format!(
                    "{n} records stand as they were written ({} erased), {against}",
                    verified.n_erased
                ))?;
                print_line(&format!("anchor: {}", verified.head))?;
            }
        }
        match n_faults {
            0 if verified.n_lost > 0 => Err(Error::failure("the log has a hole, and is otherwise as it was written")),
            0 => Ok(()),
            1 => Err(Error::failure("the log was touched: a record does not fit")),
            n => Err(Error::failure(format_args!("the log was touched: {n} records do not fit"))),
        }
    }
}

impl ExportArgs {
    fn run(&self) -> Result<()> {
        self.filter.check()?;
        let store = self.log.folder.join(STORE_FILE);
        let inputs: Vec<&Path> = self.log.key.iter().chain([&store]).map(PathBuf::as_path).collect();
        let mut file = OutFile::create(&self.out, &inputs)?;
        let store = self.log.open()?;
        let mut found = self.filter.find(store.as_ref())?;
        found.reverse();
        let cannot = |error: std::io::Error| Error::io("write", &self.out, &error);
        for found in &found {
            writeln!(file, "{}", found.json()).map_err(cannot)?;
        }
        file.finish()?;
        match self.log.output.json {
            true => print_json(&json!({ "file": self.out, "records": found.len() })),
            false => print_line(&format!("{} records in {}", found.len(), self.out.display())),
        }
    }
}

impl EraseArgs {
    fn run(&self) -> Result<()> {
        let store = self.log.open()?;
        let anchor = Some(self.log.folder.join(ANCHOR_FILE));
        let log =
            WitnessLog::start(Arc::clone(&store), LogOptions { anchor, ..LogOptions::default() }).map_err(failed)?;
        let n = match (&self.tenant, self.older_than) {
            (Some(tenant), _) => log.erase_tenant(tenant).map_err(failed)?,
            (None, age) => {
                let rules = ruvllm_sona::store::Retention {
                    age_ms_max: age.map(|age| age.as_millis() as u64),
                    ..Default::default()
                };
                log.retain(&rules).map_err(failed)?.n_records
            }
        };
        log.flush().map_err(failed)?;
        match self.log.output.json {
            true => print_json(&json!({ "erased": n })),
            false => print_line(&format!("the contents of {n} records were erased; the chain says so and stands")),
        }
    }
}
