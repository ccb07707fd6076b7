//! Bytes that are no request: each gets a status or a closed connection, memory stays bounded, and the server goes on.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_server::{ServerOptions, TlsOptions};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::client::{Bench, options};

/// How long a connection may take to be over.
const LIMIT: Duration = Duration::from_secs(10);
/// By how much the process may grow, in bytes.
const GROWTH_MAX: u64 = 256 << 20;

/// Seeded numbers (xorshift64, Marsaglia 2003).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next() as u8).collect()
    }
}

fn impatient() -> ServerOptions {
    let (header_timeout, body_timeout) = (Duration::from_millis(500), Duration::from_secs(1));
    ServerOptions { header_timeout, body_timeout, ..options() }
}

/// Returns the bytes of memory that this process holds, the server among it.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()).map_or(0, |kb| kb << 10)
}

/// Writes bytes to a new connection; that the server closed it meanwhile is an answer as well.
fn send(bench: &Bench, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(bench.address).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
    stream.set_write_timeout(Some(LIMIT)).expect("a timeout");
    if let Err(error) = stream.write_all(bytes) {
        assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "nobody reads: {error}");
    }
    stream
}

/// Reads until the connection is closed, or `is_enough` of what came.
#[track_caller]
fn read_until(mut stream: TcpStream, what: &str, is_enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let (start, mut all, mut buffer) = (Instant::now(), Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(n) => all.extend_from_slice(&buffer[..n]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("{what}: neither a status nor a closed connection after {:?}", start.elapsed())
            }
            // Reset: closed.
            Err(_) => return all,
        }
        if is_enough(&all) {
            return all;
        }
        assert!(start.elapsed() < LIMIT && all.len() < 1 << 20, "{what}: {} bytes and no end", all.len());
    }
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames (RFC 9113, 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Returns header fields as literals without an index (RFC 7541, 6.2.2).
fn fields(all: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in all {
        bytes.extend([0, name.len() as u8]);
        bytes.extend(name.bytes());
        bytes.push(value.len() as u8);
        bytes.extend(value.bytes());
    }
    bytes
}

/// Returns a call of a method as a client writes it, with any bytes for a body.
fn call(path: &str, content_type: Option<&str>, body: &[u8], ends: bool) -> Vec<u8> {
    let mut head = vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
    ];
    head.extend(content_type.map(|value| ("content-type", value)));
    let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    bytes.extend(frame(HEADERS, END_HEADERS, 1, &fields(&head)));
    bytes.extend(frame(DATA, if ends { END_STREAM } else { 0 }, 1, body));
    bytes
}

/// Returns whether a frame among the bytes ends a stream or a connection, or begins an answer.
fn has_answer(mut bytes: &[u8]) -> bool {
    while let Some((head, rest)) = bytes.split_at_checked(9) {
        if [HEADERS, RST_STREAM, GOAWAY].contains(&head[3]) {
            return true;
        }
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(rest) = rest.get(len..) else { return false };
        bytes = rest;
    }
    false
}

/// Returns a message with its prefix: whether it is compressed, and its length.
fn message(flag: u8, n_bytes: u32, bytes: &[u8]) -> Vec<u8> {
    [&[flag], &n_bytes.to_be_bytes()[..], bytes].concat()
}

fn grpc_cases(rng: &mut Rng) -> Vec<(String, Vec<u8>)> {
    const TYPE: Option<&str> = Some("application/grpc");
    const METHODS: [&str; 3] = ["Generate", "Embed", "Tokenize"];
    let path = |method: &str| format!("/ruvllm.v1.Ruvllm/{method}");
    let mut cases = Vec::new();
    for method in METHODS {
        let path = path(method);
        let mut add = |what: &str, bytes: Vec<u8>| cases.push((format!("{method}: {what}"), bytes));
        add("no message", call(&path, TYPE, &[], true));
        add("half a prefix", call(&path, TYPE, &[0, 0, 0], true));
        add("shorter than it says", call(&path, TYPE, &message(0, 100, &[1; 10]), true));
        add("4 GiB by its prefix", call(&path, TYPE, &message(0, u32::MAX, &[1; 10]), true));
        add("4 GiB and more to come", call(&path, TYPE, &message(0, u32::MAX, &[1; 10]), false));
        add("compressed, by its prefix", call(&path, TYPE, &message(1, 10, &[1; 10]), true));
        add("a flag that is none", call(&path, TYPE, &message(7, 10, &[1; 10]), true));
        // A text of 2^63 bytes; a number of eleven bytes; groups in groups; a field number 0.
        add("a huge text", call(&path, TYPE, &message(0, 11, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x41"), true));
        add("a long number", call(&path, TYPE, &message(0, 12, &[&[8][..], &[0xff; 11]].concat()), true));
        add("many groups", call(&path, TYPE, &message(0, 9000, &[0x0b; 9000]), true));
        add("no field", call(&path, TYPE, &message(0, 2, &[0, 0]), true));
        add("no text", call(&path, TYPE, &message(0, 4, b"\x0a\x02\xff\xfe"), true));
        for content_type in
            [None, Some(""), Some("text/plain"), Some("application/grpc+json"), Some("application/json")]
        {
            add(&format!("{content_type:?}"), call(&path, content_type, &message(0, 3, &[10, 1, 65]), true));
        }
    }
    for path in ["/", "/ruvllm.v1.Ruvllm", "/ruvllm.v1.Ruvllm/", "/ruvllm.v1.Ruvllm/Nothing", "/a.b/Generate"] {
        cases.push((format!("path {path}"), call(path, TYPE, &message(0, 0, &[]), true)));
    }
    for i in 0..150 {
        let n = rng.below(200);
        let (method, bytes) = (METHODS[i % 3], rng.bytes(n));
        let body = if i % 2 == 0 { message(0, n as u32, &bytes) } else { bytes };
        cases.push((format!("{method}: random {i}"), call(&path(method), TYPE, &body, true)));
    }
    cases
}

#[test]
fn grpc_garbage_gets_a_status() {
    let bench = Bench::tiny(impatient());
    let (before, mut rng) = (resident(), Rng(0x9e37_79b9_7f4a_7c15));
    let cases = grpc_cases(&mut rng);
    assert!(cases.len() >= 200, "{} cases", cases.len());
    for (i, (what, bytes)) in cases.iter().enumerate() {
        let answer = read_until(send(&bench, bytes), what, has_answer);
        assert!(has_answer(&answer), "{what}: closed without a status");
        // Cut anywhere, and nothing more comes.
        let stream = send(&bench, &bytes[..rng.below(bytes.len())]);
        let _ = stream.shutdown(Shutdown::Write);
        read_until(stream, &format!("{what}, cut"), |_| false);
        if i % 20 == 0 {
            assert_eq!(bench.get("/health").status, 200, "after {what}");
        }
    }
    assert_eq!(bench.get("/health").status, 200);
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes more");
}

#[test]
fn frames_that_are_none_end_their_connection() {
    let bench = Bench::tiny(impatient());
    let (before, mut rng) = (resident(), Rng(0x2545_f491_4f6c_dd1d));
    let begin = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let head = fields(&[(":method", "GET"), (":scheme", "http"), (":path", "/health"), (":authority", "a")]);
    let floods = [
        (
            "resets",
            (0..500)
                .flat_map(|i| [frame(HEADERS, 5, 2 * i + 1, &head), frame(RST_STREAM, 0, 2 * i + 1, &[0; 4])].concat())
                .collect(),
        ),
        ("continuations", [frame(HEADERS, 0, 1, &head), frame(CONTINUATION, 0, 1, &[0; 16000]).repeat(400)].concat()),
        ("settings", frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, 0xff]).repeat(5000)),
        ("an empty name", frame(HEADERS, 5, 1, &[0, 0, 0])),
        ("a string of 2^28 bytes", frame(HEADERS, 5, 1, &[0, 0x7f, 0xff, 0xff, 0xff, 0x7f, 65])),
        ("a window beyond 2^31", frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("a frame of 16 MiB", vec![0xff, 0xff, 0xff, DATA, 0, 0, 0, 0, 1]),
        ("data of no stream", frame(DATA, 0, 77, &[0; 100])),
        ("the wrong number of a stream", frame(HEADERS, 5, 2, &head)),
    ];
    for (what, bytes) in floods {
        let bytes: Vec<u8> = bytes;
        let stream = send(&bench, &[&begin[..], &bytes].concat());
        let _ = stream.shutdown(Shutdown::Write);
        read_until(stream, what, |_| false);
        assert_eq!(bench.get("/health").status, 200, "after {what}");
    }
    for i in 0..150 {
        let n = 1 + rng.below(400);
        let random = rng.bytes(n);
        // Behind the preface, in its place, and as a frame of a random type.
        let bytes = match i % 3 {
            0 => [&begin[..], &random].concat(),
            1 => random,
            _ => [&begin[..], &frame(random[0], random[n / 2], rng.below(5) as u32, &random)].concat(),
        };
        let stream = send(&bench, &bytes);
        let _ = stream.shutdown(Shutdown::Write);
        read_until(stream, &format!("random {i}"), |_| false);
    }
    assert_eq!(bench.get("/health").status, 200);
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes more");
}

/// Returns one of the certificates of the tests, or its key.
fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn client() -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data("a.crt")).expect("a certificate")).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientConnection::new(Arc::new(config), "localhost".try_into().expect("a name")).expect("a client")
}

/// Asks for `/health` over TLS.
fn is_healthy(bench: &Bench) -> bool {
    let mut stream =
        tokio_rustls::rustls::StreamOwned::new(client(), TcpStream::connect(bench.address).expect("it listens"));
    let asked = stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let mut answer = Vec::new();
    let _ = asked.and_then(|()| stream.read_to_end(&mut answer));
    answer.starts_with(b"HTTP/1.1 200 OK")
}

#[test]
fn tls_garbage_closes_its_connection() {
    let tls = TlsOptions { cert: data("a.crt"), key: data("a.key") };
    let bench = Bench::tiny(ServerOptions { tls: Some(tls), ..impatient() });
    let (before, mut rng) = (resident(), Rng(0xd1b5_4a32_d192_ed03));
    let mut hello = Vec::new();
    client().write_tls(&mut hello).expect("memory");
    let mut cases = vec![
        ("nothing".to_owned(), Vec::new()),
        ("plain HTTP".to_owned(), b"GET /health HTTP/1.1\r\n\r\n".to_vec()),
        ("HTTP/2".to_owned(), PREFACE.to_vec()),
        ("a record of 65,535 bytes".to_owned(), vec![22, 3, 1, 0xff, 0xff, 1]),
        ("a handshake of 16 MiB".to_owned(), vec![22, 3, 1, 0, 4, 1, 0xff, 0xff, 0xff]),
        ("alerts".to_owned(), [21, 3, 3, 0, 2, 1, 0].repeat(2000)),
        ("a hello again and again".to_owned(), hello.repeat(20)),
        ("application data first".to_owned(), [&[23, 3, 3, 0, 16][..], &[7; 16]].concat()),
    ];
    for i in 0..24 {
        cases.push((format!("half a hello {i}"), hello[..hello.len() * i / 24].to_vec()));
        let mut changed = hello.clone();
        let at = rng.below(changed.len());
        changed[at] ^= 1 << rng.below(8);
        // Whatever the server makes of it, the rest of the handshake never comes.
        cases.push((format!("a changed hello {i}"), changed));
        let n = 1 + rng.below(300);
        cases.push((format!("random {i}"), rng.bytes(n)));
        let n = 1 + rng.below(300);
        cases.push((format!("a hello, then random {i}"), [&hello[..], &rng.bytes(n)].concat()));
    }
    // At once: each silent one takes half a second.
    for some in cases.chunks(20) {
        let streams: Vec<_> = some.iter().map(|(what, bytes)| (what, send(&bench, bytes))).collect();
        for (what, stream) in streams {
            let answer = read_until(stream, what, |_| false);
            assert!(!String::from_utf8_lossy(&answer).contains("200 OK"), "{what}");
        }
        assert!(is_healthy(&bench), "after {}", some[0].0);
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < GROWTH_MAX, "{grown} bytes more");
}
