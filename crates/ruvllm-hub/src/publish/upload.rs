//! Sending large files to the hub's storage, and what is kept of an upload that was cut off.
//!
//! The parts of a file that have arrived are noted in a file of this machine, with the addresses of the others. Those addresses
//! are signed, so the file is for its owner alone, and goes when the upload ends.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::digest::sha256;
use crate::error::{HubError, HubErrorKind, io_reason};
use crate::figures::unix_s;
use crate::http::{FilePart, HttpError, Payload, Request, header};
use crate::publish::PublishedFile;
use crate::publish::commit::Repository;
use crate::publish::lfs::{self, Action, Planned, Transfer};

/// How long an upload can be taken up again; the addresses of the storage end later than that.
const STATE_SECONDS_MAX: u64 = 12 * 3600;
/// The most bytes of a noted upload.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// An upload in parts, as it is noted.
#[derive(Serialize, Deserialize)]
struct UploadState {
    n_bytes: u64,
    chunk_bytes: u64,
    join: Action,
    verify: Option<Action>,
    parts: Vec<PartState>,
    begun_unix_s: u64,
}

#[derive(Serialize, Deserialize)]
struct PartState {
    url: String,
    /// Tag that the storage gave, once the part is there.
    etag: Option<String>,
}

/// Uploads into a repository.
pub(super) struct Uploads<'a> {
    repository: &'a Repository<'a>,
    state_dir: &'a Path,
}

impl<'a> Uploads<'a> {
    pub(super) fn new(repository: &'a Repository<'a>, state_dir: &'a Path) -> Uploads<'a> {
        Uploads { repository, state_dir }
    }

    /// Sends files, and returns how many bytes of each were sent: those that are there already are not.
    pub(super) fn send(&self, files: &[&PublishedFile]) -> Result<HashMap<String, u64>, HubError> {
        let planned = lfs::plan(self.repository, files)?;
        let mut sent = HashMap::new();
        for (file, planned) in files.iter().zip(planned) {
            let n_bytes = self.one(file, planned).map_err(|error| {
                let line = format_args!("cannot send {}: {}; push again to go on", file.name, error.line);
                HubError::new(HubErrorKind::Remote, line)
            })?;
            sent.insert(file.name.clone(), n_bytes);
        }
        Ok(sent)
    }

    fn one(&self, file: &PublishedFile, planned: Planned) -> Result<u64, HttpError> {
        let (n_bytes, verify) = match planned.transfer {
            Transfer::There => (0, None),
            Transfer::Whole(action) => (self.whole(file, &action)?, planned.verify),
            Transfer::Parts { chunk_bytes, urls, join } => {
                let parts = urls.into_iter().map(|url| PartState { url, etag: None }).collect();
                let (n_bytes, verify) = (file.n_bytes, planned.verify);
                let fresh = UploadState { n_bytes, chunk_bytes, join, verify, parts, begun_unix_s: unix_s() };
                self.in_parts(file, fresh)?
            }
        };
        if let Some(verify) = verify {
            lfs::post_to(self.repository, &verify, &json!({ "oid": file.sha256, "size": file.n_bytes }))?;
        }
        Ok(n_bytes)
    }

    fn whole(&self, file: &PublishedFile, action: &Action) -> Result<u64, HttpError> {
        let http = self.repository.http;
        let task = http.progress.begin(&format!("sending {}", file.name), Some(file.n_bytes));
        let headers: Vec<(&str, &str)> =
            action.headers.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let payload = match (&file.path, &file.text) {
            (Some(path), _) => Payload::File(FilePart { path, start: 0, n_bytes: file.n_bytes, task: &*task }),
            (None, text) => Payload::Bytes(text.as_deref().unwrap_or_default().as_bytes()),
        };
        http.send(&Request { method: "PUT", url: &action.href, headers: &headers, payload })?;
        Ok(file.n_bytes)
    }

    /// Sends the parts that are not there yet, and joins them. An upload that was noted goes on; if the storage knows nothing of
    /// it any more, the fresh one takes its place.
    fn in_parts(&self, file: &PublishedFile, fresh: UploadState) -> Result<(u64, Option<Action>), HttpError> {
        if let Some(noted) = self.noted(file, &fresh) {
            match self.parts(file, noted) {
                Err(error) if matches!(error.status, Some(400 | 401 | 403 | 404 | 410)) => {}
                done => return done,
            }
        }
        self.parts(file, fresh)
    }

    fn parts(&self, file: &PublishedFile, mut state: UploadState) -> Result<(u64, Option<Action>), HttpError> {
        let http = self.repository.http;
        let path = file.path.as_deref().ok_or_else(|| HttpError::new("a file that is made has no parts"))?;
        let task = http.progress.begin(&format!("sending {}", file.name), Some(file.n_bytes));
        let mut n_sent = 0;
        self.note(file, &state)?;
        for i in 0..state.parts.len() {
            if state.parts[i].etag.is_some() {
                continue;
            }
            let start = i as u64 * state.chunk_bytes;
            let n_bytes = state.chunk_bytes.min(file.n_bytes - start);
            let payload = Payload::File(FilePart { path, start, n_bytes, task: &*task });
            let response = http.send(&Request { method: "PUT", url: &state.parts[i].url, headers: &[], payload })?;
            let etag = header(response.headers(), "etag");
            let etag = etag.ok_or_else(|| HttpError::new("the hub's storage gives no tag for a part"))?;
            state.parts[i].etag = Some(etag.to_owned());
            n_sent += n_bytes;
            self.note(file, &state)?;
        }
        let parts = (1..).zip(&state.parts).map(|(no, part)| json!({ "partNumber": no, "etag": part.etag }));
        let body = json!({ "oid": file.sha256, "parts": parts.collect::<Vec<_>>() });
        let joined = lfs::post_to(self.repository, &state.join, &body);
        if joined.as_ref().err().is_none_or(|error| !error.is_transient()) {
            let _ = fs::remove_file(self.state_path(file));
        }
        joined.map(|_| (n_sent, state.verify))
    }

    /// Returns where an upload is noted. The name tells nothing about the repository.
    fn state_path(&self, file: &PublishedFile) -> PathBuf {
        let Repository { http, repo, revision } = self.repository;
        let key = sha256(format!("{}\n{repo}\n{revision}\n{}", http.endpoint, file.sha256).as_bytes());
        self.state_dir.join(format!("{}.json", &key[..32]))
    }

    /// Returns the noted upload of a file, if it can be taken up again.
    fn noted(&self, file: &PublishedFile, fresh: &UploadState) -> Option<UploadState> {
        let path = self.state_path(file);
        if fs::metadata(&path).ok()?.len() > STATE_BYTES_MAX {
            return None;
        }
        let state: UploadState = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        let is_same = state.n_bytes == fresh.n_bytes
            && state.chunk_bytes > 0
            && state.parts.len() as u64 == state.n_bytes.div_ceil(state.chunk_bytes)
            && state.parts.iter().any(|part| part.etag.is_some())
            && unix_s().saturating_sub(state.begun_unix_s) < STATE_SECONDS_MAX;
        is_same.then_some(state)
    }

    fn note(&self, file: &PublishedFile, state: &UploadState) -> Result<(), HttpError> {
        let write = || -> io::Result<()> {
            fs::create_dir_all(self.state_dir)?;
            // A temporary file is for its owner alone.
            let mut part = tempfile::NamedTempFile::new_in(self.state_dir)?;
            part.write_all(&serde_json::to_vec(state)?)?;
            part.persist(self.state_path(file)).map(drop).map_err(|error| error.error)
        };
        write().map_err(|error| {
            HttpError::new(format!("cannot write into {}: {}", self.state_dir.display(), io_reason(&error)))
        })
    }
}
