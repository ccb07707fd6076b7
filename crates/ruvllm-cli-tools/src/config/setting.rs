//! The settings there are, derived from the options of commands.

use std::any::TypeId;
use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command};

use crate::env;

/// Commands whose options are settings, each with a table of its name.
pub const COMMANDS: [&str; 3] = ["serve", "run", "chat"];
/// Table of options that all of these commands have.
pub(super) const COMMON: &str = "common";
/// Table of settings that have no option.
pub(super) const GENERAL: &str = "general";

/// Options that stand on a command line only.
const NOT_SETTINGS: [&str; 3] = ["config", "help", "version"];
/// Options whose values are shown nowhere.
const SECRETS: [&str; 1] = ["api-key"];

/// Values that a setting takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingKind {
    /// True or false.
    Switch,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// Text.
    Text,
    /// One of some words.
    Choice(Vec<String>),
    /// Text or a number, as the option reads it.
    Any,
}

impl SettingKind {
    fn of(arg: &Arg) -> SettingKind {
        let choices: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let id = arg.get_value_parser().type_id();
        let is_one_of = |types: &[TypeId]| types.iter().any(|one| id == *one);
        match arg.get_action() {
            ArgAction::SetTrue => SettingKind::Switch,
            _ if !choices.is_empty() => SettingKind::Choice(choices),
            _ if is_one_of(&[TypeId::of::<usize>(), TypeId::of::<u64>(), TypeId::of::<u16>(), TypeId::of::<u8>()]) => {
                SettingKind::Integer
            }
            _ if is_one_of(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) => SettingKind::Number,
            _ if is_one_of(&[TypeId::of::<String>(), TypeId::of::<std::path::PathBuf>()]) => SettingKind::Text,
            _ => SettingKind::Any,
        }
    }

    /// Returns the kind in words, for who wrote another one.
    pub(super) fn words(&self) -> String {
        match self {
            SettingKind::Switch => "true or false".to_owned(),
            SettingKind::Integer => "a whole number".to_owned(),
            SettingKind::Number => "a number".to_owned(),
            SettingKind::Text => "text in quotes".to_owned(),
            SettingKind::Choice(words) => {
                let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
                format!("one of {}", quoted.join(", "))
            }
            SettingKind::Any => "text in quotes or a number".to_owned(),
        }
    }
}

/// A setting of the file.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its table.
    pub table: &'static str,
    /// Its name in the table.
    pub key: String,
    /// Values that it takes.
    pub kind: SettingKind,
    /// Whether it takes a list of them.
    pub is_list: bool,
    /// Its effect, in a sentence or two.
    pub help: String,
    /// Value where nobody says one; `None` where the help tells it, or there is none.
    pub default: Option<String>,
    /// Whether its value is shown nowhere.
    pub is_secret: bool,
    /// Other names of its option, which are none of the setting.
    pub(super) other_names: Vec<String>,
    /// Options that read its value.
    args: Vec<Arg>,
}

impl Setting {
    /// Makes a setting of an option, which several commands may have.
    fn of_options(table: &'static str, key: &str, args: Vec<&Arg>) -> Setting {
        let arg = args[0];
        let kind = SettingKind::of(arg);
        let default = match kind {
            SettingKind::Switch => Some("false".to_owned()),
            _ => default_of(arg),
        };
        let names = args.iter().flat_map(|arg| arg.get_all_aliases().unwrap_or_default());
        Setting {
            table,
            key: key.to_owned(),
            kind,
            is_list: args.iter().all(|arg| matches!(arg.get_action(), ArgAction::Append)),
            help: arg.get_help().map(ToString::to_string).unwrap_or_default(),
            default,
            is_secret: SECRETS.contains(&key),
            other_names: names.map(str::to_owned).collect(),
            args: args.into_iter().cloned().collect(),
        }
    }

    fn of_variable(key: &str, help: &str) -> Setting {
        Setting {
            table: GENERAL,
            key: key.to_owned(),
            kind: SettingKind::Any,
            is_list: false,
            help: help.to_owned(),
            default: None,
            is_secret: false,
            other_names: Vec::new(),
            args: Vec::new(),
        }
    }

    /// Returns the values that it takes, in words.
    pub fn words(&self) -> String {
        match self.is_list {
            true => format!("{}, or a list of such", self.kind.words()),
            false => self.kind.words(),
        }
    }

    /// Has the options read values.
    ///
    /// # Errors
    /// The reason why one of them refuses them.
    pub(super) fn check(&self, values: &[String]) -> Result<(), String> {
        if self.kind == SettingKind::Switch {
            return Ok(());
        }
        for arg in &self.args {
            let mut probe = Arg::new("value")
                .long("value")
                .action(arg.get_action().clone())
                .value_parser(arg.get_value_parser().clone());
            if let Some(delimiter) = arg.get_value_delimiter() {
                probe = probe.value_delimiter(delimiter);
            }
            let command = Command::new("settings").no_binary_name(true).disable_help_flag(true).arg(probe);
            let given = values.iter().map(|value| format!("--value={value}"));
            command.try_get_matches_from(given).map_err(|error| reason(&error))?;
        }
        Ok(())
    }
}

/// Returns the reason of an error about a value.
fn reason(error: &clap::Error) -> String {
    if let (ErrorKind::InvalidValue, Some(ContextValue::Strings(words))) =
        (error.kind(), error.get(ContextKind::ValidValue))
        && !words.is_empty()
    {
        return format!("use one of {}", words.join(", "));
    }
    let line = error.source().map_or_else(|| "it cannot be used".to_owned(), ToString::to_string);
    line.trim_end_matches('.').to_owned()
}

/// Returns the value that an option has where nobody says one, as text.
pub(super) fn default_of(arg: &Arg) -> Option<String> {
    let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    (!values.is_empty()).then(|| values.join(","))
}

/// Returns the options of a command that are settings, by their long names.
pub(super) fn options(command: &Command) -> Vec<(&str, &Arg)> {
    let named = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    named.filter(|(name, arg)| !NOT_SETTINGS.contains(name) && !arg.is_hide_set()).collect()
}

/// Returns all settings, table by table.
pub fn all(command: &Command) -> Vec<Setting> {
    let of = |name: &str| command.find_subcommand(name).map(options).unwrap_or_default();
    let all = COMMANDS.map(of);
    let mut settings: Vec<Setting> = env::settings().map(|(key, help)| Setting::of_variable(key, help)).collect();
    for (name, _) in &all[0] {
        let same: Option<Vec<&Arg>> =
            all.iter().map(|options| options.iter().find(|(other, _)| other == name).map(|(_, arg)| *arg)).collect();
        settings.extend(same.map(|args| Setting::of_options(COMMON, name, args)));
    }
    for (table, options) in COMMANDS.into_iter().zip(&all) {
        settings.extend(options.iter().map(|(name, arg)| Setting::of_options(table, name, vec![arg])));
    }
    settings
}
