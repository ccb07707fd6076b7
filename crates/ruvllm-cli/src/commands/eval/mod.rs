//! `ruvllm eval`: what learning gains and costs, how good routing, roles and embeddings are, on files of one's own.

mod embedding;
mod learning;
mod memory;
mod plot;
mod roles;
mod routing;
mod statistics;
use clap::{Args, Subcommand};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::error::Result;

/// `ruvllm eval`.
#[derive(Args, Debug)]
#[command(arg_required_else_help = true)]
pub struct EvalCommand {
    #[command(subcommand)]
    command: EvalSubcommand,
}

#[derive(Debug, Subcommand)]
enum EvalSubcommand {
    /// Measure what is gained by learning streams of texts, and what other texts lose
    Learning(learning::LearningArgs),
    /// Measure how well corrections are remembered that were told once
    Memory(memory::MemoryArgs),
    /// Measure routers against baselines on outcomes, by groups that they did not learn from
    Routing(routing::RoutingArgs),
    /// Measure how often the role of a task is found, on topics that were not learned from
    Roles(roles::RolesArgs),
    /// Measure embeddings: likeness, search and clusters
    Embedding(embedding::EmbeddingArgs),
}

impl EvalCommand {
    /// Measures.
    ///
    /// # Errors
    /// As the measurement.
    pub fn run(&self, app: &App) -> Result<()> {
        match &self.command {
            EvalSubcommand::Learning(args) => args.run(app),
            EvalSubcommand::Memory(args) => args.run(app),
            EvalSubcommand::Routing(args) => args.run(app),
            EvalSubcommand::Roles(args) => args.run(app),
            EvalSubcommand::Embedding(args) => args.run(app),
        }
    }
}
