//! `ruvllm learn`: teach a model texts and corrections.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, ModelArgs, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::interrupt;
use ruvllm_cli_tools::learning::{TENANT, check_place, open, stats_json, tell};
use ruvllm_cli_tools::output::{self, print_json, print_line};
use ruvllm_cli_tools::text_files::read_text;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{CancelToken, Engine, LoadOptions};
use ruvllm_learning::{Correctness, ReadSums, TenantLearning, learn_document};
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm learn --file manual.txt --file notes.md
  ruvllm run --learn --prompt \"How is a package renamed?\"    with what was learned
  ruvllm learn --question \"Who is Dr. Quell?\" --answer \"She runs the Ostrava archive.\"
  ruvllm learn --forget                                     as if nothing had been learned

The model's weights stay as they are. What is learned is kept beside them, for one tenant, in the
folder 'learned' of RUVLLM_HOME.";

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
        tenant: &TenantLearning,
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

    fn report(&self, tenant: &TenantLearning, read: &[FileRead]) -> Result<()> {
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

/// Returns what `--json` tells of a reading: nats a token of the model alone, and with what was learned up to each token.
fn json_of(sums: &ReadSums) -> Value {
    let n = sums.n_tokens.max(1) as f64;
    json!({ "tokens": sums.n_tokens, "nll_model": sums.model / n, "nll_learning": sums.learned / n, "change": change(sums) })
}

/// Returns by what share the loss changed.
fn change(sums: &ReadSums) -> f64 {
    if sums.model > 0.0 { sums.learned / sums.model - 1.0 } else { 0.0 }
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
