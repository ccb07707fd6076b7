//! A hub that lives on this machine: repositories, large files in a storage at another address, uploads in parts, and faults on
//! request.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use serde_json::{Value, json};

/// Files from this size on go to the storage.
pub const LARGE: usize = 1000;
/// Size of the parts that the storage asks for.
pub const PART: usize = 40_000;
/// Signature in the addresses of the storage, which is a secret.
pub const SIGNATURE: &str = "sig-of-storage";

/// A request that arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Method and path.
    pub line: String,
    /// Headers, names in small letters.
    pub headers: HashMap<String, String>,
    /// Whether the storage got it.
    pub at_storage: bool,
}

/// An answer that breaks off.
pub struct Cut {
    /// Bytes that are sent before it.
    pub after: usize,
    /// A file that is replaced then: repository, path and content.
    pub then: Option<(String, String, Vec<u8>)>,
}

/// State of the hub.
#[derive(Default)]
pub struct State {
    /// Files by repository and path.
    pub repos: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Content by SHA-256.
    pub storage: HashMap<String, Vec<u8>>,
    /// Parts that arrived, by the upload.
    pub parts: HashMap<String, BTreeMap<usize, Vec<u8>>>,
    pub seen: Vec<Seen>,
    /// Downloads from the storage that break off, in order.
    pub cuts: VecDeque<Cut>,
    /// Uploads of parts that break off, by the number of those that arrive before.
    pub cut_upload_after: Option<usize>,
    /// Answers instead of the real ones, in order: part of the path, status line, headers.
    pub faults: VecDeque<(String, String, String)>,
    /// Token that is asked for, also for reading.
    pub token: Option<String>,
    /// Bytes of the storage are others than the hub says.
    pub is_damaged: bool,
    /// Files are not listed.
    pub is_mute: bool,
    /// The last commit's message.
    pub message: String,
    n_commits: usize,
}

/// A hub.
pub struct Hub {
    pub address: String,
    storage: String,
    state: Arc<Mutex<State>>,
}

impl Hub {
    /// Starts a hub with these files of repositories.
    pub fn start(files: &[(&str, &str, &[u8])]) -> Hub {
        let listen = || TcpListener::bind("127.0.0.1:0").expect("a free port");
        let (hub, storage) = (listen(), listen());
        let address = |l: &TcpListener| format!("http://{}", l.local_addr().expect("a bound socket has an address"));
        let hub_is = Hub { address: address(&hub), storage: address(&storage), state: Arc::default() };
        for (repo, path, bytes) in files {
            hub_is.put(repo, path, bytes);
        }
        for (listener, at_storage) in [(hub, false), (storage, true)] {
            let (state, hub, storage) = (Arc::clone(&hub_is.state), hub_is.address.clone(), hub_is.storage.clone());
            thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let connection = Connection {
                        state: Arc::clone(&state),
                        hub: hub.clone(),
                        storage: storage.clone(),
                        at_storage,
                    };
                    // A client that hangs up early is its own business.
                    thread::spawn(move || drop(connection.answer(&stream)));
                }
            });
        }
        hub_is
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    /// Puts a file into a repository.
    pub fn put(&self, repo: &str, path: &str, bytes: &[u8]) {
        self.state().put(repo, path, bytes.to_vec());
    }

    /// Returns the requests whose line contains `part`.
    pub fn seen(&self, part: &str) -> Vec<Seen> {
        self.state().seen.iter().filter(|seen| seen.line.contains(part)).cloned().collect()
    }
}

impl State {
    fn put(&mut self, repo: &str, path: &str, bytes: Vec<u8>) {
        self.storage.insert(hex_digest(&bytes), bytes.clone());
        self.repos.entry(repo.to_owned()).or_default().insert(path.to_owned(), bytes);
        self.n_commits += 1;
    }

    fn commit(&self) -> String {
        format!("{:040x}", self.n_commits)
    }
}

pub fn hex_digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    hex::encode(Sha256::digest(bytes))
}

struct Connection {
    state: Arc<Mutex<State>>,
    hub: String,
    storage: String,
    at_storage: bool,
}

/// A request with its body.
struct Asked {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// An answer: status line, headers, content.
struct Answer(String, String, Vec<u8>);

fn text(status: &str, headers: &str, body: impl Into<Vec<u8>>) -> Answer {
    Answer(status.to_owned(), headers.to_owned(), body.into())
}

fn ok(value: &Value) -> Answer {
    text("200 OK", "Content-Type: application/json\r\n", value.to_string())
}

impl Connection {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics with the lock")
    }

    fn answer(&self, mut stream: &TcpStream) -> std::io::Result<()> {
        let Some(asked) = self.read(stream)? else { return Ok(()) };
        let answer = self.answer_to(&asked);
        let Answer(status, headers, body) = answer;
        let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        stream.write_all(head.as_bytes())?;
        let is_content =
            self.at_storage && asked.method == "GET" && asked.headers.get("range").is_none_or(|r| r != "bytes=0-0");
        let cut = if is_content { self.state().cuts.pop_front() } else { None };
        let Some(cut) = cut else { return stream.write_all(&body) };
        stream.write_all(&body[..cut.after.min(body.len())])?;
        if let Some((repo, path, bytes)) = cut.then {
            self.state().put(&repo, &path, bytes);
        }
        Ok(())
    }

    /// Reads a request; `None` where the connection is cut on purpose.
    fn read(&self, stream: &TcpStream) -> std::io::Result<Option<Asked>> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let mut headers = HashMap::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
        let n_bytes: usize = headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
        let (method, path) = line.split_once(' ').unwrap_or((&line, ""));
        let (method, path) = (method.to_owned(), path.to_owned());
        if path.starts_with("/part/") {
            let mut state = self.state();
            match &mut state.cut_upload_after {
                Some(0) => {
                    state.cut_upload_after = None;
                    return Ok(None);
                }
                Some(n) => *n -= 1,
                None => {}
            }
        }
        let mut body = vec![0; n_bytes];
        reader.read_exact(&mut body)?;
        let seen = Seen { line, headers: headers.clone(), at_storage: self.at_storage };
        self.state().seen.push(seen);
        Ok(Some(Asked { method, path, headers, body }))
    }

    fn answer_to(&self, asked: &Asked) -> Answer {
        let fault = {
            let mut state = self.state();
            let hits = state.faults.front().is_some_and(|(part, ..)| asked.path.contains(part.as_str()));
            if hits { state.faults.pop_front() } else { None }
        };
        if let Some((_, status, headers)) = fault {
            return text(&status, &headers, "{\"error\":\"a fault that was asked for\"}");
        }
        if self.at_storage { self.at_storage(asked) } else { self.at_hub(asked) }
    }

    fn at_storage(&self, asked: &Asked) -> Answer {
        if !asked.path.contains(SIGNATURE) || asked.headers.contains_key("authorization") {
            return text("403 Forbidden", "", "no signature, or a token that does not belong here");
        }
        let path = asked.path.split('?').next().unwrap_or_default();
        let names: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let mut state = self.state();
        match (asked.method.as_str(), names.as_slice()) {
            ("GET", ["blob", oid]) => {
                let mut bytes = state.storage.get(*oid).cloned().unwrap_or_default();
                if state.is_damaged {
                    let last = bytes.len() - 1;
                    bytes[last] ^= 1;
                }
                ranged(asked, &bytes, "ETag: \"of-storage\"\r\n")
            }
            ("PUT", ["whole", oid]) if hex_digest(&asked.body) == *oid => {
                state.storage.insert((*oid).to_owned(), asked.body.clone());
                text("200 OK", "", "")
            }
            ("PUT", ["part", oid, no]) => {
                let no = no.parse().expect("a number");
                state.parts.entry((*oid).to_owned()).or_default().insert(no, asked.body.clone());
                text("200 OK", &format!("ETag: \"part-{no}\"\r\n"), "")
            }
            _ => text("400 Bad Request", "", ""),
        }
    }

    fn at_hub(&self, asked: &Asked) -> Answer {
        let token = self.state().token.clone();
        let sent =
            asked.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
        if token.is_some() && sent != token {
            // A careless server repeats what it was given.
            let said = json!({ "error": format!("no such token: {}", sent.unwrap_or_default()) });
            return text("401 Unauthorized", "", said.to_string());
        }
        let path = asked.path.clone();
        let names: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        match (asked.method.as_str(), names.as_slice()) {
            ("GET", [owner, repo, "resolve", _, file @ ..]) => {
                self.resolve(asked, &format!("{owner}/{repo}"), &file.join("/"))
            }
            ("GET", ["api", "models", owner, repo, "revision", _]) => self.list(&format!("{owner}/{repo}")),
            ("POST", ["api", "repos", "create"]) => self.create(asked),
            ("POST", ["api", "models", _, _, "preupload", _]) => preupload(asked),
            ("POST", [_, repo, "info", "lfs", "objects", "batch"]) if repo.ends_with(".git") => self.batch(asked),
            ("POST", ["complete", oid]) => self.complete(asked, oid),
            ("POST", ["verify"]) => text("200 OK", "", ""),
            ("POST", ["api", "models", owner, repo, "commit", _]) => self.commit(asked, &format!("{owner}/{repo}")),
            _ => text("404 Not Found", "", ""),
        }
    }

    fn resolve(&self, asked: &Asked, repo: &str, file: &str) -> Answer {
        let state = self.state();
        let Some(bytes) = state.repos.get(repo).and_then(|files| files.get(file)) else {
            return text("404 Not Found", "", "");
        };
        let (oid, n, commit) = (hex_digest(bytes), bytes.len(), state.commit());
        if n < LARGE {
            return ranged(asked, bytes, &format!("ETag: \"{}\"\r\nX-Repo-Commit: {commit}\r\n", &oid[..40]));
        }
        let to = format!("{}/blob/{oid}?{SIGNATURE}", self.storage);
        let headers =
            format!("Location: {to}\r\nX-Repo-Commit: {commit}\r\nX-Linked-Etag: \"{oid}\"\r\nX-Linked-Size: {n}\r\n");
        text("302 Found", &headers, "")
    }

    fn list(&self, repo: &str) -> Answer {
        let state = self.state();
        let Some(files) = state.repos.get(repo).filter(|_| !state.is_mute) else {
            return text("404 Not Found", "", "");
        };
        let siblings = files.keys().map(|path| json!({ "rfilename": path })).collect::<Vec<_>>();
        ok(&json!({ "sha": state.commit(), "siblings": siblings }))
    }

    fn create(&self, asked: &Asked) -> Answer {
        let body = json_of(&asked.body);
        let repo = format!("{}/{}", body["organization"].as_str().unwrap_or(""), body["name"].as_str().unwrap_or(""));
        let mut state = self.state();
        if state.repos.contains_key(&repo) {
            return text("409 Conflict", "", "{\"error\":\"it is there\"}");
        }
        state.repos.insert(repo.clone(), BTreeMap::new());
        ok(&json!({ "url": format!("{}/{repo}", self.hub) }))
    }

    fn batch(&self, asked: &Asked) -> Answer {
        let body = json_of(&asked.body);
        assert!(asked.headers["content-type"].starts_with("application/vnd.git-lfs+json"));
        let state = self.state();
        let objects = body["objects"].as_array().expect("objects").iter().map(|object| {
            let (oid, size) =
                (object["oid"].as_str().expect("an oid"), object["size"].as_u64().expect("a size") as usize);
            if state.storage.contains_key(oid) {
                return json!({ "oid": oid, "size": size });
            }
            let verify = json!({ "href": format!("{}/verify", self.hub), "header": {} });
            let upload = if size <= PART {
                json!({ "href": format!("{}/whole/{oid}?{SIGNATURE}", self.storage), "header": { "x-kind": "whole" } })
            } else {
                let url = |no: usize| format!("{}/part/{oid}/{no}?{SIGNATURE}", self.storage);
                let mut header = json!({ "chunk_size": PART.to_string() });
                (1..=size.div_ceil(PART)).for_each(|no| header[format!("{no:05}")] = url(no).into());
                json!({ "href": format!("{}/complete/{oid}", self.hub), "header": header })
            };
            json!({ "oid": oid, "size": size, "actions": { "upload": upload, "verify": verify } })
        });
        ok(&json!({ "transfer": "multipart", "objects": objects.collect::<Vec<_>>() }))
    }

    fn complete(&self, asked: &Asked, oid: &str) -> Answer {
        let body = json_of(&asked.body);
        let mut state = self.state();
        let mut bytes = Vec::new();
        for part in body["parts"].as_array().expect("parts") {
            let no = part["partNumber"].as_u64().expect("a number") as usize;
            assert_eq!(part["etag"], format!("\"part-{no}\""));
            bytes.extend(&state.parts[oid][&no]);
        }
        if hex_digest(&bytes) != oid {
            return text("400 Bad Request", "", "");
        }
        state.storage.insert(oid.to_owned(), bytes);
        ok(&json!({}))
    }

    fn commit(&self, asked: &Asked, repo: &str) -> Answer {
        assert_eq!(asked.headers["content-type"], "application/x-ndjson");
        let mut state = self.state();
        for line in String::from_utf8_lossy(&asked.body).lines() {
            let line: Value = serde_json::from_str(line).expect("a line of JSON");
            let value = &line["value"];
            let path = value["path"].as_str().unwrap_or_default();
            match line["key"].as_str() {
                Some("header") => value["summary"].as_str().unwrap_or_default().clone_into(&mut state.message),
                Some("file") => {
                    let bytes = base64(value["content"].as_str().expect("content"));
                    state.put(repo, path, bytes);
                }
                Some("lfsFile") => {
                    let Some(bytes) = state.storage.get(value["oid"].as_str().expect("an oid")).cloned() else {
                        return text("400 Bad Request", "", "{\"error\":\"a file that was not sent\"}");
                    };
                    assert_eq!(value["size"].as_u64(), Some(bytes.len() as u64));
                    state.put(repo, path, bytes);
                }
                other => panic!("a line of {other:?}"),
            }
        }
        let commit = state.commit();
        ok(&json!({ "commitOid": commit, "commitUrl": format!("{}/{repo}/commit/{commit}", self.hub) }))
    }
}

fn preupload(asked: &Asked) -> Answer {
    let body = json_of(&asked.body);
    let files = body["files"].as_array().expect("files").iter().map(|file| {
        assert!(!base64(file["sample"].as_str().expect("a sample")).is_empty());
        let is_large = file["size"].as_u64().expect("a size") as usize >= LARGE && file["path"] != "README.md";
        json!({ "path": file["path"], "uploadMode": if is_large { "lfs" } else { "regular" }, "shouldIgnore": false })
    });
    ok(&json!({ "files": files.collect::<Vec<_>>() }))
}

/// Answers with the range that was asked for.
fn ranged(asked: &Asked, bytes: &[u8], headers: &str) -> Answer {
    let Some(range) = asked.headers.get("range").and_then(|range| range.strip_prefix("bytes=")) else {
        return text("200 OK", headers, bytes);
    };
    let (from, to) = range.split_once('-').expect("a range");
    let from: usize = from.parse().expect("a number");
    if from >= bytes.len() {
        return text("416 Range Not Satisfiable", "", "");
    }
    let end = to.parse().map_or(bytes.len(), |to: usize| (to + 1).min(bytes.len()));
    let headers = format!("{headers}Content-Range: bytes {from}-{}/{}\r\n", end - 1, bytes.len());
    text("206 Partial Content", &headers, &bytes[from..end])
}

fn json_of(body: &[u8]) -> Value {
    serde_json::from_slice(body).expect("a body of JSON")
}

/// Decodes base64 as RFC 4648 has it.
fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |byte: u8| DIGITS.iter().position(|d| *d == byte).expect("a digit") as u32;
    let digits: Vec<u32> = text.bytes().filter(|byte| *byte != b'=').map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|four| {
        let value = four.iter().fold(0, |value, digit| value << 6 | digit) << (6 * (4 - four.len()));
        value.to_be_bytes()[1..four.len()].to_vec()
    });
    bytes.collect()
}
