//! `ruvllm config`: the settings file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Subcommand};
use ruvllm_cli_tools::app::App;
use ruvllm_cli_tools::args::OutputArgs;
use ruvllm_cli_tools::config::{self, COMMANDS, ConfigFile, Origin, ParsedLine, Setting};
use ruvllm_cli_tools::env;
use ruvllm_cli_tools::error::{Error, Result};
use ruvllm_cli_tools::output::{print, print_json, print_line, table};
use ruvllm_cli_tools::settings::ProcessSettings;
use serde_json::{Value, json};

const EXAMPLES: &str = "\
Examples:
  ruvllm config init                          a file in which every setting is a comment
  ruvllm config check
  ruvllm config show                          what 'ruvllm serve' would run with, and why
  ruvllm config show run -- --temp 0          the same of 'ruvllm run --temp 0'
  ruvllm config schema > ruvllm.schema.json   for editors

The command line wins over the environment, the environment over the file. A switch that the file turns on is
turned off by --NAME=false.";

/// Options of `ruvllm config`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ConfigCommand {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write a settings file in which nothing is set yet
    Init(InitArgs),
    /// Print each value that holds for a command and where it comes from
    Show(ShowArgs),
    /// Check the settings file: a line for each mistake
    Check(CheckArgs),
    /// Print the JSON Schema of the file
    Schema,
}

#[derive(Args, Debug)]
struct InitArgs {
    /// File to write, '-' for standard output [default: ruvllm/config.toml in XDG_CONFIG_HOME]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Write over a file that is there
    #[arg(long)]
    force: bool,
}

#[derive(Args, Debug)]
struct ShowArgs {
    /// The command
    #[arg(value_name = "COMMAND", default_value = "serve", value_parser = COMMANDS)]
    command: String,
    /// Options that it would be started with
    #[arg(value_name = "OPTION", last = true)]
    options: Vec<OsString>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// File to check [default: the one that would be read]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// A value that holds.
struct Shown {
    table: String,
    key: String,
    value: String,
    /// As a name for programs.
    source: &'static str,
    /// In words.
    place: String,
}

impl ConfigCommand {
    /// Writes, shows or checks the file.
    ///
    /// # Errors
    /// A file that is there or cannot be written; mistakes in one.
    pub fn run(&self, app: &App) -> Result<()> {
        match &self.action {
            Action::Init(args) => args.run(app),
            Action::Show(args) => args.run(app),
            Action::Check(args) => args.run(app),
            Action::Schema => print_line(&format!("{:#}", config::schema(&config::all(app.invocation.command())))),
        }
    }
}

impl InitArgs {
    fn run(&self, app: &App) -> Result<()> {
        let text = config::template(&config::all(app.invocation.command()));
        if self.file.as_deref() == Some(Path::new("-")) {
            return print(&text);
        }
        let unknown = || Error::usage("no home folder is known; name the file: ruvllm config init FILE");
        let path = self.file.clone().or_else(|| app.invocation.config()).or_else(env::own_config_file);
        let path = path.ok_or_else(unknown)?;
        if path.exists() && !self.force {
            return Err(Error::failure(format_args!("{} is there; --force writes over it", path.display())));
        }
        let failed = |error: std::io::Error| Error::io("write", &path, &error);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(&path, text).map_err(failed)?;
        print_line(&format!("{} has every setting as a comment", path.display()))
    }
}

impl CheckArgs {
    fn run(&self, app: &App) -> Result<()> {
        let settings = config::all(app.invocation.command());
        let none = "there is no settings file; 'ruvllm config init' makes one";
        let path = self.file.as_deref().or(app.config.as_deref()).ok_or_else(|| Error::failure(none))?;
        let (file, problems) = ConfigFile::read(path, &settings)?;
        let mut lines: Vec<(Option<usize>, String)> =
            problems.iter().map(|problem| (Some(problem.line), problem.text.clone())).collect();
        if lines.is_empty() {
            lines.extend(misfits(app, &file).into_iter().map(|line| (None, line)));
        }
        if self.output.json {
            let problems = lines.iter().map(|(line, text)| json!({ "line": line, "problem": text }));
            let problems: Vec<Value> = problems.collect();
            print_json(&json!({ "file": path, "settings": file.n_settings(), "problems": problems }))?;
        } else {
            for (line, text) in &lines {
                let place = line.map_or_else(String::new, |line| format!(":{line}"));
                print_line(&format!("{}{place}: {text}", path.display()))?;
            }
        }
        if !lines.is_empty() {
            let s = if lines.len() == 1 { "" } else { "s" };
            return Err(Error::failure(format_args!("{} has {} mistake{s}", path.display(), lines.len())));
        }
        if file.exposes_secrets(&settings) {
            app.ui.warn(&format!(
                "{} has keys in it, and others may read it: chmod 600, or use api-key-file",
                path.display()
            ));
        }
        match self.output.json {
            true => Ok(()),
            false => print_line(&format!("{} is right: {} settings", path.display(), file.n_settings())),
        }
    }
}

/// Returns what is wrong with settings that are right each for itself.
fn misfits(app: &App, file: &ConfigFile) -> Vec<String> {
    let general = ProcessSettings::read(Some(file)).err().and_then(|error| error.line());
    let of_command = |command: &&str| {
        let alone = ["ruvllm", *command].map(OsString::from);
        let error = app.invocation.with_args(alone).parse(Some(file)).err()?;
        let line = error.to_string();
        Some(format!("[{command}] {}", line.lines().next().unwrap_or_default().trim_start_matches("error: ")))
    };
    general.into_iter().chain(COMMANDS.iter().filter_map(of_command)).collect()
}

impl ShowArgs {
    fn run(&self, app: &App) -> Result<()> {
        let settings = config::all(app.invocation.command());
        let file = app.config.as_deref().map(|path| ConfigFile::load(path, &settings)).transpose()?;
        let args = [OsString::from("ruvllm"), self.command.as_str().into()].into_iter().chain(self.options.clone());
        let invocation = app.invocation.with_args(args);
        let parsed = invocation.parse(file.as_ref());
        let parsed = parsed.map_err(|error| Error::usage(error.to_string().trim_start_matches("error: ")))?;
        let mut rows: Vec<Shown> = settings
            .iter()
            .filter(|setting| setting.table == "general")
            .map(|one| general(one, file.as_ref()))
            .collect();
        let command = invocation.command().find_subcommand(&self.command);
        let of_command = settings.iter().filter(|setting| setting.table == self.command);
        rows.extend(of_command.filter_map(|setting| {
            let arg = command?.get_arguments().find(|arg| arg.get_long() == Some(setting.key.as_str()))?;
            Some(of_option(&self.command, setting, arg, &parsed))
        }));
        let path = file.as_ref().map(|file| file.path.display().to_string());
        if self.output.json {
            let all = rows.iter().map(|row| {
                json!({ "table": row.table, "key": row.key, "value": row.value, "source": row.source, "place": row.place })
            });
            return print_json(&json!({ "file": path, "command": self.command, "settings": all.collect::<Vec<_>>() }));
        }
        let cells =
            |row: &Shown| vec![format!("[{}]", row.table), row.key.clone(), row.value.clone(), row.place.clone()];
        print_line(&path.map_or_else(|| "no settings file".to_owned(), |path| format!("settings file {path}")))?;
        print(&table(&rows.iter().map(cells).collect::<Vec<_>>(), &[]))
    }
}

/// Returns the value of a setting without an option.
fn general(setting: &Setting, file: Option<&ConfigFile>) -> Shown {
    let of_env = env::value_of(&setting.key).map(|(name, value)| (value, Origin::Variable(name.to_owned())));
    let of_file = || {
        let (value, line) = (file?.general(&setting.key)?, file?.general_line(&setting.key)?);
        Some((value.to_owned(), Origin::File(line)))
    };
    let (value, origin) = of_env.or_else(of_file).unwrap_or((String::new(), Origin::Default));
    shown(setting, value, &origin)
}

/// Returns the value of an option.
fn of_option(command: &str, setting: &Setting, arg: &Arg, parsed: &ParsedLine) -> Shown {
    let raw = |own: &ArgMatches| {
        let id = arg.get_id().as_str();
        match arg.get_action() {
            ArgAction::SetTrue => own.get_flag(id).to_string(),
            _ => {
                let values: Vec<_> =
                    own.get_raw(id).into_iter().flatten().map(|value| value.to_string_lossy()).collect();
                values.join(",")
            }
        }
    };
    let value = parsed.matches.subcommand_matches(command).map(raw).unwrap_or_default();
    shown(setting, value, &parsed.origin(command, arg))
}

fn shown(setting: &Setting, value: String, origin: &Origin) -> Shown {
    let (source, place) = match origin {
        Origin::Option => ("option", "command line".to_owned()),
        Origin::Variable(name) => ("environment", name.clone()),
        Origin::File(line) => ("file", format!("line {line}")),
        Origin::Default => ("default", "default".to_owned()),
    };
    let is_hidden = setting.is_secret && !value.is_empty();
    let value = if is_hidden { "(not shown)".to_owned() } else { value };
    Shown { table: setting.table.to_owned(), key: setting.key.clone(), value, source, place }
}
