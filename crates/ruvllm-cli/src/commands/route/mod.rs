//! `ruvllm route`: which model should answer, learned from answers that could be checked.

mod check;
mod collect;
mod train;
use clap::{Args, Subcommand};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print_json, print_line};
use ruvllm_cli_tools::routing::{RouterArgs, embed_all};
use ruvllm_learning::{Decision, ModelRouter};
use serde_json::Value;

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
    ruvllm_api::routing::decision_json(router, decision)
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
