//! The models of `ruvllm serve` for a program that has the server in its own process, without connections.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, CommandFactory as _, FromArgMatches as _};
use ruvllm_cli_tools::app::{App, Listener};
use ruvllm_cli_tools::config::Invocation;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::settings::ProcessSettings;
use ruvllm_cli_tools::signing_key;
use ruvllm_learning::SigningKey;
use ruvllm_server::{ModelSource, ServerOptions};

use crate::cli::{Cli, Command};
use crate::{clap_line, takes_negatives};

/// Options about connections and the process, which a program has in its own way.
const OF_THE_PROCESS: [&str; 14] = [
    "host",
    "port",
    "api_key",
    "api_key_file",
    "metrics_key",
    "tls_cert",
    "tls_key",
    "cors_origin",
    "no_ui",
    "drain",
    "log_format",
    "log_level",
    "otlp_endpoint",
    "json",
];

/// Models with the options of a server, as `ruvllm serve` would have them.
#[derive(Debug)]
pub struct EmbeddedModels {
    /// Names of the models, the first being the one that answers requests that name none.
    pub names: Vec<String>,
    /// The models; the first is loaded.
    pub models: Vec<ModelSource>,
    /// Options of the server. It takes requests without keys.
    pub options: ServerOptions,
    /// Folder for models, what was learned and the key of this node.
    pub home: PathBuf,
}

impl EmbeddedModels {
    /// Reads the arguments of `ruvllm serve` and the environment, and brings and loads the models. Progress is told to `listener`;
    /// nothing is written to the standard streams.
    ///
    /// # Errors
    /// As the command's: of usage for an argument that cannot be honoured, also one about connections, else a failure.
    pub fn load(args: &[String], listener: Listener) -> Result<EmbeddedModels> {
        let args = ["ruvllm", "serve"].into_iter().chain(args.iter().map(String::as_str));
        let invocation = Invocation::new(takes_negatives(Cli::command()), args.map(OsString::from));
        let wrong = |error: clap::Error| Error::usage(clap_line(&error.render().to_string(), "ruvllm serve"));
        let matches = invocation.parse(None).map_err(wrong)?.matches;
        let (_, of_serve) = matches.subcommand().ok_or_else(|| Error::usage("there is no command"))?;
        let is_given = |id: &&&str| {
            of_serve.try_contains_id(id).is_ok() && of_serve.value_source(id) == Some(ValueSource::CommandLine)
        };
        if let Some(id) = OF_THE_PROCESS.iter().find(is_given) {
            let option = id.replace('_', "-");
            let line =
                format!("--{option} is for 'ruvllm serve'; a server in a program's own process has no use for it");
            return Err(Error::usage(line));
        }
        let cli = Cli::from_arg_matches(&matches).map_err(wrong)?;
        let Command::Serve(args) = cli.command else { return Err(Error::usage("there is no command")) };
        let app = App::new(ProcessSettings::read(None)?, invocation, None).listened_by(listener).in_log();
        let (names, models, options) = args.embedded(&app)?;
        Ok(EmbeddedModels { names, models, options, home: app.settings.home })
    }
}

/// Returns the key that this node signs with, making it the first time.
///
/// # Errors
/// Its file cannot be read or written.
pub fn node_key(home: &Path) -> Result<SigningKey> {
    signing_key::read_or_create(&home.join("node.key"))
}

/// An option of [`EmbeddedModels::load`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedOption {
    /// Name without its dashes.
    pub name: String,
    /// Name of the value; `None` for a flag.
    pub value: Option<String>,
    /// Values that it may have, where there are few.
    pub values: Vec<String>,
    /// Whether it may be given several times.
    pub is_list: bool,
    /// Explanation in a line.
    pub help: String,
}

/// Returns the options of [`EmbeddedModels::load`] but for `--model`, in the order of the help.
pub fn options() -> Vec<EmbeddedOption> {
    let command = Cli::command();
    let serve = command.find_subcommand("serve").expect("the command has one of this name");
    let is_taken = |arg: &&Arg| {
        let id = arg.get_id().as_str();
        !arg.is_hide_set() && !OF_THE_PROCESS.contains(&id) && !["model", "help", "version"].contains(&id)
    };
    serve.get_arguments().filter(is_taken).filter_map(option).collect()
}

fn option(arg: &Arg) -> Option<EmbeddedOption> {
    let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
    let value = || arg.get_value_names().map_or_else(|| "VALUE".to_owned(), |names| names[0].to_string());
    let possible = if takes_value { arg.get_possible_values() } else { Vec::new() };
    Some(EmbeddedOption {
        name: arg.get_long()?.to_owned(),
        value: takes_value.then(value),
        values: possible.iter().map(|value| value.get_name().to_owned()).collect(),
        is_list: matches!(arg.get_action(), ArgAction::Append),
        help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ruvllm_hub::Silent;

    use super::*;

    fn refused(args: &[&str]) -> String {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let error = EmbeddedModels::load(&args, Arc::new(Silent)).expect_err("it is refused");
        assert_eq!(error.exit_code(), 2, "{error:?}");
        error.line().expect("a line")
    }

    #[test]
    fn options_are_those_of_the_command_without_connections() {
        let line = "--port is for 'ruvllm serve'; a server in a program's own process has no use for it";
        assert_eq!(refused(&["--port=1"]), line);
        assert!(refused(&["--ctx=0"]).starts_with("invalid value '0' for '--ctx <N>': use a number from 1 to "));
        assert!(refused(&["--contxt=1"]).starts_with("unexpected argument '--contxt' found"));
        assert!(refused(&["--parallel"]).starts_with("a value is required for '--parallel <N>'"));
        let options = options();
        let find = |name: &str| options.iter().find(|option| option.name == name);
        assert_eq!(find("learn").map(|option| (&option.value, option.is_list)), Some((&None, false)));
        assert_eq!(find("ctx").and_then(|option| option.value.as_deref()), Some("N"));
        assert_eq!(find("adapter").map(|option| option.is_list), Some(true));
        assert_eq!(find("backend").map(|option| option.values[0].as_str()), Some("native"));
        assert!(find("port").is_none() && find("model").is_none() && find("help").is_none());
    }
}
