//! Requests over HTTP: keys, times, attempts, and errors as lines.

use std::io::{BufReader, Read};
use std::thread;
use std::time::{Duration, Instant};

use ruvllm_backend::{BackendError, BackendErrorKind, Interrupt};
use serde_json::Value;
use ureq::config::Config;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, RequestBuilder};

use crate::options::RemoteOptions;

/// The wait before the first attempt again; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait between two attempts, whatever the server asks for.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Interval at which a wait between two attempts looks whether the request is given up.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The longest wait for the answer to the question whether a server is there.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes of an answer that is no stream.
const ANSWER_BYTES_MAX: u64 = 256 << 20;
/// The most bytes of an error that are read.
const ERROR_BYTES_MAX: u64 = 64 << 10;

/// The most characters of a server's message that are shown.
const LINE_CHARS_MAX: usize = 400;

/// A server's API.
#[derive(Debug)]
pub(crate) struct Http {
    /// Keeps connections for requests that end soon.
    agent: Agent,
    url: String,
    key: Option<String>,
    key_name: Option<String>,
    n_retries: u32,
}

/// A request to a server.
struct Asked<'a> {
    agent: &'a Agent,
    path: &'a str,
    /// None for a GET.
    body: Option<&'a Value>,
    /// Longest time of it all, if it has one.
    time_max: Option<Duration>,
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
        if url.split('/').nth(2).is_some_and(|host| host.contains('@')) {
            // It would be shown with every error.
            let line = "the address of a server has no user and no password; its key is sent as a bearer token";
            return Err(BackendError::new(BackendErrorKind::Options, line));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(options.connect_timeout))
            .timeout_per_read(Some(options.read_timeout))
            .build();
        let RemoteOptions { key, key_name, n_retries, .. } = options.clone();
        Ok(Http { agent: config.into(), url, key, key_name, n_retries })
    }

    fn asked<'a>(&'a self, path: &'a str, body: Option<&'a Value>) -> Asked<'a> {
        Asked { agent: &self.agent, path, body, time_max: None }
    }

    /// Returns the answer to a GET.
    pub(crate) fn get(&self, path: &str) -> Result<Value, BackendError> {
        self.read_json(self.attempt(&self.asked(path, None), &Interrupt::default())?)
    }

    /// Asks once whether the server is there.
    pub(crate) fn check(&self, path: &str) -> Result<(), BackendError> {
        let asked = Asked { time_max: Some(CHECK_TIMEOUT), ..self.asked(path, None) };
        self.ask(&asked).map(drop).map_err(|failed| failed.error)
    }

    /// Returns the answer to a POST.
    pub(crate) fn post_json(&self, path: &str, body: &Value) -> Result<Value, BackendError> {
        self.read_json(self.attempt(&self.asked(path, Some(body)), &Interrupt::default())?)
    }

    /// Returns the stream that answers a POST. Setting the interrupt closes its connection, which belongs to it alone.
    pub(crate) fn post(
        &self,
        path: &str,
        body: &Value,
        interrupt: &Interrupt,
    ) -> Result<BufReader<impl Read + use<>>, BackendError> {
        let config: Config = self.agent.config().clone();
        let agent = Agent::new_with_config(config);
        let of_hook = agent.clone();
        interrupt.on_set(move || of_hook.shutdown());
        let asked = Asked { agent: &agent, ..self.asked(path, Some(body)) };
        Ok(BufReader::new(self.attempt(&asked, interrupt)?.into_body().into_reader()))
    }

    /// Returns the error of a stream that broke off.
    pub(crate) fn broken(&self, error: std::io::Error) -> BackendError {
        let is_late = error.kind() == std::io::ErrorKind::TimedOut
            || error.get_ref().and_then(|cause| cause.downcast_ref()).is_some_and(is_timeout);
        let kind = if is_late { BackendErrorKind::Timeout } else { BackendErrorKind::Remote };
        BackendError::new(kind, format!("{} broke off: {error}", self.url)).with_source(error)
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
    fn attempt(&self, asked: &Asked<'_>, interrupt: &Interrupt) -> Result<Response<Body>, BackendError> {
        let mut wait = FIRST_WAIT;
        for n_left in (0..=self.n_retries).rev() {
            match self.ask(asked) {
                Ok(response) => return Ok(response),
                Err(Failed { error, .. }) if n_left == 0 || interrupt.is_set() => return Err(error),
                Err(Failed { error, again: Again::Never }) => return Err(error),
                Err(Failed { again: Again::After(asked), .. }) => sleep(asked.unwrap_or(wait).min(WAIT_MAX), interrupt),
            }
            wait *= 2;
        }
        unreachable!("the last attempt returns")
    }

    /// Asks once.
    fn ask(&self, asked: &Asked<'_>) -> Result<Response<Body>, Failed> {
        let Asked { agent, path, body, time_max } = *asked;
        let url = format!("{}/{path}", self.url);
        let sent = match body {
            None => self.with_key(agent.get(&url)).config().timeout_global(time_max).build().call(),
            Some(body) => self.with_key(agent.post(&url)).send_json(body),
        };
        let response = sent.map_err(|error| self.unreachable(error))?;
        match response.status().is_success() {
            true => Ok(response),
            false => Err(self.refused(response)),
        }
    }

    fn with_key<T>(&self, request: RequestBuilder<T>) -> RequestBuilder<T> {
        match &self.key {
            None => request,
            Some(key) => request.header("authorization", format!("Bearer {key}")),
        }
    }

    fn unreachable(&self, error: ureq::Error) -> Failed {
        let again = match &error {
            ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => Again::After(None),
            ureq::Error::Timeout(ureq::Timeout::Connect) => Again::After(None),
            _ => Again::Never,
        };
        let (kind, line) = match is_timeout(&error) {
            true => (BackendErrorKind::Timeout, format!("{} did not answer in time: {error}", self.url)),
            false => (BackendErrorKind::Remote, format!("{} cannot be reached: {error}", self.url)),
        };
        Failed { error: BackendError::new(kind, line).with_source(error), again }
    }

    /// Makes the error of an answer that is none.
    fn refused(&self, response: Response<Body>) -> Failed {
        let status = response.status();
        let header = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let seconds: Option<u64> = header.and_then(|seconds| seconds.trim().parse().ok());
        let mut text = String::new();
        // An error that cannot be read is told by its status.
        let _ = response.into_body().into_reader().take(ERROR_BYTES_MAX).read_to_string(&mut text);
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let error = &body["error"];
        let said = error["message"].as_str().or(error.as_str()).or(body["message"].as_str());
        let said = match status {
            // What a server says of a key may hold parts of it.
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.about_key(),
            _ => self.without_key(&one_line(said.unwrap_or(&text))),
        };
        let line = format!("{} answered {status}: {said}", self.url);
        let again = match status {
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Again::After(seconds.map(Duration::from_secs)),
            _ => Again::Never,
        };
        let is_too_long = error["code"] == "context_length_exceeded";
        let kind = match status {
            _ if is_too_long => BackendErrorKind::ContextLength,
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => BackendErrorKind::Prompt,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => BackendErrorKind::Key,
            StatusCode::NOT_FOUND => BackendErrorKind::Options,
            StatusCode::TOO_MANY_REQUESTS => BackendErrorKind::Busy,
            StatusCode::GATEWAY_TIMEOUT => BackendErrorKind::Timeout,
            _ => BackendErrorKind::Remote,
        };
        Failed { error: BackendError::new(kind, line).with_retry_after(seconds), again }
    }

    /// Says what is wrong with the key, and where it comes from.
    fn about_key(&self) -> String {
        let place = self.key_name.as_deref().map_or(String::new(), |name| format!(" of {name}"));
        match (&self.key, &self.key_name) {
            (Some(_), _) => format!("it does not take the key{place}; give another one"),
            (None, Some(name)) => format!("it asks for a key; set {name}"),
            (None, None) => "it asks for a key".to_owned(),
        }
    }

    /// Returns a server's words without the key, should they hold it.
    fn without_key(&self, line: &str) -> String {
        match &self.key {
            Some(key) if !key.is_empty() => line.replace(key.as_str(), "(the key)"),
            _ => line.to_owned(),
        }
    }
}

fn is_timeout(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Timeout(_))
}

/// Waits before another attempt, unless the request is given up meanwhile.
fn sleep(wait: Duration, interrupt: &Interrupt) {
    let end = Instant::now() + wait;
    while !interrupt.is_set() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(LOOK_INTERVAL));
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
