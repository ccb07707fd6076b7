//! Publishing models, merged models and adapters on the hub.
//!
//! [`Publication::prepare`] reads what is published and makes its model card and checksums; nobody is asked. [`push`] sends it:
//! large files to the hub's storage, in parts where it asks for that, then everything as one commit, so that a repository never
//! has half of it.

mod card;
mod collect;
mod commit;
mod facts;
mod lfs;
mod table;
mod upload;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::checksums::{Checksums, SUMS_BYTES_MAX, SUMS_FILE};
use crate::config::HubConfig;
use crate::digest::sha256;
use crate::download::{HubFile, small_text};
use crate::error::{HubError, shown};
use crate::http::Http;
use crate::progress::Progress;
use crate::publish::card::CardText;
use crate::publish::commit::{Mode, Repository};
use crate::publish::upload::Uploads;
use crate::registry::is_plain;

/// Name of the model card.
const CARD_FILE: &str = "README.md";
/// The most bytes of a model card in a repository.
const CARD_BYTES_MAX: u64 = 4 << 20;
/// The most characters of a commit's message.
const MESSAGE_CHARS_MAX: usize = 500;

/// Settings of a publication.
#[derive(Clone, Debug, Default)]
pub struct PublishOptions {
    /// Repository as `hf:owner/name`, perhaps with `@branch`.
    pub target: String,
    /// Make the repository private, if it has to be made.
    pub is_private: bool,
    /// Message of the commit, instead of one that names the files.
    pub message: Option<String>,
    /// Figures for the model card: what `perplexity --json` or `compare --json` answered.
    pub table: Option<Value>,
}

/// A file that is published.
#[derive(Clone, Debug)]
pub struct PublishedFile {
    /// Path in the repository.
    pub name: String,
    /// File on this machine; `None` for those that are made.
    pub path: Option<PathBuf>,
    /// Content of those that are made.
    pub text: Option<String>,
    /// Length in bytes.
    pub n_bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: String,
}

impl PublishedFile {
    fn made(name: &str, text: String) -> PublishedFile {
        let (n_bytes, sha256) = (text.len() as u64, sha256(text.as_bytes()));
        PublishedFile { name: name.to_owned(), path: None, text: Some(text), n_bytes, sha256 }
    }
}

/// Everything that is to be sent.
#[derive(Clone, Debug)]
pub struct Publication {
    /// Owner and name of the repository.
    pub repo: String,
    /// Branch.
    pub revision: String,
    /// Make the repository private, if it has to be made.
    pub is_private: bool,
    /// Message of the commit.
    pub message: String,
    /// The files, with the model card and the checksums among them.
    pub files: Vec<PublishedFile>,
    /// Parts of the model card that is made; `None` where the folder has one of its own.
    card: Option<CardText>,
    sums: Checksums,
}

/// Outcome of [`push`].
#[derive(Clone, Debug)]
pub struct Pushed {
    /// Page of the commit, as the hub says it.
    pub commit_url: String,
    /// Identity of the commit.
    pub commit: String,
    /// Files that were sent, and those that the hub had already.
    pub files: Vec<PushedFile>,
    /// Whether the repository has a model card by hand, which was left as it is.
    pub kept_card: bool,
}

/// A file of [`Pushed`].
#[derive(Clone, Debug)]
pub struct PushedFile {
    /// Path in the repository.
    pub name: String,
    /// Length in bytes.
    pub n_bytes: u64,
    /// Bytes that were sent now; the others were there.
    pub sent_bytes: u64,
}

impl Publication {
    /// Reads a file or folder and makes the card and the checksums of it.
    ///
    /// # Errors
    /// The target is none, the path holds no model, or a file of it is damaged.
    pub fn prepare(path: &Path, options: &PublishOptions, progress: &dyn Progress) -> Result<Publication, HubError> {
        let (repo, revision) = parse_target(&options.target)?;
        let mut files = collect::files(path, progress)?;
        // It is made anew.
        files.retain(|file| file.name != SUMS_FILE);
        let facts = facts::read(&files)?;
        let mut sums = Checksums::default();
        files.iter().for_each(|file| sums.set(&file.name, &file.sha256));
        let card = match files.iter().any(|file| file.name == CARD_FILE) {
            true => None,
            false => Some(CardText::new(&repo, &facts, &files, options.table.as_ref())?),
        };
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let message = options.message.clone().unwrap_or_else(|| match *names {
            [name] => format!("Add {name}"),
            _ => format!("Add {} files", names.len()),
        });
        files.extend(card.as_ref().map(|card| PublishedFile::made(CARD_FILE, card.text(&[]))));
        files.push(PublishedFile::made(SUMS_FILE, sums.text()));
        let message = shown(&message, MESSAGE_CHARS_MAX);
        Ok(Publication { repo, revision, is_private: options.is_private, message, files, card, sums })
    }

    /// Replaces card and checksums by ones that keep what the repository says of its other files. Returns whether the
    /// repository has a card by hand, which then is not sent.
    fn merge(&mut self, http: &Http<'_>) -> Result<bool, HubError> {
        let (repo, revision) = (self.repo.clone(), self.revision.clone());
        let there = |file: &str, n_bytes_max| {
            small_text(http, &HubFile { repo: &repo, revision: &revision, file }, n_bytes_max)
        };
        if let Some(text) = there(SUMS_FILE, SUMS_BYTES_MAX)? {
            let mut sums = Checksums::parse(&text);
            sums.extend(&self.sums);
            self.replace(PublishedFile::made(SUMS_FILE, sums.text()));
        }
        let Some(card) = self.card.clone() else { return Ok(false) };
        let Some(old) = there(CARD_FILE, CARD_BYTES_MAX)? else { return Ok(false) };
        match card::rows(&old) {
            Some(rows) => {
                self.replace(PublishedFile::made(CARD_FILE, card.text(&rows)));
                Ok(false)
            }
            None => {
                self.files.retain(|file| file.name != CARD_FILE);
                Ok(true)
            }
        }
    }

    fn replace(&mut self, file: PublishedFile) {
        self.files.retain(|other| other.name != file.name);
        self.files.push(file);
    }
}

/// Sends a publication. What an earlier push of the same files has sent is not sent again: whole files are known to the hub, and
/// parts of large ones are noted in `state_dir`.
///
/// # Errors
/// There is no token, the hub refuses it, or something cannot be sent.
pub fn push(
    mut publication: Publication,
    config: &HubConfig,
    state_dir: &Path,
    progress: &dyn Progress,
) -> Result<Pushed, HubError> {
    let http = Http::new(config, progress)?;
    if !http.has_token() {
        return Err(http.needs_token());
    }
    let (repo, revision) = (publication.repo.clone(), publication.revision.clone());
    let repository = Repository { http: &http, repo: &repo, revision: &revision };
    repository.create(publication.is_private)?;
    let kept_card = publication.merge(&http)?;
    let modes = repository.modes(&publication.files)?;
    let large: Vec<&PublishedFile> =
        publication.files.iter().filter(|file| modes.get(&file.name) == Some(&Mode::Lfs)).collect();
    let sent = Uploads::new(&repository, state_dir).send(&large)?;
    let files = publication.files.iter().filter(|file| modes.get(&file.name) != Some(&Mode::Ignored));
    let commit = repository.commit(&publication.message, files.clone(), &modes)?;
    let pushed = files.map(|file| PushedFile {
        name: file.name.clone(),
        n_bytes: file.n_bytes,
        sent_bytes: sent.get(&file.name).copied().unwrap_or(file.n_bytes),
    });
    Ok(Pushed { files: pushed.collect(), commit_url: commit.url, commit: commit.id, kept_card })
}

/// Reads `hf:owner/name`, perhaps with `@branch`.
fn parse_target(target: &str) -> Result<(String, String), HubError> {
    let parsed = target.strip_prefix("hf:").and_then(|rest| {
        let (owner, name) = rest.split_once('/')?;
        let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
        let is_name = |text: &str| {
            is_plain(text) && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c)) && text.len() <= 96
        };
        (is_name(owner) && is_name(name) && is_plain(revision))
            .then(|| (format!("{owner}/{name}"), revision.to_owned()))
    });
    parsed.ok_or_else(|| {
        HubError::usage(format_args!(
            "'{}' is no repository to publish in; write it as hf:owner/name",
            shown(target, 100)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_repositories() {
        assert_eq!(parse_target("hf:o/r").expect("a target"), ("o/r".to_owned(), "main".to_owned()));
        assert_eq!(parse_target("hf:o/r@dev").expect("a target"), ("o/r".to_owned(), "dev".to_owned()));
        for wrong in ["o/r", "hf:o", "hf:o/", "hf:o/r/f.gguf", "hf:../r", "hf:o/r@", "hf:o/a b"] {
            assert!(parse_target(wrong).is_err(), "{wrong}");
        }
    }
}
