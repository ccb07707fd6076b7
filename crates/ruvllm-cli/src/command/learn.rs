//! `ruvllm learn`: teach a model texts and corrections; and what `--learn` of other commands opens.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{CancelToken, Engine, LoadOptions};
use ruvllm_learning::{
    Correctness, Learning, LearningOptions, Question, ReadSums, Tenant, check_tenant, learn_document,
};
use serde_json::{Value, json};

use super::lora::LoraArg;
use super::{App, read_text};
use crate::args::{LoadArgs, ModelArgs, OutputArgs};
use crate::check;
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
    pub fn open(&self, app: &App, engine: &mut Engine) -> Result<Option<(Learning, Arc<Tenant>)>> {
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
) -> Result<(Learning, Arc<Tenant>)> {
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
    /// File with the key that what is learned is encrypted with: 32 bytes or 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    learn_key: Option<PathBuf>,
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
    sums: ReadSums,
}

impl LearnArgs {
    /// Learns, and keeps it.
    ///
    /// # Errors
    /// A failure if a file cannot be read or nothing can be kept; nothing is kept of a text that Ctrl-C stops.
    pub fn run(&self, app: &App) -> Result<()> {
        for (name, text) in [("--question", &self.question), ("--answer", &self.answer)] {
            if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
                return Err(Error::usage(format_args!("{name} is empty; say what is asked and what the answer is")));
            }
        }
        let texts = self.file.iter().map(|path| Ok((path, read_text(path)?))).collect::<Result<Vec<_>>>()?;
        if let Some((path, _)) = texts.iter().find(|(_, text)| text.trim().is_empty()) {
            return Err(Error::failure(format_args!("{} is empty; there is nothing to learn", path.display())));
        }
        check_place(app, &self.tenant, self.learn_key.as_deref())?;
        let path = app.store().locate(&self.model.model, true)?;
        let mut engine = app.load(&path, &LoadOptions { n_seq_max: 1, ..self.load.options(&app.settings, None) })?;
        let (learning, tenant) = open(app, &mut engine, Some(&self.tenant), self.learn_key.as_deref())?;
        if self.forget {
            tenant.forget()?;
        }
        if let (Some(question), Some(answer)) = (&self.question, &self.answer) {
            let verdict = if self.wrong { Correctness::Wrong } else { Correctness::Right };
            tell(&mut engine, &tenant, question, answer, verdict)?;
        }
        let read = self.read(app, &mut engine, &tenant, &texts)?;
        learning.save()?;
        self.report(&tenant, &read)
    }

    /// Reads the texts, each as a generation of its own: one can go back to before it.
    fn read(
        &self,
        app: &App,
        engine: &mut Engine,
        tenant: &Tenant,
        texts: &[(&PathBuf, String)],
    ) -> Result<Vec<FileRead>> {
        let tokenizer = engine.tokenizer()?;
        let encode = |text: &str| tokenizer.encode(text, EncodeOptions::default());
        let documents = texts.iter().map(|(_, text)| encode(text)).collect::<Result<Vec<_>, _>>()?;
        let bar = app.ui.steps_bar("learning", documents.iter().map(Vec::len).sum::<usize>() as u64);
        let (mut all, cancel) = (Vec::new(), CancelToken::default());
        let _guard = interrupt::cancels(&cancel);
        for ((path, _), tokens) in texts.iter().zip(&documents) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            tenant.publish_new(&format!("before {name}"), &[])?;
            let sums = learn_document(engine, tenant, tokens, &mut |n| {
                bar.inc(n as u64);
                if cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })?;
            let n = sums.n_tokens.max(1) as f64;
            let figures = [("nats a token alone", sums.model / n), ("nats a token", sums.learned / n)];
            tenant.publish(&format!("read {name}"), &figures.map(|(name, value)| (name.to_owned(), value)))?;
            all.push(FileRead { path: (*path).clone(), sums });
        }
        bar.finish_and_clear();
        Ok(all)
    }

    fn report(&self, tenant: &Tenant, read: &[FileRead]) -> Result<()> {
        let mut sums = ReadSums::default();
        for file in read {
            sums.n_tokens += file.sums.n_tokens;
            sums.model += file.sums.model;
            sums.learned += file.sums.learned;
        }
        if self.output.json {
            let files = read.iter().map(|file| {
                let mut object = json_of(&file.sums);
                object["file"] = json!(file.path.display().to_string());
                object
            });
            let mut object = json_of(&sums);
            object["files"] = files.collect();
            object["tenant"] = json!(tenant.name());
            object["learned"] = stats_json(tenant);
            return print_json(&object);
        }
        for file in read {
            print_line(&line(&file.path, &file.sums))?;
        }
        if read.len() > 1 {
            print_line(&line(Path::new("all"), &sums))?;
        }
        let stats = tenant.stats();
        print_line(&format!(
            "{} knows {} entries ({}), {} corrections, {} steps of its MicroLoRA",
            tenant.name(),
            stats.n_entries,
            output::bytes(stats.n_bytes as u64),
            stats.n_corrections,
            stats.n_micro_steps
        ))
    }
}

/// Remembers an answer to a question, as `run` and `chat` would ask it.
///
/// # Errors
/// The engine's.
pub fn tell(engine: &mut Engine, tenant: &Tenant, question: &str, answer: &str, verdict: Correctness) -> Result<()> {
    let (prompt, answer) = (engine.encode_prompt(question, false)?, engine.text()?.encode_answer(answer)?);
    ruvllm_learning::add_correction(
        engine,
        tenant,
        Question { prompt: &prompt, text: Some(question) },
        &answer,
        verdict,
    )?;
    Ok(())
}

/// Returns what `--json` tells of a reading: nats a token of the model alone, and with what was learned up to each token.
fn json_of(sums: &ReadSums) -> Value {
    let n = sums.n_tokens.max(1) as f64;
    json!({ "tokens": sums.n_tokens, "nll_model": sums.model / n, "nll_learning": sums.learned / n, "change": change(sums) })
}

/// Returns by what share the loss changed.
fn change(sums: &ReadSums) -> f64 {
    if sums.model > 0.0 { sums.learned / sums.model - 1.0 } else { 0.0 }
}

/// Returns what a tenant has learned, as JSON.
pub fn stats_json(tenant: &Tenant) -> Value {
    let stats = tenant.stats();
    json!({
        "generation": stats.generation,
        "tokens": stats.n_tokens,
        "entries": stats.n_entries,
        "entry_bytes": stats.n_bytes,
        "evicted": stats.n_evicted,
        "corrections": stats.n_corrections,
        "micro_steps": stats.n_micro_steps,
    })
}

fn line(path: &Path, sums: &ReadSums) -> String {
    let n = sums.n_tokens.max(1) as f64;
    format!(
        "{}: {} tokens, {:.4} nats a token before, {:.4} while learning ({:+.1} %)",
        path.display(),
        sums.n_tokens,
        sums.model / n,
        sums.learned / n,
        100.0 * change(sums)
    )
}
