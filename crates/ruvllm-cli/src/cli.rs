//! The list of commands.

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Parser, Subcommand};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::env;
use ruvllm_cli_tools::error::Result;

#[cfg(feature = "packs")]
use crate::commands::packs;
use crate::commands::{
    alias, bench, cache, chat, compare, completions, config, convert, detect, doctor, embed, eval, imatrix, learn,
    list, logits, lora, perplexity, policy, pull, push, quantize, rm, route, run, serve, session, show, sona, tokenize,
    witness,
};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  ruvllm run --prompt \"Why is the sky blue?\"     answer once; pulls smollm2:135m the first time
  ruvllm chat --model qwen2.5-coder:0.5b         talk to a model
  ruvllm run --model ./model.gguf --raw --prompt \"Once upon a time\"
  ruvllm bench --pp 512 --tg 64                  measure this machine

A model is named as 'ruvllm list' shows it, hf:owner/repo/file.gguf, pypi:package==version/member,
or by the path of its file.";

/// Run language models in GGUF files on this machine.
#[derive(Debug, Parser)]
#[command(name = "ruvllm", version, styles = STYLES, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = EXAMPLES, after_long_help = format!("{EXAMPLES}\n\n{}", env::help_table()))]
pub struct Cli {
    /// Settings file, 'none' for none [default: RUVLLM_CONFIG, or ruvllm/config.toml in XDG_CONFIG_HOME, or
    /// /etc/ruvllm/config.toml]
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true, display_order = 999, value_parser = clap::value_parser!(PathBuf))]
    pub config: Option<PathBuf>,
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Answer one prompt
    Run(Box<run::RunArgs>),
    /// Talk to a model
    Chat(Box<chat::ChatArgs>),
    /// Serve a model by HTTP: the APIs of OpenAI and Anthropic
    Serve(Box<serve::ServeArgs>),
    /// Bring a model to this machine
    Pull(pull::PullArgs),
    /// Publish a model or an adapter on the Hugging Face hub
    Push(push::PushArgs),
    /// Name models in words of your own
    Alias(alias::AliasArgs),
    /// List the models on this machine and those that can be pulled by name
    List(list::ListArgs),
    /// Show what is in a model file
    Show(show::ShowArgs),
    /// Remove a pulled model
    Rm(rm::RmArgs),
    /// Show or remove what is kept of prompts and sessions
    Cache(cache::CacheCommand),
    /// Make a model file of a folder of the Hugging Face hub
    Convert(convert::ConvertArgs),
    /// Write a model file in smaller types
    Quantize(quantize::QuantizeArgs),
    /// Compute an importance matrix, which makes quantising better
    Imatrix(imatrix::ImatrixArgs),
    /// Compare models: perplexity, divergence, size and speed
    Compare(compare::CompareArgs),
    /// Name, show, merge, convert and train LoRA adapters
    Lora(lora::LoraCommand),
    /// Teach a model texts and corrections
    Learn(learn::LearnArgs),
    /// Show, undo and roll back what a model was taught, and bring it to other nodes
    Sona(sona::SonaCommand),
    /// Measure learning, routing, roles and embeddings
    Eval(eval::EvalCommand),
    /// Say which model should answer a query, and learn that from outcomes
    Route(route::RouteCommand),
    /// List, set and take back policies: how a server computes
    Policy(policy::PolicyCommand),
    /// List and forget the conversations that a server knows
    Session(session::SessionCommand),
    /// List, check, run again and export what a server put on record
    Witness(witness::WitnessCommand),
    /// Add, check and measure kernel packs: signed WebAssembly modules with kernels
    #[cfg(feature = "packs")]
    Packs(packs::PacksCommand),
    /// Turn text into token ids
    Tokenize(tokenize::TokenizeArgs),
    /// Turn texts into vectors
    Embed(embed::EmbedArgs),
    /// Write the logits of given token ids to a file
    Logits(logits::LogitsArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Measure load time, prefill and decode rates
    Bench(bench::BenchArgs),
    /// Show what this machine offers and what would suit it
    Detect(detect::DetectArgs),
    /// Check this machine, the models, the settings and what pulling needs
    Doctor(doctor::DoctorArgs),
    /// Make, show and check the settings file
    Config(config::ConfigCommand),
    /// Print what completes commands and options in a shell, or the manual pages
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Runs the command.
    ///
    /// # Errors
    /// The command's.
    pub fn run(self, app: &App) -> Result<()> {
        match self {
            Command::Run(args) => args.run(app),
            Command::Chat(args) => args.run(app),
            Command::Serve(args) => args.run(app),
            Command::Pull(args) => args.run(app),
            Command::Push(args) => args.run(app),
            Command::Alias(args) => args.run(app),
            Command::List(args) => args.run(app),
            Command::Show(args) => args.run(app),
            Command::Rm(args) => args.run(app),
            Command::Cache(args) => args.run(app),
            Command::Convert(args) => args.run(app),
            Command::Quantize(args) => args.run(app),
            Command::Imatrix(args) => args.run(app),
            Command::Compare(args) => args.run(app),
            Command::Lora(args) => args.run(app),
            Command::Learn(args) => args.run(app),
            Command::Eval(args) => args.run(app),
            Command::Route(args) => args.run(app),
            Command::Policy(args) => args.run(),
            Command::Session(args) => args.run(),
            Command::Sona(args) => args.run(app),
            Command::Witness(args) => args.run(app),
            #[cfg(feature = "packs")]
            Command::Packs(args) => args.run(app),
            Command::Tokenize(args) => args.run(app),
            Command::Embed(args) => args.run(app),
            Command::Logits(args) => args.run(app),
            Command::Perplexity(args) => args.run(app),
            Command::Bench(args) => args.run(app),
            Command::Detect(args) => args.run(app),
            Command::Doctor(args) => args.run(app),
            Command::Config(args) => args.run(app),
            Command::Completions(args) => args.run(app),
        }
    }

    /// Returns whether it runs with a settings file that is wrong: it tells of it, or needs none.
    pub fn bears_wrong_settings(&self) -> bool {
        matches!(self, Command::Config(_) | Command::Doctor(_) | Command::Completions(_))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use ruvllm_cli_tools::renamed::RENAMED;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_old_name_is_a_hidden_alias_of_the_new_one() {
        let command = Cli::command();
        for (old, new) in RENAMED.map(|(old, new)| (&old[2..], &new[2..])) {
            let commands = command.get_subcommands().flat_map(|one| one.get_subcommands().chain([one]));
            let mut options = commands.flat_map(clap::Command::get_arguments).filter(|arg| arg.get_long() == Some(new));
            let is_alias = |arg: &clap::Arg| {
                arg.get_all_aliases().is_some_and(|all| all.contains(&old))
                    && arg.get_visible_aliases().is_none_or(|all| !all.contains(&old))
            };
            assert!(options.next().is_some_and(is_alias) && options.all(is_alias), "--{old} of --{new}");
        }
    }
}
