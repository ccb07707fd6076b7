//! Requests to the hub and its storage: the token, times, attempts, and errors as lines.
//!
//! The token goes to the hub's own address and nowhere else, and is shown nowhere. Storage is reached by signed addresses, which
//! are secrets too: lines name their host only.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ureq::config::Config;
use ureq::http::{self, HeaderMap, Response};
use ureq::{Agent, Body, SendBody};

use crate::config::{HubConfig, Token};
use crate::error::{HubError, HubErrorKind, shown};
use crate::progress::{Progress, Task};

/// The line about a file that is not there.
pub(crate) const NOT_FOUND: &str = "no such file in the repository (404)";

/// Longest wait for a connection, and for the beginning of an answer to a question.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for the answer to data that was sent.
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// Longest pause within an answer or within data that is sent.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The wait before the second attempt; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait that a server may ask for.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The most attempts of one request.
const N_ATTEMPTS: u32 = 5;
/// The most bytes of an answer in JSON.
const JSON_BYTES_MAX: u64 = 32 << 20;
/// The most bytes of an error that are read.
const ERROR_BYTES_MAX: u64 = 64 << 10;
/// The most characters of a server's message that are shown.
const LINE_CHARS_MAX: usize = 300;

/// The hub, as a process speaks to it.
pub(crate) struct Http<'a> {
    /// For questions.
    asking: Agent,
    /// For data that is sent.
    sending: Agent,
    pub(crate) endpoint: &'a str,
    token: Option<Token>,
    /// Places where a token may stand.
    token_places: String,
    pub(crate) progress: &'a dyn Progress,
}

/// A request.
pub(crate) struct Request<'a> {
    pub(crate) method: &'static str,
    pub(crate) url: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) payload: Payload<'a>,
}

/// Content that a request sends.
pub(crate) enum Payload<'a> {
    None,
    Bytes(&'a [u8]),
    File(FilePart<'a>),
}

/// Bytes of a file that are sent.
pub(crate) struct FilePart<'a> {
    pub(crate) path: &'a Path,
    pub(crate) start: u64,
    pub(crate) n_bytes: u64,
    /// Hears how far in the file it is.
    pub(crate) task: &'a dyn Task,
}

/// A request that failed.
#[derive(Debug)]
pub(crate) struct HttpError {
    /// Status of the answer, if there was one.
    pub(crate) status: Option<u16>,
    pub(crate) line: String,
    again: Again,
}

/// Whether a request may be sent again.
#[derive(Clone, Copy, Debug)]
enum Again {
    Never,
    /// After the time that the server asked for, if it did.
    After(Option<Duration>),
}

impl HttpError {
    pub(crate) fn new(line: impl Into<String>) -> HttpError {
        HttpError { status: None, line: line.into(), again: Again::Never }
    }

    /// Returns whether another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(self.again, Again::After(_))
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.status == Some(404)
    }
}

impl From<HttpError> for String {
    fn from(error: HttpError) -> String {
        error.line
    }
}

impl From<HttpError> for HubError {
    fn from(error: HttpError) -> HubError {
        HubError::new(HubErrorKind::Remote, error.line)
    }
}

impl<'a> Http<'a> {
    /// # Errors
    /// A place has something that is no token.
    pub(crate) fn new(config: &'a HubConfig, progress: &'a dyn Progress) -> Result<Http<'a>, HubError> {
        Ok(Http {
            asking: agent(ANSWER_TIMEOUT),
            sending: agent(UPLOAD_TIMEOUT),
            endpoint: &config.endpoint,
            token: config.token.find()?,
            token_places: config.token.names(),
            progress,
        })
    }

    /// Returns whether there is a token.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Returns whether an address is one of the hub itself, which gets the token.
    pub(crate) fn is_hub(&self, url: &str) -> bool {
        url.strip_prefix(self.endpoint).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    }

    /// Sends a request, again where that may help, and returns its answer: a success or a redirection.
    ///
    /// # Errors
    /// The last attempt's.
    pub(crate) fn send(&self, request: &Request<'_>) -> Result<Response<Body>, HttpError> {
        let mut wait = FIRST_WAIT;
        for n_left in (0..N_ATTEMPTS).rev() {
            match self.send_once(request) {
                Ok(response) => return Ok(response),
                Err(error) => match error.again {
                    Again::After(asked) if n_left > 0 => self.wait(asked.unwrap_or(wait), error)?,
                    _ => return Err(error),
                },
            }
            wait *= 2;
        }
        unreachable!("the last attempt returns")
    }

    /// Waits before another attempt.
    ///
    /// # Errors
    /// The server asks for a longer wait than anybody should sit through.
    pub(crate) fn wait(&self, wait: Duration, error: HttpError) -> Result<(), HttpError> {
        if wait > WAIT_MAX {
            return Err(error);
        }
        if wait >= Duration::from_secs(1) {
            self.progress.note(&format!("{}; trying again in {} s", error.line, wait.as_secs()));
        }
        thread::sleep(wait);
        Ok(())
    }

    /// Sends a request once.
    pub(crate) fn send_once(&self, request: &Request<'_>) -> Result<Response<Body>, HttpError> {
        let mut head = http::Request::builder().method(request.method).uri(request.url);
        // Ranges are of the file, not of what a compression makes of it.
        head = head.header("accept-encoding", "identity").header("user-agent", USER_AGENT);
        for (name, value) in request.headers {
            head = head.header(*name, *value);
        }
        // The storage's own key, should the hub have given one, takes its place.
        let has_key = request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("authorization"));
        if let Some(token) = self.token.as_ref().filter(|_| !has_key && self.is_hub(request.url)) {
            head = head.header("authorization", token.header());
        }
        let unusable =
            |_: http::Error| HttpError::new(format!("the hub gave an address that is none: {}", host(request.url)));
        let sent = match &request.payload {
            Payload::None => self.asking.run(head.body(()).map_err(unusable)?),
            Payload::Bytes(bytes) => self.sending.run(head.body(*bytes).map_err(unusable)?),
            Payload::File(part) => {
                let mut reader = part.open().map_err(|error| HttpError::new(error.to_string()))?;
                let head = head.header("content-length", part.n_bytes);
                self.sending.run(head.body(SendBody::from_reader(&mut reader)).map_err(unusable)?)
            }
        };
        let response = sent.map_err(|error| self.unreachable(request, &error))?;
        match response.status().is_success() || response.status().is_redirection() {
            true => Ok(response),
            false => Err(self.refused(request.url, response)),
        }
    }

    /// Returns the JSON of an answer.
    pub(crate) fn json(&self, response: Response<Body>) -> Result<Value, HttpError> {
        if response.status().is_redirection() {
            let line = "the hub sent the request elsewhere; was the repository renamed? Name it as its page does";
            return Err(HttpError::new(line));
        }
        let mut text = String::new();
        let mut reader = response.into_body().into_reader().take(JSON_BYTES_MAX);
        reader
            .read_to_string(&mut text)
            .map_err(|error| HttpError::new(format!("the hub's answer broke off: {error}")))?;
        serde_json::from_str(&text)
            .map_err(|_| HttpError::new(format!("{} did not answer with JSON; is it a hub?", self.endpoint)))
    }

    fn unreachable(&self, request: &Request<'_>, error: &ureq::Error) -> HttpError {
        let url = request.url;
        let again = match error {
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => Again::Never,
            ureq::Error::Io(_) | ureq::Error::Protocol(_) => Again::After(None),
            ureq::Error::Timeout(timeout) if *timeout != ureq::Timeout::Connect => Again::After(None),
            _ => Again::Never,
        };
        if let ureq::Error::Timeout(timeout) = error {
            let is_answer = *timeout == ureq::Timeout::Connect || matches!(request.payload, Payload::None);
            let limit = if is_answer { ANSWER_TIMEOUT } else { UPLOAD_TIMEOUT };
            return HttpError { status: None, line: format!("no answer within {} s", limit.as_secs()), again };
        }
        let text = error.to_string();
        let cause = shown(text.trim_start_matches("io: "), LINE_CHARS_MAX);
        let whom = match self.is_hub(url) {
            true => "the Hugging Face hub".to_owned(),
            false => format!("the hub's storage at {}", host(url)),
        };
        HttpError { status: None, line: self.hide(&format!("cannot reach {whom}: {cause}")), again }
    }

    /// Makes the error of an answer that is none.
    fn refused(&self, url: &str, response: Response<Body>) -> HttpError {
        let status = response.status().as_u16();
        let seconds = header(response.headers(), "retry-after").and_then(|seconds| seconds.trim().parse().ok());
        let said = header(response.headers(), "x-error-message").map(str::to_owned);
        let said = said.unwrap_or_else(|| message(response));
        let said = self.hide(&shown(&said, LINE_CHARS_MAX));
        let line = match (status, self.is_hub(url)) {
            (401 | 403, true) => self.about_token(status, &said),
            (404, true) => NOT_FOUND.to_owned(),
            (429, true) => match seconds {
                Some(seconds) => format!("the hub asks to wait {seconds} s before the next request (429)"),
                None => "the hub asks to wait before the next request (429)".to_owned(),
            },
            (_, true) => format!("the hub answered {status}{}", after_colon(&said)),
            (_, false) => format!("the hub's storage at {} answered {status}", host(url)),
        };
        let again = match status {
            408 | 429 | 500 | 502 | 503 | 504 => Again::After(seconds.map(Duration::from_secs)),
            _ => Again::Never,
        };
        HttpError { status: Some(status), line, again }
    }

    /// Says which token was refused, or where one can be put.
    fn about_token(&self, status: u16, said: &str) -> String {
        let said = after_colon(said);
        match (&self.token, status) {
            (Some(Token { place, .. }), 401) => format!("the hub does not take the token of {place} (401){said}"),
            (Some(Token { place, .. }), _) => format!("the token of {place} has no right to this (403){said}"),
            (None, _) => format!(
                "the repository asks for a login ({status}), and there is no token in {}; run 'hf auth login' or set HF_TOKEN",
                self.token_places
            ),
        }
    }

    /// Returns a text without the token, should it be in it.
    pub(crate) fn hide(&self, text: &str) -> String {
        self.token.as_ref().map_or_else(|| text.to_owned(), |token| token.hide(text))
    }

    /// Returns the line about a token that is needed and not there.
    pub(crate) fn needs_token(&self) -> HubError {
        let line = format!(
            "publishing needs a token, and there is none in {}; run 'hf auth login' or set HF_TOKEN",
            self.token_places
        );
        HubError::usage(line)
    }
}

/// Name of the program as servers see it.
const USER_AGENT: &str = concat!("ruvllm/", env!("CARGO_PKG_VERSION"));

fn agent(answer_timeout: Duration) -> Agent {
    let config: Config = Agent::config_builder()
        .http_status_as_error(false)
        // Where a request goes next decides whether the token goes along.
        .max_redirects(0)
        .timeout_connect(Some(ANSWER_TIMEOUT))
        .timeout_recv_response(Some(answer_timeout))
        .timeout_per_read(Some(PAUSE_MAX.max(answer_timeout)))
        .timeout_per_write(Some(PAUSE_MAX))
        .build();
    config.into()
}

impl FilePart<'_> {
    fn open(&self) -> io::Result<Counted<'_>> {
        let mut file = File::open(self.path)?;
        file.seek(SeekFrom::Start(self.start))?;
        self.task.set(self.start);
        Ok(Counted { reader: file.take(self.n_bytes), task: self.task })
    }
}

/// A reader that tells how much was read of it.
struct Counted<'a> {
    reader: io::Take<File>,
    task: &'a dyn Task,
}

impl Read for Counted<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(out)?;
        self.task.add(n as u64);
        Ok(n)
    }
}

/// Returns a header's text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the host of an address, which is all of it that may be shown.
pub(crate) fn host(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    shown(host.rsplit('@').next().unwrap_or_default(), 100)
}

/// Returns a server's words about an error.
fn message(response: Response<Body>) -> String {
    let mut text = String::new();
    // An error that cannot be read is told by its status.
    let _ = response.into_body().into_reader().take(ERROR_BYTES_MAX).read_to_string(&mut text);
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    let said = body["error"].as_str().or(body["message"].as_str());
    said.map(str::to_owned).unwrap_or_default()
}

fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

/// Returns a path of a repository as it stands in an address.
pub(crate) fn escaped(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_signed_addresses_the_host_is_shown() {
        assert_eq!(host("https://me:pw@s3.example/a?X-Signature=abc"), "s3.example");
        assert_eq!(host("http://127.0.0.1:80"), "127.0.0.1:80");
    }

    #[test]
    fn paths_are_escaped() {
        assert_eq!(escaped("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
        assert_eq!(escaped("refs/pr/1"), "refs/pr/1");
    }
}
