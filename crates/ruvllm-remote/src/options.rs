//! Where the other server is, and how long it may take.

use std::time::Duration;

/// Options of a remote backend.
#[derive(Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// Address of the API, with its version: `http://127.0.0.1:8080/v1`.
    pub url: String,
    /// Name of the model; `None` takes the first that the server lists.
    pub model: Option<String>,
    /// Key that goes along as a bearer token. Whoever starts the program reads it from the environment or a file.
    pub key: Option<String>,
    /// Source of the key, such as the name of a variable: errors about the key name it.
    pub key_name: Option<String>,
    /// The longest wait for a connection.
    pub connect_timeout: Duration,
    /// The longest wait for the next bytes of an answer: reading the prompt counts.
    pub read_timeout: Duration,
    /// Attempts after the first, where the server cannot be reached or has no room.
    pub n_retries: u32,
}

impl RemoteOptions {
    /// Makes options with the usual times: 10 s for a connection, 10 minutes without bytes, 3 more attempts.
    pub fn new(url: impl Into<String>) -> RemoteOptions {
        RemoteOptions {
            url: url.into(),
            model: None,
            key: None,
            key_name: None,
            connect_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(600),
            n_retries: 3,
        }
    }
}

impl std::fmt::Debug for RemoteOptions {
    /// The key is not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RemoteOptions { url, model, connect_timeout, read_timeout, n_retries, key, key_name } = self;
        let mut shown = f.debug_struct("RemoteOptions");
        shown.field("url", url).field("model", model).field("has_key", &key.is_some()).field("key_name", key_name);
        shown.field("connect_timeout", connect_timeout).field("read_timeout", read_timeout);
        shown.field("n_retries", n_retries).finish()
    }
}
