//! `ruvllm route collect`: models answer tasks whose answers can be checked.
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_cli_tools::answer;
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::{LoadArgs, MAX_CTX, OutputArgs};
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::out_file::OutFile;
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_cli_tools::values::count;
use ruvllm_engine::{Engine, FinishReason, GenerateRequest, SamplingParams};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::commands::route::check::Check;

const CHECKS: &str = "\
A task is a line {\"prompt\": TEXT, \"check\": CHECK} with a \"subject\" and a \"template\" where some belong together.
Checks:
  {\"kind\": \"number\", \"of\": 42}                       the last number is this one; \"first\": true looks at the first
  {\"kind\": \"word\", \"of\": [\"Paris\"], \"not\": []}       one of these words is there, and none of those
  {\"kind\": \"choice\", \"of\": \"no\", \"among\": [\"yes\", \"no\"]}   the first of these that is said
  {\"kind\": \"exact\", \"of\": TEXT}                      nothing else, but for quotes and a full stop
  {\"kind\": \"json\", \"of\": VALUE}                      JSON in the answer is equal to this
  {\"kind\": \"regex\", \"of\": TEXT}                      a regular expression matches

The cost of an answer is the compute of its model: bytes of weights, times tokens of prompt and answer, in GB.";

/// Options of `ruvllm route collect`.
#[derive(Args, Debug)]
#[command(after_help = CHECKS)]
pub(super) struct CollectArgs {
    /// The tasks, one a line
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// A model, by name or path, with what to call it before '='; at least two
    #[arg(short, long, value_name = "[NAME=]NAME|PATH", required = true)]
    model: Vec<String>,
    /// Where to write the outcomes, one a line
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Most tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count::<1, MAX_CTX>)]
    max_tokens: usize,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// A task.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Task {
    prompt: String,
    check: Check,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    template: Option<String>,
}

/// What a model reached on all tasks.
struct Reached {
    name: String,
    /// Right or not, the cost, and the answer.
    answers: Vec<(bool, f64, String)>,
}

/// Returns what a model is called, and its name or path.
fn named(spec: &str) -> (&str, &str) {
    spec.split_once('=').unwrap_or((spec, spec))
}

impl CollectArgs {
    pub(super) fn run(&self, app: &App) -> Result<()> {
        let tasks = self.tasks()?;
        if self.model.len() < 2 {
            return Err(Error::usage("one --model leaves nothing to choose from; give at least two"));
        }
        let models: Vec<PathBuf> = self.model.iter().filter_map(|spec| app.model_file(named(spec).1)).collect();
        let inputs: Vec<&Path> = models.iter().chain([&self.tasks]).map(PathBuf::as_path).collect();
        let mut out = OutFile::create(&self.out, &inputs)?;
        self.check_models(app)?;
        let mut all = Vec::new();
        for spec in &self.model {
            all.push(self.ask(app, spec, &tasks)?);
        }
        let cannot = |error: std::io::Error| Error::io("write", &self.out, &error);
        for (i, task) in tasks.iter().enumerate() {
            let of_model = |reached: &Reached| {
                let (is_right, cost, answer) = &reached.answers[i];
                (reached.name.clone(), json!({ "quality": u8::from(*is_right), "cost": cost, "answer": answer }))
            };
            let mut line = json!(task);
            line["models"] = all.iter().map(of_model).collect();
            writeln!(out, "{line}").map_err(cannot)?;
        }
        out.finish()?;
        self.tell(&tasks, &all)
    }

    fn tasks(&self) -> Result<Vec<Task>> {
        let text = ruvllm_cli_tools::text_files::read_text(&self.tasks)?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let read = |(i, line): (usize, &str)| {
            let wrong = |why: String| Error::failure(format_args!("{} line {}: {why}", self.tasks.display(), i + 1));
            let task: Task = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
            task.check.fault().map_or(Ok(task), |fault| Err(wrong(fault)))
        };
        let tasks: Vec<Task> = lines.map(read).collect::<Result<_>>()?;
        match tasks.is_empty() {
            true => Err(Error::failure(format_args!("{} has no tasks", self.tasks.display()))),
            false => Ok(tasks),
        }
    }

    /// Checks that the models have names of their own, and are there or can be pulled.
    fn check_models(&self, app: &App) -> Result<()> {
        let mut names: Vec<&str> = Vec::new();
        for spec in &self.model {
            let (name, spec) = named(spec);
            app.store().check(spec)?;
            if names.contains(&name) {
                return Err(Error::usage(format_args!("two of --model are called '{name}'; write OTHER={spec}")));
            }
            names.push(name);
        }
        Ok(())
    }

    fn ask(&self, app: &App, spec: &str, tasks: &[Task]) -> Result<Reached> {
        let (name, spec) = named(spec);
        let path = app.store().locate(spec, true)?;
        let mut engine = app.load(&path, &self.load.options(&app.settings, None))?;
        let weight_gb = engine.info().weight_bytes as f64 / 1e9;
        let bar = app.ui.steps_bar("tasks", tasks.len() as u64).of(format!("for {name}"));
        let mut answers = Vec::with_capacity(tasks.len());
        for task in tasks {
            let (answer, n_tokens) = self.answer(&mut engine, &task.prompt)?;
            answers.push((task.check.passes(&answer), weight_gb * n_tokens as f64, answer));
            bar.inc(1);
        }
        bar.finish_and_clear();
        Ok(Reached { name: name.to_owned(), answers })
    }

    /// Returns the likeliest answer, and how many tokens it and its prompt have.
    fn answer(&self, engine: &mut Engine, prompt: &str) -> Result<(String, usize)> {
        let request = GenerateRequest {
            prompt: engine.encode_prompt(prompt, false)?,
            max_tokens: Some(self.max_tokens),
            sampling: SamplingParams::greedy(),
            ..GenerateRequest::default()
        };
        let summary = answer::answer(engine, &request, &mut |_| Ok(()))?;
        match summary.finish_reason {
            FinishReason::Cancelled => Err(Error::Interrupted),
            _ => Ok((summary.text, request.prompt.len() + summary.tokens.len())),
        }
    }

    fn tell(&self, tasks: &[Task], all: &[Reached]) -> Result<()> {
        let n = tasks.len() as f64;
        let mean = |reached: &Reached| {
            let right = reached.answers.iter().filter(|(is_right, ..)| *is_right).count();
            (right as f64 / n, reached.answers.iter().map(|(_, cost, _)| cost).sum::<f64>() / n)
        };
        if self.output.json {
            let models = all.iter().map(|reached| {
                let (quality, cost) = mean(reached);
                json!({ "name": reached.name, "quality": quality, "cost": cost, "by_subject": by_subject(tasks, reached) })
            });
            return print_json(&json!({ "file": self.out, "n": tasks.len(), "models": models.collect::<Vec<_>>() }));
        }
        for reached in all {
            let (quality, cost) = mean(reached);
            print_line(&format!("{}: {:.1} % right, {cost:.1} GB an answer", reached.name, 100.0 * quality))?;
        }
        print_line(&format!("{} outcomes in {}", tasks.len(), self.out.display()))
    }
}

fn by_subject(tasks: &[Task], reached: &Reached) -> Value {
    let mut counts: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for (task, (is_right, ..)) in tasks.iter().zip(&reached.answers) {
        let count = counts.entry(task.subject.as_deref().unwrap_or_default()).or_default();
        *count = (count.0 + usize::from(*is_right), count.1 + 1);
    }
    counts.into_iter().map(|(subject, (right, n))| (subject.to_owned(), json!(right as f64 / n as f64))).collect()
}
