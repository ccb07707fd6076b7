//! A server that gives prepared answers, one a connection, and remembers what it was asked.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// An answer, as it goes over the wire.
#[derive(Clone)]
pub(crate) struct Answer {
    status: u16,
    content_type: &'static str,
    headers: String,
    body: String,
    then: Then,
}

/// Behaviour after the body.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    Close,
    /// The body again and again.
    Repeat,
    /// Nothing, until the other side closes.
    Wait,
    /// That without a head and a body before.
    WaitAtOnce,
}

impl Answer {
    pub(crate) fn status(status: u16, body: &str) -> Answer {
        let (content_type, headers) = ("application/json", String::new());
        Answer { status, content_type, headers, body: body.to_owned(), then: Then::Close }
    }

    pub(crate) fn json(body: &str) -> Answer {
        Answer::status(200, body)
    }

    pub(crate) fn stream(body: &str) -> Answer {
        Answer { content_type: "text/event-stream", ..Answer::status(200, body) }
    }

    /// The body again and again, until nobody reads it.
    pub(crate) fn endless(body: &str) -> Answer {
        Answer { then: Then::Repeat, ..Answer::stream(body) }
    }

    /// The body, and nothing more until nobody waits.
    pub(crate) fn silent(body: &str) -> Answer {
        Answer { then: Then::Wait, ..Answer::stream(body) }
    }

    /// Nothing at all until nobody waits.
    pub(crate) fn mute() -> Answer {
        Answer { then: Then::WaitAtOnce, ..Answer::stream("") }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }
}

pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) authorization: Option<String>,
    pub(crate) body: String,
}

pub(crate) struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
    closed: Receiver<()>,
}

impl Server {
    pub(crate) fn start(answers: impl IntoIterator<Item = Answer>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it listens").port();
        let (requests, answers) = (Arc::new(Mutex::new(Vec::new())), answers.into_iter().collect::<Vec<_>>());
        let (told, closed) = channel();
        let of_thread = Arc::clone(&requests);
        std::thread::spawn(move || {
            for answer in answers {
                let Ok((stream, _)) = listener.accept() else { return };
                let request = read(&stream);
                of_thread.lock().expect("no test panics with it").push(request);
                if write(&stream, &answer).is_err() {
                    let _ = told.send(());
                }
            }
        });
        Server { port, requests, closed }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/v1/", self.port)
    }

    pub(crate) fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        self.requests.lock().expect("no test panics with it")
    }

    pub(crate) fn wait_until_closed(&self) {
        self.closed.recv_timeout(Duration::from_secs(20)).expect("the other side leaves");
    }
}

fn read(stream: &TcpStream) -> Request {
    let (mut reader, mut n_body, mut authorization) = (BufReader::new(stream), 0, None);
    let mut first = String::new();
    reader.read_line(&mut first).expect("a request");
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a request");
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ") {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => n_body = value.parse().expect("a number"),
                "authorization" => authorization = Some(value.to_owned()),
                _ => {}
            }
        }
    }
    let mut body = String::new();
    reader.take(n_body).read_to_string(&mut body).expect("a body");
    Request { path, authorization, body }
}

fn write(mut stream: &TcpStream, answer: &Answer) -> std::io::Result<()> {
    let Answer { status, content_type, headers, body, then } = answer;
    let head = format!("HTTP/1.1 {status} \r\ncontent-type: {content_type}\r\n{headers}connection: close\r\n\r\n");
    if *then == Then::WaitAtOnce {
        return wait(stream);
    }
    stream.write_all(head.as_bytes())?;
    loop {
        stream.write_all(body.as_bytes())?;
        match then {
            Then::Close => return Ok(()),
            Then::Repeat => {}
            Then::Wait | Then::WaitAtOnce => return wait(stream),
        }
    }
}

/// Waits until the other side closes, which counts as a write that failed.
fn wait(mut stream: &TcpStream) -> std::io::Result<()> {
    while stream.read(&mut [0])? > 0 {}
    Err(std::io::ErrorKind::ConnectionAborted.into())
}
