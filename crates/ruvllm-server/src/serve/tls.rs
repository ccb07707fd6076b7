//! Encrypted connections: a certificate and its key from files that are read again when they change.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ruvllm_server_state::options::TlsOptions;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The certificate as it is now.
#[derive(Debug)]
pub(crate) struct Tls {
    options: TlsOptions,
    state: Mutex<(Arc<ServerConfig>, [Option<SystemTime>; 2])>,
}

impl Tls {
    /// Reads the certificate and its key.
    ///
    /// # Errors
    /// One line: a file that cannot be read or holds none, or a key that is another certificate's.
    pub(crate) fn new(options: TlsOptions) -> Result<Tls, String> {
        let modified = modified(&options);
        let config = read(&options)?;
        Ok(Tls { options, state: Mutex::new((Arc::new(config), modified)) })
    }

    /// Returns what encrypts a new connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        TlsAcceptor::from(Arc::clone(&state.0))
    }

    /// Reads the files again if they have changed; connections that are open stay as they are.
    pub(crate) fn look(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let modified = modified(&self.options);
        if modified == state.1 {
            return;
        }
        match read(&self.options) {
            Ok(config) => {
                *state = (Arc::new(config), modified);
                tracing::info!("the certificate was read again");
            }
            // One of the two is being written: the next look finds both.
            Err(line) => tracing::error!(error = %line, "the certificate was not read again"),
        }
    }
}

fn modified(options: &TlsOptions) -> [Option<SystemTime>; 2] {
    [&options.cert, &options.key].map(|file| std::fs::metadata(file).and_then(|metadata| metadata.modified()).ok())
}

fn read(options: &TlsOptions) -> Result<ServerConfig, String> {
    let cannot = |file: &Path, error: &dyn std::fmt::Display| format!("cannot use {}: {error}", file.display());
    let of_cert = |error: &dyn std::fmt::Display| cannot(&options.cert, error);
    let certs: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(&options.cert).map_err(|error| of_cert(&error))?.collect();
    let certs = certs.map_err(|error| of_cert(&error))?;
    if certs.is_empty() {
        return Err(of_cert(&"it holds no certificate in PEM"));
    }
    let key = PrivateKeyDer::from_pem_file(&options.key).map_err(|error| cannot(&options.key, &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| of_cert(&error))?;
    let mut config = config.with_no_client_auth().with_single_cert(certs, key).map_err(|error| of_cert(&error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
