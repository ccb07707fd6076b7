//! Encrypted connections.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ruvllm_server::{ServerOptions, TlsOptions};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{Bench, options};

/// Returns one of the two certificates of the tests, or its key.
fn data(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Asks for `/health` over TLS, trusting one certificate alone.
fn ask(bench: &Bench, trusted: &str) -> Result<String, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data(trusted)).expect("a certificate")).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connection =
        ClientConnection::new(Arc::new(config), "localhost".try_into().expect("a name")).expect("a client");
    let mut stream = StreamOwned::new(connection, TcpStream::connect(bench.address)?);
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if answer.is_empty() => Err(error),
        _ => Ok(String::from_utf8_lossy(&answer).into_owned()),
    }
}

#[test]
fn connections_are_encrypted_by_the_certificate_that_is_there() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let tls = TlsOptions { cert: folder.path().join("cert"), key: folder.path().join("key") };
    let copy = |name: &str| {
        std::fs::copy(data(&format!("{name}.key")), &tls.key).expect("copied");
        std::fs::copy(data(&format!("{name}.crt")), &tls.cert).expect("copied");
    };
    copy("a");
    let bench =
        Bench::tiny(ServerOptions { tls: Some(tls.clone()), header_timeout: Duration::from_millis(500), ..options() });
    assert!(ask(&bench, "a.crt").expect("an answer").starts_with("HTTP/1.1 200 OK"));
    assert!(ask(&bench, "b.crt").is_err(), "a certificate that is not trusted");
    // Not encrypted, and silent: neither is waited for.
    let mut plain = bench.write("GET /health HTTP/1.1\r\n\r\n");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains("200 OK"));
    let _ = bench.write("").read_to_end(&mut answer);
    // Another certificate takes its place while the server runs.
    copy("b");
    let start = std::time::Instant::now();
    while ask(&bench, "b.crt").is_err() {
        assert!(start.elapsed() < Duration::from_secs(10), "the new certificate is not used");
        std::thread::sleep(Duration::from_millis(50));
    }
}
