//! The file that a batch is made of: a request in each line.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use ruvllm_api::strict_json::Strict;
use serde_json::{Value, json};

/// The most requests of a batch.
const REQUESTS_MAX: usize = 50_000;
/// The most bytes of a line.
pub(super) const LINE_BYTES_MAX: usize = 8 << 20;
/// The most bytes of a request's own id.
const ID_BYTES_MAX: usize = 512;
/// Mistakes that are told.
const PROBLEMS_MAX: usize = 20;

/// A request: its own id and where its line lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) custom_id: String,
    pub(super) offset: u64,
    pub(super) n_bytes: usize,
}

/// The requests of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Input(pub(super) Vec<Request>);

impl Input {
    /// Reads a file and checks every line, or returns what is wrong with it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(path: &Path, endpoint: &str) -> io::Result<Result<Input, Vec<Value>>> {
        let mut reader = BufReader::with_capacity(1 << 16, File::open(path)?);
        let (mut requests, mut known, mut problems) = (Vec::new(), HashSet::new(), Vec::new());
        let (mut line, mut offset, mut n) = (Vec::new(), 0_u64, 0_usize);
        while problems.len() < PROBLEMS_MAX {
            line.clear();
            let mut bounded = io::Read::take(&mut reader, LINE_BYTES_MAX as u64 + 1);
            let n_read = bounded.read_until(b'\n', &mut line)?;
            if n_read == 0 {
                break;
            }
            n += 1;
            let text = line.trim_ascii();
            if n_read > LINE_BYTES_MAX {
                problems.push(problem("line_too_long", &format!("a line has at most {LINE_BYTES_MAX} bytes"), n));
                break;
            }
            match check(text, endpoint) {
                _ if text.is_empty() => {}
                Err((code, reason)) => problems.push(problem(code, &reason, n)),
                Ok(id) if !known.insert(id.clone()) => {
                    problems.push(problem("duplicate_custom_id", &format!("the custom_id '{id}' is there twice"), n));
                }
                Ok(custom_id) => requests.push(Request { custom_id, offset, n_bytes: n_read }),
            }
            offset += n_read as u64;
            if requests.len() > REQUESTS_MAX {
                problems.push(problem("too_many_requests", &format!("a batch has at most {REQUESTS_MAX} requests"), n));
                break;
            }
        }
        if problems.is_empty() && requests.is_empty() {
            problems.push(problem("empty_file", "the file has no requests", 1));
        }
        Ok(if problems.is_empty() { Ok(Input(requests)) } else { Err(problems) })
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns a mistake as OpenAI tells it.
fn problem(code: &str, message: &str, line: usize) -> Value {
    json!({ "code": code, "message": message, "param": null, "line": line })
}

/// Checks a line, and returns its own id.
fn check(text: &[u8], endpoint: &str) -> Result<String, (&'static str, String)> {
    let object = parse(text).map_err(|reason| ("invalid_json_line", reason))?;
    let id = object["custom_id"].as_str().filter(|id| !id.is_empty() && id.len() <= ID_BYTES_MAX);
    let id =
        id.ok_or_else(|| ("missing_required_parameter", format!("custom_id is text of 1 to {ID_BYTES_MAX} bytes")))?;
    if object["method"] != "POST" {
        return Err(("invalid_method", "method is POST".to_owned()));
    }
    if object["url"] != endpoint {
        return Err(("mismatched_endpoint", format!("url is the endpoint of the batch, {endpoint}")));
    }
    if !object["body"].is_object() {
        return Err(("missing_required_parameter", "body is an object".to_owned()));
    }
    if object["body"]["stream"] == true {
        return Err(("invalid_request", "answers of a batch are not streamed; leave 'stream' out".to_owned()));
    }
    Ok(id.to_owned())
}

/// Reads a line as JSON.
///
/// # Errors
/// It is none, or has a key twice.
pub(super) fn parse(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(text).map(|Strict(value)| value).map_err(|error| format!("the line is no JSON: {error}"))
}
