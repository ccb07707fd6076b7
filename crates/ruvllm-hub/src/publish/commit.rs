//! The hub's API of repositories: making one, asking how files are sent, and the commit.

use std::collections::HashMap;
use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::error::{HubError, HubErrorKind, shown};
use crate::http::{Http, HttpError, Payload, Request, escaped};
use crate::publish::PublishedFile;

/// Bytes of a file's beginning that the hub sees before it says how the file is sent.
const SAMPLE_BYTES: usize = 512;
/// Files of one question.
const N_ASKED_AT_ONCE: usize = 256;
/// The most bytes of a file that is sent within the commit.
const REGULAR_BYTES_MAX: u64 = 16 << 20;

/// Way in which a file is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// To the hub's storage, before the commit.
    Lfs,
    /// Within the commit.
    Regular,
    /// Not at all: the repository says so.
    Ignored,
}

/// A repository at a branch.
pub(super) struct Repository<'a> {
    pub(super) http: &'a Http<'a>,
    pub(super) repo: &'a str,
    pub(super) revision: &'a str,
}

/// A commit that was made.
pub(super) struct Commit {
    pub(super) id: String,
    pub(super) url: String,
}

impl Repository<'_> {
    /// Makes the repository, unless it is there.
    pub(super) fn create(&self, is_private: bool) -> Result<(), HubError> {
        let (owner, name) = self.repo.split_once('/').unwrap_or(("", self.repo));
        let body = json!({ "type": "model", "name": name, "organization": owner, "private": is_private });
        match self.post("api/repos/create", &body) {
            Ok(_) => Ok(()),
            Err(error) if error.status == Some(409) => Ok(()),
            // A token that may write into the repository need not be one that may make it.
            Err(error) if error.status == Some(403) && self.is_there() => Ok(()),
            Err(error) => Err(HubError::new(
                HubErrorKind::Remote,
                format_args!("cannot make the repository {}: {}", self.repo, error.line),
            )),
        }
    }

    fn is_there(&self) -> bool {
        let url = format!("{}/api/models/{}", self.http.endpoint, escaped(self.repo));
        self.http.send(&Request { method: "GET", url: &url, headers: &[], payload: Payload::None }).is_ok()
    }

    /// Asks how each file is to be sent.
    pub(super) fn modes(&self, files: &[PublishedFile]) -> Result<HashMap<String, Mode>, HubError> {
        let mut modes = HashMap::new();
        for some in files.chunks(N_ASKED_AT_ONCE) {
            let asked: Vec<Value> = some.iter().map(asked).collect::<Result<_, _>>()?;
            let path = format!("api/models/{}/preupload/{}", escaped(self.repo), self.branch());
            let answer = self.post(&path, &json!({ "files": asked }))?;
            for told in answer["files"].as_array().into_iter().flatten() {
                let mode = match told["uploadMode"].as_str() {
                    _ if told["shouldIgnore"] == true => Mode::Ignored,
                    Some("lfs") => Mode::Lfs,
                    Some("regular") => Mode::Regular,
                    _ => continue,
                };
                modes.insert(told["path"].as_str().unwrap_or_default().to_owned(), mode);
            }
        }
        match files.iter().find(|file| !modes.contains_key(&file.name)) {
            None => Ok(modes),
            Some(file) => {
                let line = format_args!("the hub does not say how {} is to be sent; it has another API", file.name);
                Err(HubError::new(HubErrorKind::Remote, line))
            }
        }
    }

    /// Makes a commit of files, of which large ones are in the storage already.
    pub(super) fn commit<'f>(
        &self,
        message: &str,
        files: impl Iterator<Item = &'f PublishedFile>,
        modes: &HashMap<String, Mode>,
    ) -> Result<Commit, HubError> {
        let (summary, rest) = message.split_once('\n').unwrap_or((message, ""));
        let mut body = json!({ "key": "header", "value": { "summary": summary, "description": rest } }).to_string();
        for file in files {
            let line = match modes.get(&file.name) {
                Some(Mode::Lfs) => {
                    let value =
                        json!({ "path": file.name, "algo": "sha256", "oid": file.sha256, "size": file.n_bytes });
                    json!({ "key": "lfsFile", "value": value })
                }
                _ => {
                    let content = BASE64.encode(content(file)?);
                    json!({ "key": "file", "value": { "content": content, "path": file.name, "encoding": "base64" } })
                }
            };
            body.push('\n');
            body.push_str(&line.to_string());
        }
        body.push('\n');
        let path = format!("{}/api/models/{}/commit/{}", self.http.endpoint, escaped(self.repo), self.branch());
        let headers = [("content-type", "application/x-ndjson")];
        let request =
            Request { method: "POST", url: &path, headers: &headers, payload: Payload::Bytes(body.as_bytes()) };
        let answer = self.http.send(&request).and_then(|response| self.http.json(response))?;
        let text = |key: &str| shown(answer[key].as_str().unwrap_or_default(), 300);
        let url = match text("commitUrl") {
            url if url.is_empty() => format!("{}/{}", self.http.endpoint, self.repo),
            url => self.http.hide(&url),
        };
        Ok(Commit { id: text("commitOid"), url })
    }

    fn branch(&self) -> String {
        escaped(self.revision).replace('/', "%2F")
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, HttpError> {
        let url = format!("{}/{path}", self.http.endpoint);
        let headers = [("content-type", "application/json")];
        let text = body.to_string();
        let request =
            Request { method: "POST", url: &url, headers: &headers, payload: Payload::Bytes(text.as_bytes()) };
        self.http.send(&request).and_then(|response| self.http.json(response))
    }
}

fn asked(file: &PublishedFile) -> Result<Value, HubError> {
    let sample = match &file.path {
        None => content(file)?,
        Some(path) => {
            use std::io::Read as _;
            let mut sample = Vec::new();
            let read = fs::File::open(path).and_then(|file| file.take(SAMPLE_BYTES as u64).read_to_end(&mut sample));
            read.map_err(|error| HubError::io("read", path, &error))?;
            sample
        }
    };
    let sample = BASE64.encode(&sample[..sample.len().min(SAMPLE_BYTES)]);
    Ok(json!({ "path": file.name, "sample": sample, "size": file.n_bytes }))
}

/// Returns the content of a small file.
fn content(file: &PublishedFile) -> Result<Vec<u8>, HubError> {
    if let Some(text) = &file.text {
        return Ok(text.clone().into_bytes());
    }
    if file.n_bytes > REGULAR_BYTES_MAX {
        let line =
            format_args!("the hub wants {} ({} bytes) within the commit, which is too much", file.name, file.n_bytes);
        return Err(HubError::new(HubErrorKind::Remote, line));
    }
    let path = file.path.as_deref().unwrap_or(std::path::Path::new(&file.name));
    fs::read(path).map_err(|error| HubError::io("read", path, &error))
}
