//! Reading a settings file: every table, key, type and value is checked, with the number of its line.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Item, Key, TableLike, Value};

use super::setting::{COMMANDS, COMMON, GENERAL, Setting, SettingKind};
use crate::error::{Error, Result, one_line};

/// The most bytes of a settings file.
const BYTES_MAX: u64 = 1 << 20;
/// The least likeness of a name to the one that was probably meant.
const LIKE_MIN: f64 = 0.5;
/// Characters of a wrong value that are shown.
const SHOWN_MAX: usize = 40;

/// A sound settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Settings in it.
    given: Vec<Given>,
}

/// A setting that stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) table: &'static str,
    pub(super) key: String,
    pub(super) line: usize,
    /// Values as the command line has them; of a switch `true` or `false`.
    pub(super) values: Vec<String>,
}

/// A mistake in a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Number of the line, from 1.
    pub line: usize,
    /// The mistake, and what would be right.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl ConfigFile {
    /// Reads a file, all of which must be right.
    ///
    /// # Errors
    /// It cannot be read; a usage error with the first mistake in it.
    pub fn load(path: &Path, settings: &[Setting]) -> Result<ConfigFile> {
        let (file, problems) = ConfigFile::read(path, settings)?;
        let Some(first) = problems.first() else { return Ok(file) };
        let more = match problems.len() {
            1 => String::new(),
            n => format!(" (and {} more: ruvllm config check)", n - 1),
        };
        Err(Error::usage(format_args!("{} {first}{more}", path.display())))
    }

    /// Reads a file, and returns what is right in it beside all mistakes.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path, settings: &[Setting]) -> Result<(ConfigFile, Vec<Problem>)> {
        let failed = |error: std::io::Error| Error::io("read the settings file", path, &error);
        let mut bytes = Vec::new();
        File::open(path).map_err(failed)?.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > BYTES_MAX {
            let line = format!("{} is larger than a settings file may be ({BYTES_MAX} bytes)", path.display());
            return Err(Error::failure(line));
        }
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| Error::failure(format_args!("{} is not UTF-8 text", path.display())))?;
        let (given, problems) = parse(&text, settings);
        Ok((ConfigFile { path: path.to_owned(), given }, problems))
    }

    /// Returns how many settings it has.
    pub fn n_settings(&self) -> usize {
        self.given.len()
    }

    /// Returns the value of a setting that has no option.
    pub fn general(&self, key: &str) -> Option<&str> {
        self.of_general(key).and_then(|given| given.values.first()).map(String::as_str)
    }

    /// Returns the line of a setting that has no option.
    pub fn general_line(&self, key: &str) -> Option<usize> {
        self.of_general(key).map(|given| given.line)
    }

    fn of_general(&self, key: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.table == GENERAL && given.key == key)
    }

    /// Returns the settings of a command: those of its table, and the common ones that it does not set itself.
    pub(super) fn of_command(&self, command: &str) -> Vec<&Given> {
        let own: Vec<&Given> = self.given.iter().filter(|given| given.table == command).collect();
        let is_own = |key: &str| own.iter().any(|given| given.key == key);
        let common = self.given.iter().filter(|given| given.table == COMMON && !is_own(&given.key));
        common.chain(own.iter().copied()).collect()
    }

    /// Returns whether a value stands in it that is to be kept from others, and others may read it.
    pub fn exposes_secrets(&self, settings: &[Setting]) -> bool {
        let is_secret = |given: &Given| {
            settings.iter().any(|setting| setting.is_secret && setting.table == given.table && setting.key == given.key)
        };
        self.given.iter().any(is_secret) && may_be_read_by_others(&self.path)
    }
}

#[cfg(unix)]
fn may_be_read_by_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o044 != 0)
}

#[cfg(not(unix))]
fn may_be_read_by_others(_: &Path) -> bool {
    false
}

/// Reads the text of a file.
pub(super) fn parse(text: &str, settings: &[Setting]) -> (Vec<Given>, Vec<Problem>) {
    let mut reading = Reading { text, settings, given: Vec::new(), problems: Vec::new() };
    match Document::parse(text) {
        Ok(document) => reading.root(document.as_table()),
        Err(error) => reading.problem(error.span(), one_line(error.message())),
    }
    reading.problems.sort_by_key(|problem| problem.line);
    (reading.given, reading.problems)
}

type Span = Option<std::ops::Range<usize>>;

/// A file while it is read.
struct Reading<'a> {
    text: &'a str,
    settings: &'a [Setting],
    given: Vec<Given>,
    problems: Vec<Problem>,
}

impl Reading<'_> {
    fn line(&self, span: Span) -> usize {
        let start = span.map_or(0, |span| span.start).min(self.text.len());
        self.text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn problem(&mut self, span: Span, text: String) {
        let line = self.line(span);
        self.problems.push(Problem { line, text });
    }

    fn root(&mut self, root: &dyn TableLike) {
        let tables = || [GENERAL, COMMON].into_iter().chain(COMMANDS);
        for (name, item) in root.iter() {
            let span = root.key(name).and_then(Key::span).or_else(|| item.span());
            match (tables().find(|table| *table == name), item.as_table_like()) {
                (Some(table), Some(inside)) => self.table(table, inside),
                (Some(table), None) => {
                    self.problem(span, format!("'{table}' is a table; write [{table}] on a line of its own"))
                }
                (None, Some(_)) => {
                    let shown = shown(name);
                    let meant = nearest(name, tables()).map_or_else(
                        || {
                            format!(
                                "the tables are {}",
                                tables().map(|table| format!("[{table}]")).collect::<Vec<_>>().join(", ")
                            )
                        },
                        |table| format!("is [{table}] meant?"),
                    );
                    self.problem(span, format!("there is no table [{shown}]; {meant}"));
                }
                (None, None) => {
                    let homes = self.homes(name);
                    let advice = match homes.is_empty() {
                        true => "settings stand in tables, as port does in [serve]".to_owned(),
                        false => format!("it belongs in {}", homes.join(" or ")),
                    };
                    self.problem(span, format!("'{}' stands in no table; {advice}", shown(name)));
                }
            }
        }
    }

    fn table(&mut self, table: &'static str, inside: &dyn TableLike) {
        let settings = self.settings;
        for (key, item) in inside.iter() {
            let key_span = inside.key(key).and_then(Key::span).or_else(|| item.span());
            let Some(setting) = settings.iter().find(|setting| setting.table == table && setting.key == key) else {
                let advice = self.advice(table, key);
                self.problem(key_span, format!("[{table}] has no setting '{}'; {advice}", shown(key)));
                continue;
            };
            let line = self.line(key_span.clone());
            let read = values(setting, item).and_then(|values| match setting.check(&values) {
                Ok(()) => Ok(values),
                Err(reason) if setting.is_secret => Err(format!("the value cannot be used: {reason}")),
                Err(reason) => Err(format!("{} cannot be used: {reason}", shown(&values.join(",")))),
            });
            match read {
                Ok(values) => self.given.push(Given { table, key: key.to_owned(), line, values }),
                Err(reason) => self.problem(item.span().or(key_span), format!("{key} in [{table}]: {reason}")),
            }
        }
    }

    /// Returns the tables that have a setting.
    fn homes(&self, key: &str) -> Vec<String> {
        let homes = self.settings.iter().filter(|setting| setting.key == key);
        homes.map(|setting| format!("[{}]", setting.table)).collect()
    }

    /// Returns what was probably meant by a key that is no setting.
    fn advice(&self, table: &str, key: &str) -> String {
        let own = || self.settings.iter().filter(|setting| setting.table == table);
        let plain = key.replace('_', "-");
        let is_called = |setting: &&Setting| setting.key == plain || setting.other_names.contains(&plain);
        if let Some(setting) = own().find(is_called) {
            return format!("is '{}' meant?", setting.key);
        }
        let homes = self.homes(&plain);
        if !homes.is_empty() {
            return format!("'{plain}' belongs in {}", homes.join(" or "));
        }
        match nearest(&plain, own().map(|setting| setting.key.as_str())) {
            Some(meant) => format!("is '{meant}' meant?"),
            None => "'ruvllm config show' lists all".to_owned(),
        }
    }
}

/// Returns the name that is most like another one, if it is like it at all.
fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let near = |known: &str| strsim::normalized_damerau_levenshtein(known, name);
    names.max_by(|a, b| near(a).total_cmp(&near(b))).filter(|known| near(known) >= LIKE_MIN)
}

/// Returns the beginning of a text, without control characters.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN_MAX { format!("{short}…") } else { short }
}

/// Returns the values of an item as a command line has them.
fn values(setting: &Setting, item: &Item) -> std::result::Result<Vec<String>, String> {
    let wrong = |is: &str| format!("it is {is}; use {}", setting.words());
    let Some(value) = item.as_value() else { return Err(wrong("a table")) };
    match value {
        Value::Array(array) if setting.is_list => array
            .iter()
            .map(|one| single(&setting.kind, one).ok_or_else(|| wrong("a list of something else")))
            .collect(),
        Value::Array(_) => Err(wrong("a list")),
        one => single(&setting.kind, one).map(|text| vec![text]).ok_or_else(|| wrong(type_words(one))),
    }
}

/// Returns a value as text, if it has the type of its kind.
fn single(kind: &SettingKind, value: &Value) -> Option<String> {
    match (kind, value) {
        (SettingKind::Switch, Value::Boolean(is_on)) => Some(is_on.value().to_string()),
        (SettingKind::Integer | SettingKind::Number | SettingKind::Any, Value::Integer(number)) => {
            Some(number.value().to_string())
        }
        (SettingKind::Number | SettingKind::Any, Value::Float(number)) => Some(number.value().to_string()),
        (SettingKind::Text | SettingKind::Choice(_) | SettingKind::Any, Value::String(text)) => {
            Some(text.value().clone())
        }
        _ => None,
    }
}

fn type_words(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "text",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number with a fraction",
        Value::Boolean(_) => "true or false",
        Value::Datetime(_) => "a date",
        Value::Array(_) => "a list",
        Value::InlineTable(_) => "a table",
    }
}
