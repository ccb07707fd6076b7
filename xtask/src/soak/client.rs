//! A client of a soak: does something at random, and says what came of it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::server::{BODY_BYTES_MAX, KEY, Server};

/// Longer than anything may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// What came of a request.
pub(super) struct Outcome {
    /// The kind of request, and the status.
    pub what: String,
    /// What must not be.
    pub fault: Option<String>,
}

/// A client.
pub(super) struct Client<'a> {
    server: &'a Server,
    /// A generator of random numbers: xorshift64 (Marsaglia 2003).
    state: u64,
}

/// What a request is, and the statuses that it may have; 429 and 503 may come in any case.
struct Act {
    name: &'static str,
    path: &'static str,
    body: String,
    statuses: &'static [u16],
    /// How the answer is read.
    reading: Manner,
    as_guest: bool,
}

/// How a request is sent, and its answer read.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Manner {
    Whole,
    /// So many bytes, then the connection is closed.
    Bytes(usize),
    /// Closed after so many milliseconds without reading.
    Nothing(u64),
    /// A few bytes now and then, for so many milliseconds.
    Slow(u64),
    /// Nothing is sent for so many milliseconds.
    Silent(u64),
    /// Half of the head is sent, and nothing more for so many milliseconds.
    HalfHead(u64),
    /// Half of the body is sent, and nothing more for so many milliseconds.
    HalfBody(u64),
    /// So many bytes that are no request.
    Garbage(usize),
    /// Two lengths that contradict each other.
    Smuggled,
    /// A header of so many bytes.
    LongHead(usize),
}

/// What came of a request.
pub(super) enum Sent {
    /// A status and a body.
    Answer(u16, String),
    /// The client left before.
    Left,
    /// None came.
    Failed(anyhow::Error),
}

impl<'a> Client<'a> {
    pub(super) fn new(server: &'a Server, i: u64) -> Client<'a> {
        Client { server, state: 0x9E37_79B9_7F4A_7C15 ^ (i + 1).wrapping_mul(0xBF58_476D_1CE4_E5B9) }
    }

    fn random(&mut self, n: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % n
    }

    /// Does something.
    pub(super) fn act(&mut self) -> Outcome {
        let act = self.choose();
        let start = Instant::now();
        match self.send(&act) {
            Ok(None) => Outcome { what: format!("{}: left", act.name), fault: None },
            Ok(Some((status, body))) => {
                let is_known = act.statuses.contains(&status) || matches!(status, 429 | 503);
                // An error within a stream has its reason too.
                let is_broken = body.contains("internal error") || body.contains("server_error\"");
                let fault = (!is_known || is_broken || start.elapsed() > PATIENCE).then(|| {
                    let end: String = body.chars().take(300).collect();
                    format!("{}: {status} after {:.1} s: {end}", act.name, start.elapsed().as_secs_f64())
                });
                Outcome { what: format!("{}: {status}", act.name), fault }
            }
            Err(error) => {
                let what = format!("{}: no answer", act.name);
                Outcome { fault: Some(format!("{what}: {error:#}")), what }
            }
        }
    }

    fn choose(&mut self) -> Act {
        let prompt = format!("{} {}", self.random(1 << 40), "river stone ".repeat(self.random(300) as usize));
        let n = 8 + self.random(120);
        let chat = |stream: bool, n: u64| {
            json!({ "messages": [{ "role": "user", "content": prompt }], "max_tokens": n, "stream": stream })
                .to_string()
        };
        let act = |name, body, statuses, reading| Act {
            name,
            path: "/v1/chat/completions",
            body,
            statuses,
            reading,
            as_guest: false,
        };
        let long = json!({ "prompt": prompt, "max_tokens": 900, "ignore_eos": true, "stream": true }).to_string();
        let completion = |act: Act| Act { path: "/v1/completions", ..act };
        let (kind, wait) = (self.random(14), self.random(1500));
        match kind {
            0 | 1 => act("whole", chat(false, n), &[200], Manner::Whole),
            2 | 3 => act("stream", chat(true, n), &[200], Manner::Whole),
            4 => completion(act("leaves in the answer", long, &[], Manner::Bytes(300 + 40 * n as usize))),
            5 => completion(act("leaves at once", long, &[], Manner::Nothing(wait / 20))),
            6 => act("leaves without reading", chat(false, 400), &[], Manner::Nothing(wait)),
            7 => completion(act("reads slowly", long, &[], Manner::Slow(2 * wait))),
            8 => act("too large", "x".repeat(BODY_BYTES_MAX + 1 + 100 * n as usize), &[413], Manner::Whole),
            9 => act("malformed", chat(false, n)[..20].to_owned(), &[400], Manner::Whole),
            10 => act("unknown field", json!({ "messages": [], "colour": n }).to_string(), &[400], Manner::Whole),
            11 => {
                let body = json!({ "prompt": prompt, "max_tokens": 900, "ignore_eos": true, "timeout_ms": wait + 1 });
                completion(act("in no time", body.to_string(), &[200, 504], Manner::Whole))
            }
            12 => Act { as_guest: true, ..completion(act("guest", long, &[200, 401], Manner::Whole)) },
            _ => {
                let schema = json!({ "type": "object", "properties": { "n": { "type": "integer", "maximum": 99 } }, "required": ["n"] });
                let body =
                    json!({ "prompt": prompt, "max_tokens": n, "structured_outputs": { "json": schema }, "n": 2 });
                completion(act("structured", body.to_string(), &[200], Manner::Whole))
            }
        }
    }

    /// Sends a request. Returns the status and the body, or nothing where the client left.
    fn send(&mut self, act: &Act) -> Result<Option<(u16, String)>> {
        let key = if act.as_guest { self.server.guest_key() } else { KEY.to_owned() };
        match send(&self.server.address, &key, act.path, &act.body, act.reading) {
            Sent::Answer(status, body) => Ok(Some((status, body))),
            Sent::Left => Ok(None),
            // A server that has refused what is too large closes before all of it is sent.
            Sent::Failed(_) if act.statuses == [413] => Ok(Some((413, String::new()))),
            Sent::Failed(error) => Err(error),
        }
    }
}

/// Sends a request and reads its answer.
///
/// # Errors
/// None came.
pub(super) fn ask(address: &str, key: &str, path: &str, body: &str) -> Result<(u16, String)> {
    match send(address, key, path, body, Manner::Whole) {
        Sent::Answer(status, body) => Ok((status, body)),
        Sent::Left => anyhow::bail!("no answer"),
        Sent::Failed(error) => Err(error),
    }
}

/// Sends a request in some manner.
pub(super) fn send(address: &str, key: &str, path: &str, body: &str, manner: Manner) -> Sent {
    let mut stream = match connect(address) {
        Ok(stream) => stream,
        Err(error) => return Sent::Failed(error),
    };
    let head = head("POST", path, key, body.len());
    let wait = |stream: &TcpStream, ms| {
        std::thread::sleep(Duration::from_millis(ms));
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
        Sent::Left
    };
    // What cannot be sent is told by what is read.
    let mut write = |parts: &[&[u8]]| drop(parts.iter().try_for_each(|part| stream.write_all(part)));
    let (head, body) = (head.as_bytes(), body.as_bytes());
    match manner {
        Manner::Silent(_) => {}
        Manner::HalfHead(_) => write(&[&head[..head.len() / 2]]),
        Manner::HalfBody(_) => write(&[head, &body[..body.len() / 2]]),
        Manner::Garbage(n) => write(&[&(0..n).map(|i| (i * 167 + i / 251) as u8).collect::<Vec<_>>()]),
        Manner::Smuggled => {
            write(&[&head[..head.len() - 2], b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", body])
        }
        Manner::LongHead(n) => write(&[&head[..head.len() - 2], b"x-long: ", &vec![b'a'; n], b"\r\n\r\n", body]),
        _ => write(&[head, body]),
    }
    match manner {
        Manner::Nothing(ms) | Manner::Silent(ms) | Manner::HalfHead(ms) | Manner::HalfBody(ms) => wait(&stream, ms),
        Manner::Bytes(n) => {
            let (mut buffer, mut n_left) = ([0; 64], n);
            while n_left > 0 {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(n) => n_left = n_left.saturating_sub(n),
                }
            }
            Sent::Left
        }
        Manner::Slow(ms) => {
            let (mut buffer, start) = ([0; 64], Instant::now());
            while start.elapsed() < Duration::from_millis(ms) && stream.read(&mut buffer).is_ok_and(|n| n > 0) {
                std::thread::sleep(Duration::from_millis(20));
            }
            Sent::Left
        }
        _ => read(stream).map_or_else(Sent::Failed, |(status, body)| Sent::Answer(status, body)),
    }
}

fn connect(address: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).context("it takes no connection")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn head(method: &str, path: &str, key: &str, n_bytes: usize) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ncontent-length: {n_bytes}\r\n\r\n"
    )
}

fn read(mut stream: TcpStream) -> Result<(u16, String)> {
    let mut bytes = Vec::new();
    let result = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    match (status, result) {
        (Some(status), _) => {
            Ok((status, text.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())))
        }
        (None, Ok(_)) => anyhow::bail!("the connection was closed"),
        (None, Err(error)) => Err(error).context("no answer"),
    }
}

/// Returns what the server tells about itself.
pub(super) fn metrics(address: &str) -> Result<String> {
    let mut stream = connect(address)?;
    stream.write_all(head("GET", "/metrics", KEY, 0).as_bytes())?;
    Ok(read(stream)?.1)
}

/// Begins an answer that takes long.
pub(super) fn open_long(address: &str) -> Result<TcpStream> {
    let mut stream = connect(address)?;
    let body: Value = json!({ "prompt": "Once", "max_tokens": 1900, "ignore_eos": true, "stream": true });
    let body = body.to_string();
    stream.write_all(head("POST", "/v1/completions", KEY, body.len()).as_bytes())?;
    stream.write_all(body.as_bytes())?;
    stream.read_exact(&mut [0; 64]).context("no answer begins")?;
    Ok(stream)
}
