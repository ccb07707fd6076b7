//! The models that have short names: those of this program, and those of a file of the person's own.
//!
//! A short name stands for one exact file: every source of an entry must deliver the bytes whose SHA-256 the entry
//! records, so results never depend on which source answered. Entries of a person may leave the SHA-256 out.

mod names;
mod parse;
mod user;

use std::collections::BTreeMap;
use std::path::Path;

use crate::digest::Expected;
use crate::error::HubError;
use crate::source::Source;

pub use names::{Pullable, Resolved};
pub(crate) use names::{file_stem, is_plain};

/// Default model of `run` and `chat`.
pub const DEFAULT_MODEL: &str = "smollm2:135m";

/// The entries of this program.
const BUILT_IN: &str = include_str!("../../registry.toml");
/// The most aliases that lead to one another.
const ALIAS_DEPTH_MAX: usize = 8;

/// A model with a short name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The full name, `family:size`.
    pub name: String,
    /// A shorter name for the same.
    pub alias: Option<String>,
    /// Description for people: instruction-tuned or base, and its licence.
    pub about: String,
    /// Quantisation of the file; empty if the entry does not say it.
    pub quantization: String,
    /// Size and SHA-256 of the file; of a model in several files, those of the first.
    pub expected: Expected,
    /// Where it can be had, in order.
    pub sources: Vec<Source>,
}

/// Entries and aliases.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    entries: Vec<Entry>,
    aliases: BTreeMap<String, String>,
    problem: Option<String>,
}

impl Registry {
    /// Returns the entries of this program alone.
    ///
    /// # Panics
    /// The file that this program was built with is wrong, which a test finds.
    pub fn built_in() -> Registry {
        let parsed = parse::parse(BUILT_IN).expect("a test reads the built-in registry");
        Registry { entries: parsed.entries, ..Registry::default() }
    }

    /// Returns the entries of this program, and those of the person's file if it is there. A file that cannot be used is left
    /// out, and [`Registry::problem`] says why.
    pub fn load(user_file: Option<&Path>) -> Registry {
        let mut registry = Registry::built_in();
        let Some(path) = user_file else { return registry };
        match user::read(path).and_then(|text| text.map(|text| registry.parse_more(&text)).transpose()) {
            Ok(None) => {}
            Ok(Some(parsed)) => {
                registry.entries.extend(parsed.entries);
                registry.aliases = parsed.aliases;
            }
            Err(line) => registry.problem = Some(format!("{}: {line}; it is left out", path.display())),
        }
        registry
    }

    fn parse_more(&self, text: &str) -> Result<parse::Parsed, String> {
        let parsed = parse::parse(text)?;
        for (place, name) in &parsed.names {
            let is_same = |other: &str| file_stem(other) == file_stem(name);
            if self.entries.iter().any(|entry| is_same(&entry.name) || entry.alias.as_deref().is_some_and(is_same)) {
                return Err(format!("line {}: '{name}' is a name of the built-in registry", parse::line(text, *place)));
            }
        }
        Ok(parsed)
    }

    /// Returns the line about the person's file, if it could not be used.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns the entries, this program's first.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the entry with this name, or this shorter name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name || entry.alias.as_deref() == Some(name))
    }

    /// Returns the person's aliases, each with its target.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.aliases.iter().map(|(name, target)| (name.as_str(), target.as_str()))
    }

    /// Follows aliases to a name that is none.
    ///
    /// # Errors
    /// They lead in a circle.
    fn follow<'a>(&'a self, name: &'a str) -> Result<&'a str, HubError> {
        let mut target = name;
        for _ in 0..ALIAS_DEPTH_MAX {
            match self.aliases.get(target) {
                Some(next) if self.entry(target).is_none() => target = next,
                _ => return Ok(target),
            }
        }
        Err(HubError::usage(format_args!("the alias '{name}' leads in a circle; see 'ruvllm alias --list'")))
    }

    /// Sets an alias in the person's file, which is made if it is not there; comments in it stay.
    ///
    /// # Errors
    /// The name or target cannot be used, or the file cannot be read or written.
    pub fn set_alias(&self, user_file: &Path, name: &str, target: &str) -> Result<(), HubError> {
        user::check_name(name)?;
        if self.entry(name).is_some() {
            return Err(HubError::usage(format_args!("'{name}' is a model of the registry; choose another name")));
        }
        if let Resolved::Path(path) = self.resolve(target)?
            && !path.exists()
        {
            return Err(HubError::usage(format_args!("there is no file {}; name one that is there", path.display())));
        }
        let leads = std::iter::successors(Some(target), |at| self.aliases.get(*at).map(String::as_str));
        if leads.take(ALIAS_DEPTH_MAX).any(|at| at == name) {
            return Err(HubError::usage(format_args!("the alias '{name}' would lead to itself")));
        }
        user::edit(user_file, |aliases| drop(aliases.insert(name, toml_edit::value(target))))
    }

    /// Removes an alias from the person's file, and returns its target.
    ///
    /// # Errors
    /// There is none of this name, or the file cannot be read or written.
    pub fn remove_alias(&self, user_file: &Path, name: &str) -> Result<String, HubError> {
        let target = self.aliases.get(name).cloned();
        let target = target
            .ok_or_else(|| HubError::usage(format_args!("there is no alias '{name}'; see 'ruvllm alias --list'")))?;
        user::edit(user_file, |aliases| drop(aliases.remove(name)))?;
        Ok(target)
    }
}

#[cfg(test)]
mod tests;
