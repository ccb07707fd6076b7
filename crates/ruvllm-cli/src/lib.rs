//! The `ruvllm` command: runs language models in GGUF files, pulls them by name, and measures them. [`main`] is the program;
//! [`EmbeddedModels`] is what `ruvllm serve` would serve, for a program that has the server in its own process.
//!
//! Answers go to standard output, everything else to standard error. Exit codes: 0 done, 1 failure, 2 wrong usage,
//! 130 stopped by Ctrl-C. An error is one line that says what is wrong and what to do about it.

#![forbid(unsafe_code)]
#![expect(unreachable_pub, reason = "a program has little outside; `pub` marks what other modules use")]

mod cli;
mod commands;
mod embedded;
use std::panic;
use std::path::Path;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::config::{ConfigFile, Invocation};
use ruvllm_cli_tools::error::{Result, one_line};
use ruvllm_cli_tools::settings::ProcessSettings;
use ruvllm_cli_tools::{config, env, interrupt, renamed};

use crate::cli::{Cli, Command};

pub use embedded::{EmbeddedModels, EmbeddedOption, node_key, options as embedded_options};
pub use ruvllm_cli_tools::error::Error;

/// Runs the command that this process was started with.
pub fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        eprintln!(
            "error: internal error: {}; please report it with the command that led here",
            one_line(&info.to_string())
        );
    }));
    let result = panic::catch_unwind(start).unwrap_or(Ok(ExitCode::FAILURE));
    result.unwrap_or_else(|error| {
        if let Some(line) = error.line() {
            eprintln!("error: {line}");
        }
        ExitCode::from(error.exit_code())
    })
}

/// Reads the command line and the settings, and runs the command.
fn start() -> Result<ExitCode> {
    let invocation = Invocation::new(takes_negatives(Cli::command()), std::env::args_os());
    let alone = match invocation.parse(None) {
        // What is missing may stand in the settings file.
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => return answer_clap(&error),
        alone => alone,
    };
    let read = |matches: &ArgMatches| <Cli as clap::FromArgMatches>::from_arg_matches(matches);
    let first = alone.as_ref().ok().and_then(|parsed| read(&parsed.matches).ok());
    let bears_all = first.as_ref().is_some_and(|cli| cli.command.bears_wrong_settings());
    let path = env::config_file(first.map_or_else(|| invocation.config(), |cli| cli.config));
    let (file, settings) = match load(path.as_deref(), &invocation) {
        Ok((file, settings)) => (file, settings),
        Err(_) if bears_all => (None, ProcessSettings::read(None)?),
        Err(error) => return Err(error),
    };
    let parsed = invocation.parse(file.as_ref()).and_then(|parsed| read(&parsed.matches));
    let cli = match (parsed, alone, &file) {
        (Ok(cli), ..) => cli,
        // The command line alone would do.
        (Err(error), Ok(_), Some(file)) => {
            let line = clap_line(&error.render().to_string(), &program_and_command());
            let file = file.path.display();
            return Err(Error::usage(format_args!("with the settings of {file}: {line}")));
        }
        (Err(error), ..) => return answer_clap(&error),
    };
    renamed::notices(std::env::args_os().skip(1)).iter().for_each(|line| eprintln!("{line}"));
    let app = App::new(settings, invocation, path);
    // The line editor takes Ctrl-C for itself when it is made, so chat installs the handler after that.
    // A server ends what it has begun before it stops.
    if !matches!(cli.command, Command::Chat(_) | Command::Serve(_)) {
        interrupt::install()?;
    }
    cli.command.run(&app)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the settings file, if there is one, and the environment.
fn load(path: Option<&Path>, invocation: &Invocation) -> Result<(Option<ConfigFile>, ProcessSettings)> {
    let known = || config::all(invocation.command());
    let file = path.map(|path| ConfigFile::load(path, &known())).transpose()?;
    let settings = ProcessSettings::read(file.as_ref())?;
    Ok((file, settings))
}

/// Prints help and version on standard output; turns a wrong command line into a usage error.
fn answer_clap(error: &clap::Error) -> Result<ExitCode> {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayVersion => {
            // Printing can only fail because the reader has gone.
            let _ = error.print();
            Ok(ExitCode::SUCCESS)
        }
        DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            Ok(ExitCode::from(2))
        }
        _ => Err(Error::usage(clap_line(&error.render().to_string(), &program_and_command()))),
    }
}

/// Makes one line of clap's paragraphs: the complaint, its tips, and where the help is, which is `command`'s unless they say
/// another one.
fn clap_line(rendered: &str, command: &str) -> String {
    let paragraphs = rendered.split("\n\n").map(one_line).filter(|paragraph| !paragraph.is_empty());
    let (mut pieces, mut help) = (Vec::new(), format!("{command} --help"));
    for paragraph in paragraphs {
        if let Some(usage) = paragraph.strip_prefix("Usage: ") {
            let words: Vec<_> = usage.split(' ').take_while(|word| !word.starts_with(['-', '[', '<'])).collect();
            help = format!("{} --help", words.join(" "));
        } else if !paragraph.starts_with("For more information") {
            pieces.push(paragraph.trim_start_matches("error: ").to_owned());
        }
    }
    format!("{}; see '{help}'", pieces.join("; "))
}

/// Lets `-1` be a value everywhere, so that an option says what it takes instead of calling it an unknown option.
fn takes_negatives(command: clap::Command) -> clap::Command {
    command.allow_negative_numbers(true).mut_subcommands(takes_negatives)
}

/// Returns `ruvllm` with the command of this process behind it, if there is one.
fn program_and_command() -> String {
    let name = std::env::args().nth(1).unwrap_or_default();
    match Cli::command().find_subcommand(&name) {
        Some(command) => format!("ruvllm {}", command.get_name()),
        None => "ruvllm".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn clap_errors_become_one_line() {
        let line = |args: &[&str]| {
            let error = Cli::try_parse_from(args).expect_err("a wrong command line");
            clap_line(&error.render().to_string(), "ruvllm")
        };
        assert_eq!(
            line(&["ruvllm", "run", "--temp", "hot"]),
            "invalid value 'hot' for '--temp <T>': use a number from 0 up; see 'ruvllm --help'"
        );
        assert_eq!(
            line(&["ruvllm", "run", "--promt", "x"]),
            "unexpected argument '--promt' found; tip: a similar argument exists: '--prompt'; see 'ruvllm run --help'"
        );
    }
}
