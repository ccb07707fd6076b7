//! The storage of large files: where each is to be sent, by the batch API of Git LFS and the hub's multipart transfer.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::shown;
use crate::http::{HttpError, Payload, Request};
use crate::publish::PublishedFile;
use crate::publish::commit::Repository;

/// The media type of Git LFS.
const LFS_TYPE: &str = "application/vnd.git-lfs+json";
/// Files of one question.
const N_ASKED_AT_ONCE: usize = 100;
/// The most parts of a file.
const N_PARTS_MAX: usize = 10_000;

/// A request that storage wants: an address with headers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Action {
    pub(super) href: String,
    #[serde(default)]
    pub(super) headers: Vec<(String, String)>,
}

/// Way in which a file goes to the storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    /// The storage has it already.
    There,
    /// As one request.
    Whole(Action),
    /// In parts, then a request that joins them.
    Parts { chunk_bytes: u64, urls: Vec<String>, join: Action },
}

/// Answer about one file.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) transfer: Transfer,
    /// Request that tells the hub that the file is there.
    pub(super) verify: Option<Action>,
}

/// Asks where files are to be sent; the answers are in the order of the files.
pub(super) fn plan(repository: &Repository<'_>, files: &[&PublishedFile]) -> Result<Vec<Planned>, HttpError> {
    let mut planned = Vec::with_capacity(files.len());
    for some in files.chunks(N_ASKED_AT_ONCE) {
        let objects: Vec<Value> = some.iter().map(|file| json!({ "oid": file.sha256, "size": file.n_bytes })).collect();
        let body = json!({
            "operation": "upload",
            "transfers": ["basic", "multipart"],
            "objects": objects,
            "hash_algo": "sha256",
            "ref": { "name": repository.revision },
        });
        let answer = post(repository, &format!("{}.git/info/lfs/objects/batch", repository.repo), &body)?;
        let told = answer["objects"].as_array().map(Vec::as_slice).unwrap_or_default();
        for file in some {
            let object = told.iter().find(|object| object["oid"] == *file.sha256);
            let object =
                object.ok_or_else(|| HttpError::new(format!("the hub does not say where {} goes", file.name)))?;
            planned.push(read(object, file)?);
        }
    }
    Ok(planned)
}

fn read(object: &Value, file: &PublishedFile) -> Result<Planned, HttpError> {
    if let Some(said) = object["error"]["message"].as_str() {
        return Err(HttpError::new(format!("the hub does not take {}: {}", file.name, shown(said, 200))));
    }
    let verify = action(&object["actions"]["verify"]);
    let Some(upload) = action(&object["actions"]["upload"]) else {
        return Ok(Planned { transfer: Transfer::There, verify });
    };
    let header = |name: &str| upload.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let transfer = match header("chunk_size") {
        None => Transfer::Whole(upload),
        Some(size) => {
            let strange = || HttpError::new(format!("the hub wants {} in parts that do not fit its size", file.name));
            let chunk_bytes = size.parse().ok().filter(|n: &u64| *n > 0).ok_or_else(strange)?;
            let mut urls: Vec<(u32, String)> =
                upload.headers.iter().filter_map(|(key, url)| Some((key.parse().ok()?, url.clone()))).collect();
            urls.sort();
            let numbers = urls.iter().map(|(no, _)| *no as usize).eq(1..=urls.len());
            let n_parts = file.n_bytes.div_ceil(chunk_bytes);
            if !numbers || urls.len() as u64 != n_parts || urls.len() > N_PARTS_MAX {
                return Err(strange());
            }
            let join = Action { href: upload.href, headers: Vec::new() };
            Transfer::Parts { chunk_bytes, urls: urls.into_iter().map(|(_, url)| url).collect(), join }
        }
    };
    Ok(Planned { transfer, verify })
}

fn action(value: &Value) -> Option<Action> {
    let href = value["href"].as_str()?.to_owned();
    let headers = value["header"].as_object();
    let text = |(key, value): (&String, &Value)| {
        let value = value.as_str().map(str::to_owned).or_else(|| value.as_u64().map(|n| n.to_string()))?;
        Some((key.to_lowercase(), value))
    };
    Some(Action { href, headers: headers.into_iter().flatten().filter_map(text).collect() })
}

/// Sends JSON to an address of the repository.
pub(super) fn post(repository: &Repository<'_>, path: &str, body: &Value) -> Result<Value, HttpError> {
    let url = format!("{}/{path}", repository.http.endpoint);
    post_to(repository, &Action { href: url, headers: Vec::new() }, body)
}

/// Sends JSON to an address that the hub gave.
pub(super) fn post_to(repository: &Repository<'_>, action: &Action, body: &Value) -> Result<Value, HttpError> {
    let mut headers = vec![("accept", LFS_TYPE), ("content-type", LFS_TYPE)];
    headers.extend(action.headers.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let text = body.to_string();
    let payload = Payload::Bytes(text.as_bytes());
    let request = Request { method: "POST", url: &action.href, headers: &headers, payload };
    let response = repository.http.send(&request)?;
    // The storage may answer with nothing.
    Ok(repository.http.json(response).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(n_bytes: u64) -> PublishedFile {
        PublishedFile { name: "m.gguf".to_owned(), path: None, text: None, n_bytes, sha256: "ab".to_owned() }
    }

    fn multipart(header: Value) -> Value {
        json!({ "oid": "ab", "actions": { "upload": { "href": "http://s/join", "header": header } } })
    }

    #[test]
    fn parts_fit_the_size() {
        let header = json!({ "chunk_size": "10", "00002": "http://s/2", "1": "http://s/1" });
        let planned = read(&multipart(header.clone()), &file(20)).expect("two parts");
        let Transfer::Parts { chunk_bytes: 10, urls, .. } = planned.transfer else { panic!("{planned:?}") };
        assert_eq!(urls, ["http://s/1", "http://s/2"]);
        for n_bytes in [10, 21] {
            assert!(read(&multipart(header.clone()), &file(n_bytes)).is_err());
        }
        assert!(read(&multipart(json!({ "chunk_size": "0", "1": "u" })), &file(20)).is_err());
        assert!(read(&multipart(json!({ "chunk_size": "10", "1": "u", "3": "u" })), &file(20)).is_err());
    }

    #[test]
    fn files_that_are_there_are_not_sent() {
        let planned = read(&json!({ "oid": "ab" }), &file(1)).expect("an answer");
        assert_eq!(planned.transfer, Transfer::There);
        let refused = json!({ "oid": "ab", "error": { "code": 422, "message": "too\nlarge" } });
        assert_eq!(read(&refused, &file(1)).expect_err("refused").line, "the hub does not take m.gguf: too large");
    }
}
