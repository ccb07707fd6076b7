//! Downloads of files of the hub: with resume, and never a mixture of two versions.
//!
//! The hub says a file's tag with every answer: its SHA-256 where the file is large. What was received lies under the tag, so
//! bytes of another version, should the file be replaced meanwhile, begin a download of their own.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::Body;
use ureq::http::Response;

use crate::cache::{RepoCache, plain_etag};
use crate::checksums::is_sha256;
use crate::digest::{Digested, digest_file};
use crate::error::io_reason;
use crate::http::{Http, HttpError, Payload, Request, escaped, header};

/// The most redirections within the hub.
const N_REDIRECTS_MAX: usize = 5;
/// The most connections of one download.
const N_CONNECTIONS_MAX: u32 = 100;
/// The most connections in a row that bring nothing.
const N_EMPTY_MAX: u32 = 5;
/// The most times that a file may be replaced while it is downloaded.
const N_CHANGES_MAX: u32 = 3;

/// A file of a repository of the hub.
#[derive(Clone, Copy, Debug)]
pub struct HubFile<'a> {
    /// Owner and name of the repository.
    pub repo: &'a str,
    /// Branch, tag or commit.
    pub revision: &'a str,
    /// Path in the repository; a folder ends with '/'.
    pub file: &'a str,
}

impl HubFile<'_> {
    pub(crate) fn url(&self, endpoint: &str) -> String {
        let revision = self.escaped_revision();
        format!("{endpoint}/{}/resolve/{revision}/{}", escaped(self.repo), escaped(self.file))
    }

    /// Returns the revision as one part of an address.
    pub(crate) fn escaped_revision(&self) -> String {
        escaped(self.revision).replace('/', "%2F")
    }
}

/// Facts that the hub tells of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileFacts {
    /// The SHA-256 of large files; another hash of small ones.
    pub(crate) etag: String,
    pub(crate) commit: String,
    pub(crate) n_bytes: u64,
}

impl FileFacts {
    /// Returns the SHA-256 of the file, where the hub tells it.
    pub(crate) fn sha256(&self) -> Option<&str> {
        Some(self.etag.as_str()).filter(|etag| is_sha256(etag))
    }
}

/// An answer with bytes of a file.
pub(crate) struct FileAnswer {
    pub(crate) facts: FileFacts,
    /// First byte of the file that the body has.
    pub(crate) start: u64,
    pub(crate) response: Response<Body>,
}

/// Range of bytes: the first, and the last if there is an end.
pub(crate) type ByteRange = (u64, Option<u64>);

/// Asks for a range of a file. The token goes to the hub alone; its storage is given by a signed address.
///
/// # Errors
/// The hub's, or an answer that does not fit the request.
pub(crate) fn ask(http: &Http<'_>, url: &str, range: ByteRange) -> Result<FileAnswer, HttpError> {
    let text = format!("bytes={}-{}", range.0, range.1.map_or_else(String::new, |last| last.to_string()));
    let headers = [("range", text.as_str())];
    let mut next = url.to_owned();
    let mut told: Option<(String, String)> = None;
    let mut linked_bytes = None;
    for _ in 0..=N_REDIRECTS_MAX {
        let request = Request { method: "GET", url: &next, headers: &headers, payload: Payload::None };
        let response = http.send(&request)?;
        // The hub itself says which version it is; its storage has tags of its own.
        if told.is_none() && http.is_hub(&next) {
            told = version(&response);
        }
        linked_bytes = linked_bytes.or_else(|| header(response.headers(), "x-linked-size")?.parse::<u64>().ok());
        if response.status().is_redirection() {
            next = redirected(&next, &response)?;
            continue;
        }
        let Some((etag, commit)) = told else {
            return Err(HttpError::new("the hub does not say which version of the file it has (no ETag or no commit)"));
        };
        let (start, total) = span(&response, range, linked_bytes)?;
        return Ok(FileAnswer { facts: FileFacts { etag, commit, n_bytes: total }, start, response });
    }
    Err(HttpError::new(format!("the hub redirects more than {N_REDIRECTS_MAX} times")))
}

/// Returns tag and commit of an answer, where it has both.
fn version(response: &Response<Body>) -> Option<(String, String)> {
    let headers = response.headers();
    let etag = header(headers, "x-linked-etag").or_else(|| header(headers, "etag"))?;
    let commit = header(headers, "x-repo-commit")?;
    Some((plain_etag(etag)?, plain_etag(commit)?))
}

/// Returns where an answer leads: an address, or a path at the same host.
fn redirected(url: &str, response: &Response<Body>) -> Result<String, HttpError> {
    let to = header(response.headers(), "location").unwrap_or_default();
    if to.starts_with("https://") || to.starts_with("http://") && url.starts_with("http://") {
        return Ok(to.to_owned());
    }
    let root = url.split('/').take(3).collect::<Vec<_>>().join("/");
    match to.starts_with('/') && !to.starts_with("//") {
        true => Ok(format!("{root}{to}")),
        false => Err(HttpError::new("the hub redirects to an address that is none")),
    }
}

/// Returns the first byte of an answer, and how many the file has.
fn span(response: &Response<Body>, range: ByteRange, linked: Option<u64>) -> Result<(u64, u64), HttpError> {
    if response.status().as_u16() != 206 {
        // The whole file, whatever was asked for.
        let n_bytes = header(response.headers(), "content-length").and_then(|n| n.parse().ok()).or(linked);
        return n_bytes.map(|n| (0, n)).ok_or_else(|| HttpError::new("the hub does not say how long the file is"));
    }
    let text = header(response.headers(), "content-range").unwrap_or_default();
    let parsed = text.trim().strip_prefix("bytes ").and_then(|text| {
        let (span, total) = text.split_once('/')?;
        Some((span.split_once('-')?.0.trim().parse::<u64>().ok()?, total.trim().parse::<u64>().ok()?))
    });
    match parsed {
        Some((start, total)) if start == range.0 => Ok((start, total)),
        _ => Err(HttpError::new(format!(
            "the hub answers with a range that was not asked for ('{}')",
            crate::error::shown(text, 60)
        ))),
    }
}

/// Asks what a file is, without its content.
pub(crate) fn facts(http: &Http<'_>, url: &str) -> Result<FileFacts, HttpError> {
    ask(http, url, (0, Some(0))).map(|answer| answer.facts)
}

/// A file that was downloaded.
pub(crate) struct Downloaded {
    pub(crate) path: PathBuf,
    pub(crate) digest: Digested,
}

/// Downloads a file into the cache folder, where it begins as `facts` say, and checks it against the hub's SHA-256.
///
/// # Errors
/// One line: the hub's, or what is wrong with the file.
pub(crate) fn download(
    http: &Http<'_>,
    cache: &RepoCache,
    from: &HubFile<'_>,
    mut facts: FileFacts,
    check: &dyn Fn(&FileFacts) -> Result<(), String>,
) -> Result<Downloaded, String> {
    let url = from.url(http.endpoint);
    for _ in 0..=N_CHANGES_MAX {
        check(&facts)?;
        let _lock = cache.lock(&facts.etag, http.progress)?;
        let blob = cache.blob(&facts.etag);
        // Another download may have brought it meanwhile.
        if let Some(digest) = kept(http, &blob, &facts)? {
            return linked(cache, from, &facts).map(|path| Downloaded { path, digest });
        }
        let part = cache.part(&facts.etag);
        match receive(http, &url, &facts, &part)? {
            Received::Whole => {}
            Received::Changed(other) => {
                http.progress.note("the file was replaced on the hub; downloading the new one");
                facts = other;
                continue;
            }
        }
        let digest = digested(http, &part)?;
        if let Some(sha256) = facts.sha256().filter(|sha256| **sha256 != digest.sha256) {
            let _ = fs::remove_file(&part);
            let arrived = &digest.sha256;
            return Err(format!("the file arrived with sha256 {arrived}, and the hub says {sha256}; pull it again"));
        }
        fs::rename(&part, &blob).map_err(|e| format!("cannot write {}: {}", blob.display(), io_reason(&e)))?;
        return linked(cache, from, &facts).map(|path| Downloaded { path, digest });
    }
    Err(format!("the file was replaced on the hub {N_CHANGES_MAX} times while it was downloaded; pull it later"))
}

/// Returns the digest of content that is in the cache folder already. Content with another SHA-256 than the hub's goes.
fn kept(http: &Http<'_>, blob: &Path, facts: &FileFacts) -> Result<Option<Digested>, String> {
    if !blob.is_file() {
        return Ok(None);
    }
    let digest = digested(http, blob)?;
    if facts.sha256().is_none_or(|sha256| sha256 == digest.sha256) {
        return Ok(Some(digest));
    }
    http.progress.note("the file in the hub's cache folder is damaged; downloading it again");
    fs::remove_file(blob).map_err(|e| format!("cannot remove {}: {}", blob.display(), io_reason(&e)))?;
    Ok(None)
}

fn digested(http: &Http<'_>, path: &Path) -> Result<Digested, String> {
    digest_file(path, http.progress).map_err(|e| format!("cannot read {}: {}", path.display(), io_reason(&e)))
}

fn linked(cache: &RepoCache, from: &HubFile<'_>, facts: &FileFacts) -> Result<PathBuf, String> {
    let path = cache.link(&facts.commit, from.file, &facts.etag);
    path.map_err(|e| format!("cannot write {} in the hub's cache folder: {}", from.file, io_reason(&e)))
}

/// Outcome of a download.
enum Received {
    /// The part is the whole file.
    Whole,
    /// The hub has another file by now.
    Changed(FileFacts),
}

/// Fills the part, from where it is, until it is as long as the file.
fn receive(http: &Http<'_>, url: &str, facts: &FileFacts, part: &Path) -> Result<Received, String> {
    let io = |error: io::Error| format!("cannot write {}: {}", part.display(), io_reason(&error));
    let mut file = OpenOptions::new().create(true).append(true).open(part).map_err(io)?;
    let mut have = file.metadata().map_err(io)?.len();
    if have > facts.n_bytes {
        file.set_len(0).map_err(io)?;
        have = 0;
    }
    let task = http.progress.begin("downloading", Some(facts.n_bytes));
    let (mut n_empty, mut wait) = (0, Duration::from_millis(250));
    for _ in 0..N_CONNECTIONS_MAX {
        if have == facts.n_bytes {
            file.sync_all().map_err(io)?;
            return Ok(Received::Whole);
        }
        if http.progress.is_cancelled() {
            return Err(format!("the download was ended at byte {have} of {}; pull again to go on", facts.n_bytes));
        }
        let answer = match ask(http, url, (have, None)) {
            Ok(answer) => answer,
            // There is no such range: the file is shorter by now.
            Err(error) if error.status == Some(416) => {
                file.set_len(0).map_err(io)?;
                return Ok(Received::Changed(self::facts(http, url)?));
            }
            Err(error) => return Err(error.line),
        };
        if answer.facts.etag != facts.etag || answer.facts.n_bytes != facts.n_bytes {
            return Ok(Received::Changed(answer.facts));
        }
        if answer.start != have {
            file.set_len(0).map_err(io)?;
            have = 0;
        }
        task.set(have);
        let before = have;
        let broken = copy(answer.response, facts.n_bytes - have, &mut file, &mut |n| {
            have += n;
            task.add(n);
            if http.progress.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .map_err(io)?;
        if have > before {
            (n_empty, wait) = (0, Duration::from_millis(250));
            continue;
        }
        n_empty += 1;
        if n_empty >= N_EMPTY_MAX {
            let why = broken.map_or_else(|| "it ends too early".to_owned(), |error| io_reason(&error));
            return Err(http.hide(&format!(
                "the download broke off at byte {have} of {}: {why}; pull again to go on",
                facts.n_bytes
            )));
        }
        std::thread::sleep(wait);
        wait *= 2;
    }
    Err(format!("the download broke off {N_CONNECTIONS_MAX} times; pull again to go on"))
}

/// Copies at most `n_max` bytes of an answer, until `on_bytes` breaks it off, and returns what else ended it before that.
///
/// # Errors
/// The file cannot be written.
fn copy(
    response: Response<Body>,
    n_max: u64,
    file: &mut File,
    on_bytes: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> io::Result<Option<io::Error>> {
    let mut reader = response.into_body().into_reader().take(n_max);
    let mut buffer = vec![0u8; 1 << 18];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(n) => {
                file.write_all(&buffer[..n])?;
                if on_bytes(n as u64).is_break() {
                    return Ok(None);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Some(error)),
        }
    }
}

/// Returns a small text file of a repository, or `None` if there is none.
pub(crate) fn small_text(http: &Http<'_>, from: &HubFile<'_>, n_bytes_max: u64) -> Result<Option<String>, HttpError> {
    let mut next = from.url(http.endpoint);
    for _ in 0..=N_REDIRECTS_MAX {
        let request = Request { method: "GET", url: &next, headers: &[], payload: Payload::None };
        let response = match http.send(&request) {
            Ok(response) => response,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        if response.status().is_redirection() {
            next = redirected(&next, &response)?;
            continue;
        }
        let mut text = Vec::new();
        let mut reader = response.into_body().into_reader().take(n_bytes_max + 1);
        reader.read_to_end(&mut text).map_err(|e| HttpError::new(format!("{}: {}", from.file, io_reason(&e))))?;
        if text.len() as u64 > n_bytes_max {
            return Err(HttpError::new(format!("{} of the repository has more than {n_bytes_max} bytes", from.file)));
        }
        let text = String::from_utf8(text);
        return text.map(Some).map_err(|_| HttpError::new(format!("{} of the repository is no text", from.file)));
    }
    Err(HttpError::new(format!("the hub redirects more than {N_REDIRECTS_MAX} times")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_revisions_as_one_part() {
        let file = HubFile { repo: "o/r", revision: "refs/pr/1", file: "d/m x.gguf" };
        assert_eq!(file.url("http://h"), "http://h/o/r/resolve/refs%2Fpr%2F1/d/m%20x.gguf");
    }
}
