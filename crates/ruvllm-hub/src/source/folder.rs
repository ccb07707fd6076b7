//! Folders of safetensors on the hub: the files that a converter needs, all of one commit.

use std::path::PathBuf;

use serde_json::Value;

use crate::digest::Expected;
use crate::download::HubFile;
use crate::error::{HubError, HubErrorKind};
use crate::http::{NOT_FOUND, Payload, Request, escaped};
use crate::source::hub::Hub;
use crate::source::{FetchContext, FolderOrder, OFFLINE, WantedFile, check_wanted, expanded};

/// The most files of a repository that are looked at.
const N_LISTED_MAX: usize = 10_000;

/// Brings the files of a folder on the hub that are converted to this machine, and returns where they lie.
///
/// # Errors
/// One line: no network, no such repository, or a file that it lacks.
pub fn fetch_folder(
    from: &HubFile<'_>,
    order: &FolderOrder<'_>,
    context: &FetchContext<'_>,
) -> Result<PathBuf, HubError> {
    let fetched = Hub::new(from, context).and_then(|hub| hub.folder(from, order));
    fetched.map_err(|line| HubError::new(HubErrorKind::Remote, format_args!("hf:{}/{}: {line}", from.repo, from.file)))
}

/// A folder whose first file has arrived.
struct Begun {
    folder: PathBuf,
    commit: String,
    /// Files of the repository, below the folder; none: the hub was not asked, or did not say.
    listed: Option<Vec<String>>,
}

impl Hub<'_> {
    /// Brings the files of a folder that are converted into the cache folder, and returns where they lie there. What an earlier call
    /// brought is not asked for again.
    pub(super) fn folder(&self, from: &HubFile<'_>, order: &FolderOrder<'_>) -> Result<PathBuf, String> {
        let mut wanted = self.context.converter.wanted(None, order)?;
        if wanted.is_empty() {
            return Err("nothing of it is converted".to_owned());
        }
        // The first file says of which commit all others are.
        let first = wanted.remove(0);
        let begun = self.begin(from, &first).map_err(|reason| self.failed(from, &first.name, &reason))?;
        let mut seen = vec![first.name];
        loop {
            for wanted in expanded(wanted, begun.listed.as_deref().unwrap_or_default()) {
                if seen.contains(&wanted.name) {
                    continue;
                }
                check_wanted(&wanted, seen.len())?;
                match self.go_on(&begun, from, &wanted.name) {
                    Err(reason) if wanted.is_required || reason != NOT_FOUND && reason != OFFLINE => {
                        return Err(self.failed(from, &wanted.name, &reason));
                    }
                    _ => seen.push(wanted.name),
                }
            }
            wanted = self.context.converter.wanted(Some(&begun.folder), order)?;
            wanted.retain(|wanted| !seen.contains(&wanted.name) && !wanted.name.contains('*'));
            if wanted.is_empty() {
                return Ok(begun.folder);
            }
            let missing = wanted.iter().find(|wanted| wanted.is_required && !self.may_have(&begun, from, &wanted.name));
            if let Some(missing) = missing {
                return Err(self.failed(from, &missing.name, NOT_FOUND));
            }
            self.context.converter.check(&begun.folder, order)?;
        }
    }

    /// Brings the first file.
    fn begin(&self, from: &HubFile<'_>, first: &WantedFile) -> Result<Begun, String> {
        check_wanted(first, 0)?;
        let (name, file) = (&first.name, format!("{}{}", from.file, first.name));
        let path = self.file(&HubFile { file: &file, ..*from }, &Expected::default())?.path;
        let up = |n: usize| path.ancestors().nth(n).map(PathBuf::from);
        let commit = up(file.split('/').count()).and_then(|root| Some(root.file_name()?.to_str()?.to_owned()));
        let (Some(folder), Some(commit)) = (up(name.split('/').count()), commit) else {
            return Err("the hub's cache folder is none".to_owned());
        };
        let listed = self.list(&HubFile { revision: &commit, ..*from });
        Ok(Begun { folder, commit, listed })
    }

    /// Brings another file of the same commit.
    fn go_on(&self, begun: &Begun, from: &HubFile<'_>, name: &str) -> Result<(), String> {
        let file = format!("{}{name}", from.file);
        if !self.may_have(begun, from, name) {
            return Err(NOT_FOUND.to_owned());
        }
        let file = &HubFile { file: &file, ..*from };
        let path = self.file_of(&begun.commit, file)?;
        match path.starts_with(&begun.folder) {
            true => Ok(()),
            false => Err("the repository changed while it was downloaded; pull it again".to_owned()),
        }
    }

    /// Returns whether there is a file in the folder, as far as it is known.
    fn may_have(&self, begun: &Begun, from: &HubFile<'_>, name: &str) -> bool {
        let is_listed = begun.listed.as_ref().is_none_or(|listed| listed.iter().any(|one| one == name));
        is_listed || self.has(&begun.commit, &format!("{}{name}", from.file))
    }

    /// Lists the files below a folder of a commit; `None` where the hub is not asked or does not say.
    fn list(&self, from: &HubFile<'_>) -> Option<Vec<String>> {
        if self.context.is_offline {
            return None;
        }
        let (repo, revision) = (escaped(from.repo), from.escaped_revision());
        let url = format!("{}/api/models/{repo}/revision/{revision}", self.http.endpoint);
        let answer = self.http.send(&Request { method: "GET", url: &url, headers: &[], payload: Payload::None });
        let told = self.http.json(answer.ok()?).ok()?;
        let name = |file: &Value| file["rfilename"].as_str()?.strip_prefix(from.file).map(str::to_owned);
        Some(told["siblings"].as_array()?.iter().take(N_LISTED_MAX).filter_map(name).collect())
    }

    /// Says why a file did not arrive; of one that is not there, what the repository has in its place.
    fn failed(&self, from: &HubFile<'_>, name: &str, reason: &str) -> String {
        let (repo, folder) = (from.repo, from.file);
        let listed = if reason == NOT_FOUND { self.list(from) } else { None }.unwrap_or_default();
        let ends_with = |ends: &[&str]| listed.iter().find(|name| ends.iter().any(|end| name.ends_with(end)));
        match (ends_with(&[".gguf"]), ends_with(&[".bin", ".pt", ".pth"])) {
            (Some(gguf), _) => {
                let gguf = crate::error::shown(gguf, 100);
                format!("it has no {folder}{name}, but GGUF files; name one, such as hf:{repo}/{folder}{gguf}")
            }
            (None, Some(_)) if name.ends_with(".safetensors") => {
                "it has no safetensors, only pickled weights, which are not read".to_owned()
            }
            _ => format!("{folder}{name}: {reason}"),
        }
    }
}
