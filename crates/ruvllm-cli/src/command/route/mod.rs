//! `ruvllm route`: which model should answer, learned from answers that could be checked.

mod check;
mod collect;
pub mod expect;
pub mod outcomes;
pub mod train;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ruvllm_engine::LoadOptions;
use ruvllm_learning::{Decision, EmbedderName, ModelEmbedder, ModelRouter};
use ruvllm_router::Embedder;
use serde_json::Value;

use super::App;
use crate::args::OutputArgs;
use crate::error::{Error, Result};
use crate::output::{print_json, print_line};

const EXAMPLES: &str = "\
Examples:
  ruvllm route \"What is 17 + 25?\"
  ruvllm route collect --tasks tasks.jsonl --model smollm2:135m --model qwen2.5-coder:0.5b --out outcomes.jsonl
  ruvllm route train --outcomes outcomes.jsonl --router ./router
  ruvllm route eval --outcomes held-out.jsonl --router ./router
  ruvllm serve --router ./router --model smollm2:135m --model qwen2.5-coder:0.5b    then ask for the model 'auto'

A task is a line {\"prompt\", \"check\"}; 'ruvllm route collect --help' says which checks there are.";

/// `ruvllm route`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, arg_required_else_help = true, args_conflicts_with_subcommands = true)]
pub struct RouteCommand {
    #[command(subcommand)]
    command: Option<RouteSubcommand>,
    #[command(flatten)]
    ask: AskArgs,
}

#[derive(Debug, Subcommand)]
enum RouteSubcommand {
    /// Have models answer tasks whose answers can be checked, and write how good each was
    Collect(collect::CollectArgs),
    /// Learn from outcomes which model to choose
    Train(train::TrainArgs),
    /// Say what a router reaches on outcomes that it did not learn from
    Eval(train::EvalArgs),
}

/// A query to decide on.
#[derive(Args, Debug)]
struct AskArgs {
    /// The query
    #[arg(value_name = "TEXT", required = true)]
    text: Option<String>,
    #[command(flatten)]
    router: RouterArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The router's folder.
#[derive(Args, Clone, Debug)]
pub struct RouterArgs {
    /// The folder of the router [default: router in RUVLLM_HOME]
    #[arg(long, value_name = "DIR")]
    pub router: Option<PathBuf>,
}

impl RouterArgs {
    /// Returns the folder.
    pub fn folder(&self, app: &App) -> PathBuf {
        self.router.clone().unwrap_or_else(|| app.settings.home.join("router"))
    }

    /// Reads the router.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn open(&self, app: &App) -> Result<ModelRouter> {
        let folder = self.folder(app);
        if !folder.is_dir() {
            let line = format!("there is no router in {}; 'ruvllm route train' makes one", folder.display());
            return Err(Error::failure(line));
        }
        Ok(ModelRouter::open(&folder)?)
    }
}

/// Makes the embeddings of texts, each told to `each`.
///
/// # Errors
/// The model cannot be had, or does not fit; or what `each` returns.
pub fn embed_all<'a>(
    app: &App,
    embedder: &EmbedderName,
    texts: impl ExactSizeIterator<Item = &'a str>,
    each: &mut dyn FnMut(Vec<f32>) -> Result<()>,
) -> Result<()> {
    let EmbedderName::Model(name, dim) = embedder else {
        return texts.filter_map(|text| embedder.embed(text)).try_for_each(each);
    };
    let path = app.store().locate(name, true)?;
    let options = LoadOptions { n_threads: app.settings.threads(None), ..LoadOptions::default() };
    let mut engine = app.load(&path, &options)?;
    let mut own = ModelEmbedder::new(&mut engine);
    if own.dim() != *dim {
        let line =
            format!("the vectors of '{name}' have {} values; {dim} are needed: train the router anew", own.dim());
        return Err(Error::failure(line));
    }
    let bar = app.ui.steps_bar("embedding", texts.len() as u64);
    for text in texts {
        each(own.embed(text).map_err(Error::failure)?)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

impl RouteCommand {
    /// Does what the subcommand says, or decides on a query.
    ///
    /// # Errors
    /// A router, a model or a file that cannot be had.
    pub fn run(&self, app: &App) -> Result<()> {
        match &self.command {
            Some(RouteSubcommand::Collect(args)) => args.run(app),
            Some(RouteSubcommand::Train(args)) => args.run(app),
            Some(RouteSubcommand::Eval(args)) => args.run(app),
            None => self.ask.run(app),
        }
    }
}

impl AskArgs {
    fn run(&self, app: &App) -> Result<()> {
        let text = self.text.as_deref().ok_or_else(|| Error::usage("no query; pass a text"))?;
        let router = self.router.open(app)?;
        let mut embedding = Vec::new();
        embed_all(app, &router.embedder, [text].into_iter(), &mut |vector| {
            embedding = vector;
            Ok(())
        })?;
        let decision = router.decide(text, &embedding)?;
        match self.output.json {
            true => print_json(&decision_json(&router, &decision)),
            false => print_line(&lines(&router, &decision)),
        }
    }
}

fn decision_json(router: &ModelRouter, decision: &Decision) -> Value {
    ruvllm_server::decision_json(router, decision)
}

fn lines(router: &ModelRouter, decision: &Decision) -> String {
    let mut lines = vec![decision.choice.reason.clone()];
    let of_models = router.models.iter().zip(&decision.prediction.qualities);
    lines.push(of_models.map(|(model, quality)| format!("{} {quality:.2}", model.name)).collect::<Vec<_>>().join(", "));
    if let Some(verdict) = &decision.role {
        let (likeliest, share) = verdict.ranked[0];
        lines.push(match verdict.role {
            Some(role) => format!("role: {} ({share:.2})", role.name()),
            None => format!("role: none is sure enough (likeliest {}, {share:.2})", likeliest.name()),
        });
    }
    if let Some(route) = &decision.route {
        lines.push(format!("route: {} ({:.2})", route.name, route.similarity));
    }
    lines.join("\n")
}
