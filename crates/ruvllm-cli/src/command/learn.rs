//! `ruvllm learn`: teach a model texts and corrections; and what `--learn` of other commands opens.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ruvllm_engine::learning::{Course, CourseOptions, Learning, LearningOptions, Tenant, Verdict, WindowOptions};
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{CancelToken, Engine, EngineError, ErrorKind, LoadOptions};
use serde_json::{Value, json};

use super::lora::LoraArgs;
use super::{App, read_text};
use crate::args::{LoadArgs, ModelArgs, OutputArgs};
use crate::error::{Error, Result};
use crate::interrupt;
use crate::output::{self, print_json, print_line};

const EXAMPLES: &str = "\
Examples:
  ruvllm learn --file manual.txt --file notes.md
  ruvllm run --learn --prompt \"How is a package renamed?\"    with what was learned
  ruvllm learn --question \"Who is Dr. Quell?\" --answer \"She runs the Ostrava archive.\"
  ruvllm learn --forget                                     as if nothing had been learned

The model's weights stay as they are. What is learned is kept beside them, for one tenant, in the
folder 'learned' of RUVLLM_HOME.";

/// The tenant of who names none.
const TENANT: &str = "local";

/// Whether a command learns.
#[derive(Args, Clone, Debug)]
pub struct LearningArgs {
    /// Learn from what is asked, and answer with what was learned before
    #[arg(long, help_heading = "Learning")]
    pub learn: bool,
    /// Whose learning it is; nothing of one is known to another [default: local]
    #[arg(long, value_name = "NAME", requires = "learn", help_heading = "Learning")]
    pub tenant: Option<String>,
}

impl LearningArgs {
    /// Checks that no adapter changes the states that learning keeps.
    ///
    /// # Errors
    /// A usage error if one does.
    pub fn check(&self, lora: &LoraArgs) -> Result<()> {
        match self.learn && !lora.lora.is_empty() {
            true => Err(Error::usage("--learn is of the model as it is; leave --lora out")),
            false => Ok(()),
        }
    }

    /// Opens what was learned, if `--learn` is given.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(&self, app: &App, engine: &mut Engine) -> Result<Option<(Learning, Arc<Tenant>)>> {
        match self.learn {
            true => open(app, engine, self.tenant.as_deref()).map(Some),
            false => Ok(None),
        }
    }
}

/// Opens what a tenant has learned; the first time with a model that is calibrated, under a progress bar.
///
/// # Errors
/// The folder cannot be used, the model makes no text, another process learns for the tenant.
pub fn open(app: &App, engine: &mut Engine, tenant: Option<&str>) -> Result<(Learning, Arc<Tenant>)> {
    let learning = open_model(app, engine, LearningOptions::default())?;
    let tenant = learning.tenant(tenant.unwrap_or(TENANT))?;
    Ok((learning, tenant))
}

/// Makes a model ready to learn.
///
/// # Errors
/// As [`Learning::open`].
pub fn open_model(app: &App, engine: &mut Engine, options: LearningOptions) -> Result<Learning> {
    let options = LearningOptions { folder: Some(app.settings.learned_dir()), ..options };
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

/// Options of `ruvllm learn`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, group = clap::ArgGroup::new("what").required(true).args(["file", "question", "forget"]))]
pub struct LearnArgs {
    /// A text to learn; may be given several times
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// A question whose answer is to be remembered
    #[arg(long, value_name = "TEXT", requires = "answer")]
    question: Option<String>,
    /// The answer
    #[arg(long, value_name = "TEXT", requires = "question", allow_hyphen_values = true)]
    answer: Option<String>,
    /// The answer is wrong: it is not to be given
    #[arg(long, requires = "answer")]
    wrong: bool,
    /// Forget everything that was learned for the tenant
    #[arg(long)]
    forget: bool,
    /// Whose learning it is; nothing of one is known to another
    #[arg(long, value_name = "NAME", default_value = TENANT)]
    tenant: String,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// How a text was read.
struct FileRead {
    path: PathBuf,
    n_tokens: usize,
    /// Sums over the tokens, in nats: of the model alone, and with what was learned up to each token.
    model: f64,
    learning: f64,
}

impl LearnArgs {
    /// Learns, and keeps it.
    ///
    /// # Errors
    /// A failure if a file cannot be read or nothing can be kept; nothing is kept of what Ctrl-C stops.
    pub fn run(&self, app: &App) -> Result<()> {
        let texts = self.file.iter().map(|path| Ok((path, read_text(path)?))).collect::<Result<Vec<_>>>()?;
        let path = app.store().locate(&self.model.model, true)?;
        let mut engine = app.load(&path, &LoadOptions { n_seq_max: 1, ..self.load.options(&app.settings, None) })?;
        let (learning, tenant) = open(app, &mut engine, Some(&self.tenant))?;
        if self.forget {
            tenant.forget()?;
        }
        if let (Some(question), Some(answer)) = (&self.question, &self.answer) {
            let verdict = if self.wrong { Verdict::Wrong } else { Verdict::Right };
            tell(&mut engine, &tenant, question, answer, verdict)?;
        }
        let read = self.read(app, &mut engine, &learning, &tenant, &texts)?;
        learning.save()?;
        self.report(&tenant, &read)
    }

    fn read(
        &self,
        app: &App,
        engine: &mut Engine,
        learning: &Learning,
        tenant: &Tenant,
        texts: &[(&PathBuf, String)],
    ) -> Result<Vec<FileRead>> {
        let encode = |text: &str| engine.tokenizer()?.encode(text, EncodeOptions::default());
        let documents = texts.iter().map(|(_, text)| encode(text)).collect::<Result<Vec<_>, _>>()?;
        let bar = app.ui.steps_bar("learning", documents.iter().map(Vec::len).sum::<usize>() as u64);
        let (mut all, isa, cancel) = (Vec::new(), engine.info().isa, CancelToken::default());
        let _guard = interrupt::cancels(&cancel);
        let mut course = Course::new((*tenant.learned()).clone(), CourseOptions::default());
        for ((path, _), tokens) in texts.iter().zip(&documents) {
            let mut file = FileRead { path: (*path).clone(), n_tokens: tokens.len(), model: 0.0, learning: 0.0 };
            let read = engine.read_text(tokens, &WindowOptions::default(), &mut |engine, shown| {
                if cancel.is_cancelled() {
                    return Err(EngineError::new(ErrorKind::Cancelled, "stopped; nothing was kept"));
                }
                file.model += shown.rows.nll(isa).map(f64::from).sum::<f64>();
                course.read(engine, shown.rows, None, learning.head());
                file.learning += course.take_nll().into_iter().map(f64::from).sum::<f64>();
                bar.inc(shown.rows.next.len() as u64);
                Ok(())
            });
            read?;
            course.end_text();
            all.push(file);
        }
        bar.finish_and_clear();
        if !all.is_empty() {
            tenant.replace(course.finish());
        }
        Ok(all)
    }

    fn report(&self, tenant: &Tenant, read: &[FileRead]) -> Result<()> {
        let n_tokens: usize = read.iter().map(|file| file.n_tokens).sum();
        let sums = read.iter().fold((0.0, 0.0), |sums, file| (sums.0 + file.model, sums.1 + file.learning));
        if self.output.json {
            let files = read.iter().map(|file| {
                let mut object = json_of(file.n_tokens, (file.model, file.learning));
                object["file"] = json!(file.path.display().to_string());
                object
            });
            let mut object = json_of(n_tokens, sums);
            object["files"] = files.collect();
            object["tenant"] = json!(tenant.name());
            object["learned"] = stats_json(tenant);
            return print_json(&object);
        }
        for file in read {
            print_line(&line(&file.path, file.n_tokens, (file.model, file.learning)))?;
        }
        if read.len() > 1 {
            print_line(&line(Path::new("all"), n_tokens, sums))?;
        }
        let stats = tenant.stats();
        print_line(&format!(
            "{} knows {} entries ({}), {} corrections, {} steps of its MicroLoRA",
            tenant.name(),
            stats.n_entries,
            output::bytes(stats.n_bytes as u64),
            stats.n_episodes,
            stats.n_micro_steps
        ))
    }
}

/// Remembers an answer to a question, as `run` and `chat` would ask it.
///
/// # Errors
/// The engine's.
pub fn tell(engine: &mut Engine, tenant: &Tenant, question: &str, answer: &str, verdict: Verdict) -> Result<()> {
    let (prompt, answer) = (engine.encode_prompt(question, false)?, engine.text()?.encode_answer(answer)?);
    Ok(engine.tell(tenant, (&prompt, question), &answer, verdict)?)
}

/// Returns what `--json` tells of a reading: nats a token of the model alone, and with what was learned up to each token.
fn json_of(n_tokens: usize, (model, learning): (f64, f64)) -> Value {
    let n = n_tokens.max(1) as f64;
    let change = if model > 0.0 { learning / model - 1.0 } else { 0.0 };
    json!({ "tokens": n_tokens, "nll_model": model / n, "nll_learning": learning / n, "change": change })
}

/// Returns what a tenant has learned, as JSON.
pub fn stats_json(tenant: &Tenant) -> Value {
    let stats = tenant.stats();
    json!({
        "tokens": stats.n_tokens,
        "entries": stats.n_entries,
        "entry_bytes": stats.n_bytes,
        "evicted": stats.n_evicted,
        "corrections": stats.n_episodes,
        "micro_steps": stats.n_micro_steps,
    })
}

fn line(path: &Path, n_tokens: usize, (model, learning): (f64, f64)) -> String {
    let n = n_tokens.max(1) as f64;
    format!(
        "{}: {n_tokens} tokens, {:.4} nats a token before, {:.4} while learning ({:+.1} %)",
        path.display(),
        model / n,
        learning / n,
        if model > 0.0 { 100.0 * (learning / model - 1.0) } else { 0.0 }
    )
}
