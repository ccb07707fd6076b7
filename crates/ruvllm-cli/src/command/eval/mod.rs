//! `ruvllm eval`: what learning gains and costs, on texts of one's own.

mod learning;
mod memory;
mod plot;
mod statistics;

use clap::{Args, Subcommand};

use super::App;
use crate::error::Result;

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
        }
    }
}
