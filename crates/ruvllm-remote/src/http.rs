//! Requests over HTTP: keys, times, attempts, and errors as lines.

use std::io::{BufReader, Read};
use std::thread;
use std::time::Duration;

use ruvllm_backend::{BackendError, BackendErrorKind};
use serde_json::Value;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, RequestBuilder};

use crate::options::RemoteOptions;

/// The wait before the first attempt again; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait between two attempts, whatever the server asks for.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The most bytes of an answer that is no stream.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// The most bytes of an error that are read.
const ERROR_BYTES_MAX: u64 = 64 << 10;

/// The most characters of a server's message that are shown.
const LINE_CHARS_MAX: usize = 400;

/// A server's API.
#[derive(Debug)]
pub(crate) struct Http {
    agent: Agent,
    url: String,
    bearer: Option<String>,
    n_retries: u32,
}

impl Http {
    /// # Errors
    /// The address is none of HTTP.
    pub(crate) fn new(options: &RemoteOptions) -> Result<Http, BackendError> {
        let url = options.url.trim_end_matches('/').to_owned();
        if !(url.starts_with("http://") || url.starts_with("https://")) {
            let line = format!("'{url}' is no address of a server; write http://HOST:PORT/v1");
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(options.connect_timeout))
            .timeout_per_read(Some(options.read_timeout))
            .build();
        let bearer = options.key.as_ref().map(|key| format!("Bearer {key}"));
        Ok(Http { agent: config.into(), url, bearer, n_retries: options.n_retries })
    }

    /// Returns the answer to a GET.
    pub(crate) fn get(&self, path: &str) -> Result<Value, BackendError> {
        self.read_json(self.attempt(path, None)?)
    }

    /// Returns the answer to a POST.
    pub(crate) fn post_json(&self, path: &str, body: &Value) -> Result<Value, BackendError> {
        self.read_json(self.attempt(path, Some(body))?)
    }

    /// Returns the stream that answers a POST.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<BufReader<impl Read + use<>>, BackendError> {
        Ok(BufReader::new(self.attempt(path, Some(body))?.into_body().into_reader()))
    }

    /// Returns the error of a stream that broke off.
    pub(crate) fn broken(&self, error: std::io::Error) -> BackendError {
        BackendError::new(BackendErrorKind::Remote, format!("{} broke off: {error}", self.url)).with_source(error)
    }

    fn read_json(&self, response: Response<Body>) -> Result<Value, BackendError> {
        let mut text = String::new();
        let reader = response.into_body().into_reader().take(ANSWER_BYTES_MAX);
        BufReader::new(reader).read_to_string(&mut text).map_err(|error| self.broken(error))?;
        serde_json::from_str(&text).map_err(|error| {
            let line = format!("{} did not answer with JSON; is it the address of an API?", self.url);
            BackendError::new(BackendErrorKind::Remote, line).with_source(error)
        })
    }

    /// Asks until there is an answer, or an error that stays one.
    fn attempt(&self, path: &str, body: Option<&Value>) -> Result<Response<Body>, BackendError> {
        let mut wait = FIRST_WAIT;
        for n_left in (0..=self.n_retries).rev() {
            match self.ask(path, body) {
                Ok(response) => return Ok(response),
                Err(Failed { error, .. }) if n_left == 0 => return Err(error),
                Err(Failed { error, again: Again::Never }) => return Err(error),
                Err(Failed { again: Again::After(asked), .. }) => thread::sleep(asked.unwrap_or(wait).min(WAIT_MAX)),
            }
            wait *= 2;
        }
        unreachable!("the last attempt returns")
    }

    /// Asks once.
    fn ask(&self, path: &str, body: Option<&Value>) -> Result<Response<Body>, Failed> {
        let url = format!("{}/{path}", self.url);
        let sent = match body {
            None => self.with_key(self.agent.get(&url)).call(),
            Some(body) => self.with_key(self.agent.post(&url)).send_json(body),
        };
        let response = sent.map_err(|error| self.unreachable(error))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.refused(response)),
        }
    }

    fn with_key<T>(&self, request: RequestBuilder<T>) -> RequestBuilder<T> {
        match &self.bearer {
            None => request,
            Some(bearer) => request.header("authorization", bearer),
        }
    }

    fn unreachable(&self, error: ureq::Error) -> Failed {
        let again = match &error {
            ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => Again::After(None),
            ureq::Error::Timeout(ureq::Timeout::Connect) => Again::After(None),
            _ => Again::Never,
        };
        let line = format!("{} cannot be reached: {error}", self.url);
        Failed { error: BackendError::new(BackendErrorKind::Remote, line).with_source(error), again }
    }

    /// Makes the error of an answer that is none.
    fn refused(&self, response: Response<Body>) -> Failed {
        let status = response.status();
        let header = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let asked = header.and_then(|seconds| seconds.trim().parse().ok()).map(Duration::from_secs);
        let mut text = String::new();
        // An error that cannot be read is told by its status.
        let _ = response.into_body().into_reader().take(ERROR_BYTES_MAX).read_to_string(&mut text);
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let error = &body["error"];
        let said = error["message"].as_str().or(error.as_str()).or(body["message"].as_str());
        let line = format!("{} answered {status}: {}", self.url, one_line(said.unwrap_or(&text)));
        let again = match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Again::After(asked),
            _ => Again::Never,
        };
        let is_too_long = error["code"] == "context_length_exceeded";
        let kind = match status {
            _ if is_too_long => BackendErrorKind::ContextLength,
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => BackendErrorKind::Prompt,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => BackendErrorKind::Options,
            _ => BackendErrorKind::Remote,
        };
        Failed { error: BackendError::new(kind, line), again }
    }
}

/// Returns the first line of a text, shortened.
fn one_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

/// An attempt that failed.
struct Failed {
    error: BackendError,
    again: Again,
}

/// Whether a request may be sent again.
enum Again {
    Never,
    /// After the time that the server asked for, if it did.
    After(Option<Duration>),
}
