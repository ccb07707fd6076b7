//! A command line with a settings file in front of it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::file::{ConfigFile, Given};
use super::setting::{COMMANDS, default_of, options};
use crate::env;

/// Setting that has a meaning with one value of another one only: the file's is left out with every other value.
const ONLY_WITH: (&str, &str, &str) = ("url", "backend", "remote");

/// The command line of this process, as far as it is the person's own.
#[derive(Clone, Debug)]
pub struct Invocation {
    command: Command,
    args: Vec<OsString>,
    /// Switches that the command line turns off: `--learn=false`.
    off: Vec<String>,
}

/// A command line that was read.
#[derive(Clone, Debug)]
pub struct ParsedLine {
    /// Values of all options.
    pub matches: ArgMatches,
    /// Line of the file for each option of the command that comes from there.
    pub lines: BTreeMap<String, usize>,
}

/// Where the value of an option comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Option,
    /// The variable of this name.
    Variable(String),
    /// The line of the file.
    File(usize),
    /// Nobody said it.
    Default,
}

impl Invocation {
    /// Takes a command line apart. `--switch=true` and `--switch=false` are read here: parsers of switches know neither.
    pub fn new(command: Command, args: impl IntoIterator<Item = OsString>) -> Invocation {
        let mut invocation = Invocation { command, args: args.into_iter().collect(), off: Vec::new() };
        invocation.read_switches();
        invocation
    }

    /// Returns the command that the line calls, if it is one of those that have settings.
    pub(crate) fn configured(&self) -> Option<&'static str> {
        let name = self.args.get(self.subcommand_at()?)?.to_str()?;
        COMMANDS.into_iter().find(|command| *command == name)
    }

    /// Returns the parser of all commands.
    pub fn command(&self) -> &Command {
        &self.command
    }

    /// Returns the same parser in front of other arguments.
    pub fn with_args(&self, args: impl IntoIterator<Item = OsString>) -> Invocation {
        Invocation::new(self.command.clone(), args)
    }

    /// Returns the value of `--config`, also of a line that is wrong elsewhere.
    pub fn config(&self) -> Option<PathBuf> {
        let mut matches = &self.lenient()?;
        loop {
            if let Some(path) = matches.try_get_one::<PathBuf>("config").ok().flatten() {
                return Some(path.clone());
            }
            matches = matches.subcommand()?.1;
        }
    }

    /// Reads the line, with the settings of a file where there is one.
    ///
    /// # Errors
    /// The parser's.
    pub fn parse(&self, file: Option<&ConfigFile>) -> Result<ParsedLine, clap::Error> {
        let alone = self.command.clone().try_get_matches_from(&self.args);
        let (Some(file), Some(name), Some(at)) = (file, self.configured(), self.subcommand_at()) else {
            return Ok(ParsedLine { matches: alone?, lines: BTreeMap::new() });
        };
        let matches = match alone {
            Ok(matches) => matches,
            // The file may have what is missing.
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => self.lenient().ok_or(error)?,
            Err(error) => return Err(error),
        };
        let (Some(own), Some(command)) = (matches.subcommand_matches(name), self.command.find_subcommand(name)) else {
            return Ok(ParsedLine { matches, lines: BTreeMap::new() });
        };
        let given = self.wanted(command, own, file.of_command(name));
        let mut args = self.args.clone();
        let needed = given.iter().filter(|given| !is_default(command, given));
        drop(args.splice(at + 1..at + 1, needed.flat_map(|given| line_of(command, given))));
        let lines = given.iter().map(|given| (given.key.clone(), given.line)).collect();
        Ok(ParsedLine { matches: self.command.clone().try_get_matches_from(args)?, lines })
    }

    /// Returns the settings of a file that the command line and the environment leave to it.
    fn wanted<'f>(&self, command: &Command, own: &ArgMatches, file: Vec<&'f Given>) -> Vec<&'f Given> {
        let all = options(command);
        let arg = |key: &str| all.iter().find(|(name, _)| *name == key).map(|(_, arg)| *arg);
        let is_explicit = |arg: &Arg| {
            let source = own.value_source(arg.get_id().as_str());
            matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
        };
        let explicit: Vec<&Arg> = all.iter().map(|(_, arg)| *arg).filter(|arg| is_explicit(arg)).collect();
        let is_said = |key: &str| {
            let is_option = arg(key).is_some_and(|own| explicit.iter().any(|arg| arg.get_id() == own.get_id()));
            is_option || self.off.iter().any(|off| off == key) || env::variable_of(key).is_some()
        };
        let is_refused = |key: &str| {
            let Some(own) = arg(key) else { return false };
            let excludes =
                |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id());
            explicit.iter().any(|other| excludes(own, other) || excludes(other, own))
        };
        let (kept, dropped): (Vec<&Given>, Vec<&Given>) =
            file.into_iter().partition(|given| !is_said(&given.key) && !is_refused(&given.key));
        let lines = |dropped: &Given| line_of(command, dropped);
        let mut gone: Vec<Vec<OsString>> =
            dropped.into_iter().filter(|given| is_refused(&given.key)).map(lines).collect();
        gone.extend(self.off.iter().map(|key| vec![format!("--{key}").into()]));
        let (only, other, value) = ONLY_WITH;
        let is_other = |values: &[String]| values.iter().any(|one| one == value);
        let of_file = kept.iter().any(|given| given.key == other && is_other(&given.values));
        let raw = arg(other).and_then(|arg| own.get_raw(arg.get_id().as_str()));
        let of_line = raw.into_iter().flatten().any(|one| one.to_str() == Some(value));
        let has_other = if is_said(other) { of_line } else { of_file };
        let fits = |given: &&Given| given.key != only || has_other;
        kept.into_iter()
            .filter(fits)
            .filter(|given| !gone.iter().any(|gone| self.needs(command, given, gone)))
            .collect()
    }

    /// Returns whether a setting is of no use without some option.
    fn needs(&self, command: &Command, given: &Given, other: &[OsString]) -> bool {
        let reads = |args: Vec<OsString>| {
            let line = [self.args[0].clone(), command.get_name().into()].into_iter().chain(args);
            match self.command.clone().try_get_matches_from(line) {
                Err(error) => error.kind() != ErrorKind::MissingRequiredArgument,
                Ok(_) => true,
            }
        };
        let own = line_of(command, given);
        !reads(own.clone()) && reads([own, other.to_vec()].concat())
    }

    /// Returns what can be read of the line, whatever is wrong with the rest.
    fn lenient(&self) -> Option<ArgMatches> {
        self.command.clone().ignore_errors(true).try_get_matches_from(&self.args).ok()
    }

    /// Returns the place of the command's name.
    fn subcommand_at(&self) -> Option<usize> {
        let mut at = 1;
        loop {
            let arg = self.args.get(at)?.to_str()?;
            match arg {
                "--config" => at += 2,
                _ if arg.starts_with('-') => at += 1,
                _ => return Some(at),
            }
        }
    }

    fn read_switches(&mut self) {
        let Some(command) = self.configured().and_then(|name| self.command.find_subcommand(name)) else { return };
        let long = |name: &str| {
            let is_called = |arg: &&Arg| {
                arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
            };
            command.get_arguments().find(is_called)
        };
        let takes_next = |arg: &str| {
            let letter = |c: char| command.get_arguments().find(|arg| arg.get_short() == Some(c));
            let option = match arg.strip_prefix("--") {
                Some(name) => long(name),
                None => arg.strip_prefix('-').and_then(|rest| rest.chars().last()).and_then(letter),
            };
            option.is_some_and(|option| option.get_action().takes_values())
        };
        let (mut args, mut off, mut is_value, mut is_over) = (Vec::new(), Vec::new(), false, false);
        for arg in &self.args {
            let text = arg.to_str().unwrap_or_default();
            let switch =
                text.strip_prefix("--").and_then(|text| text.split_once('=')).filter(|_| !is_value && !is_over);
            let switch = switch.and_then(|(name, value)| {
                let arg = long(name).filter(|arg| matches!(arg.get_action(), ArgAction::SetTrue))?;
                Some((arg.get_long()?.to_owned(), value))
            });
            match switch {
                Some((name, "true")) => args.push(format!("--{name}").into()),
                Some((name, "false")) => off.push(name),
                _ => args.push(arg.clone()),
            }
            is_over |= text == "--";
            is_value = !is_value && takes_next(text);
        }
        (self.args, self.off) = (args, off);
    }
}

impl ParsedLine {
    /// Returns where the value of an option comes from.
    pub fn origin(&self, command: &str, arg: &Arg) -> Origin {
        let (Some(own), Some(key)) = (self.matches.subcommand_matches(command), arg.get_long()) else {
            return Origin::Default;
        };
        match own.value_source(arg.get_id().as_str()) {
            _ if self.lines.contains_key(key) => Origin::File(self.lines[key]),
            Some(ValueSource::CommandLine) => Origin::Option,
            Some(ValueSource::EnvVariable) => {
                Origin::Variable(arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
            }
            _ => env::variable_of(key).map_or(Origin::Default, |name| Origin::Variable(name.to_owned())),
        }
    }
}

/// Returns whether a setting has the value that its option has without it. An option that only goes with another one is not to be
/// refused for that.
fn is_default(command: &Command, given: &Given) -> bool {
    let found = options(command).into_iter().find(|(name, _)| *name == given.key);
    found.and_then(|(_, arg)| default_of(arg)).is_some_and(|default| default == given.values.join(","))
}

/// Returns a setting as a command line has it.
fn line_of(command: &Command, given: &Given) -> Vec<OsString> {
    let key = &given.key;
    let is_switch = options(command)
        .iter()
        .any(|(name, arg)| *name == key.as_str() && matches!(arg.get_action(), ArgAction::SetTrue));
    match is_switch {
        true if given.values.iter().any(|value| value == "true") => vec![format!("--{key}").into()],
        true => Vec::new(),
        false => given.values.iter().map(|value| format!("--{key}={value}").into()).collect(),
    }
}
