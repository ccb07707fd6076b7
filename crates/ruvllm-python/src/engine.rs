//! A loaded engine.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Request;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ruvllm_cli::EmbeddedModels;
use ruvllm_hub::Silent;
use ruvllm_learning::PublicKey;
use ruvllm_server::{Embedded, EmbeddedCall};
use serde::Deserialize;
use tokio::task::spawn_blocking;

use crate::call::NativeCall;
use crate::error::Failure;
use crate::floats::Floats;
use crate::pending::Pending;
use crate::progress::listener;
use crate::runtime::{self, OfProcess};

/// Models in this process that answer requests.
#[pyclass(frozen, module = "ruvllm._native")]
pub struct NativeEngine {
    embedded: OfProcess<Arc<Embedded>>,
    names: Vec<String>,
    home: PathBuf,
}

/// Loads models as `ruvllm serve` with these arguments does. Progress is told to `on_progress`, if it is given.
#[pyfunction]
#[pyo3(signature = (args, on_progress=None))]
pub fn load(args: Vec<String>, on_progress: Option<Py<PyAny>>) -> Pending {
    let load = move || {
        let listener: Arc<dyn ruvllm_hub::Progress + Send + Sync> = match on_progress {
            Some(on_progress) => Arc::new(listener(on_progress)),
            None => Arc::new(Silent),
        };
        let EmbeddedModels { names, models, options, home } = EmbeddedModels::load(&args, listener)?;
        let embedded = Embedded::start(models, options)?;
        embedded.prepare()?;
        Ok(NativeEngine { embedded: OfProcess::new(Arc::new(embedded)), names, home })
    };
    Pending::new(blocking(load), |_, engine| Ok(engine))
}

/// Does something that takes long on a thread of its own.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Result<T, Failure> {
    let broken = |_| Err(Failure::Internal("internal error; standard error tells where".to_owned()));
    spawn_blocking(work).await.unwrap_or_else(broken)
}

impl NativeEngine {
    fn embedded(&self) -> Result<Arc<Embedded>, Failure> {
        Ok(Arc::clone(self.embedded.get()?))
    }

    fn node_key(&self) -> Result<ruvllm_learning::SigningKey, Failure> {
        Ok(ruvllm_cli::node_key(&self.home)?)
    }
}

impl Drop for NativeEngine {
    fn drop(&mut self) {
        // Ending may wait for threads, which the interpreter does not.
        if let (Some(embedded), Ok(handle)) = (self.embedded.take(), runtime::handle()) {
            handle.spawn_blocking(move || drop(embedded));
        }
    }
}

#[pymethods]
impl NativeEngine {
    /// Names of the models; the first answers requests that name none.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Makes a call of a request; [`NativeCall::head`] begins it.
    #[pyo3(signature = (method, path, headers, body=None))]
    fn call(
        &self,
        method: &str,
        path: &str,
        headers: Vec<(String, String)>,
        body: Option<&[u8]>,
    ) -> PyResult<NativeCall> {
        let embedded = self.embedded()?;
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(body.map_or_else(Bytes::new, Bytes::copy_from_slice));
        let request = request.map_err(|error| Failure::Internal(format!("it is no request: {error}")))?;
        Ok(NativeCall::new(EmbeddedCall::new(embedded, request)))
    }

    /// Gives the logits after each of the last tokens, of all that are given unless `n_last` says how many.
    #[pyo3(signature = (tokens, n_last=None, model=None))]
    fn logits(&self, tokens: Vec<u32>, n_last: Option<usize>, model: Option<String>) -> PyResult<Pending> {
        let embedded = self.embedded()?;
        let n_rows = n_last.unwrap_or(tokens.len()).min(tokens.len());
        let logits = async move { Ok(embedded.logits(model.as_deref(), tokens, n_rows).await?) };
        Ok(Pending::new(logits, move |_, logits| Ok(Floats::new(logits, n_rows))))
    }

    /// Gives the embeddings that a body of `/v1/embeddings` with `encoding_format` `base64` asks for, and the tokens of its texts.
    fn embed(&self, body: &[u8]) -> PyResult<Pending> {
        let (embedded, body) = (self.embedded()?, Bytes::copy_from_slice(body));
        Ok(Pending::new(async move { embed(&embedded, body).await }, |_, embeddings| Ok(embeddings)))
    }

    /// Gives all that the first model has learned as a file that this node signs.
    fn export_learned(&self) -> PyResult<Pending> {
        let (embedded, key) = (self.embedded()?, self.node_key()?);
        let export = async move { Ok(embedded.export_learned(key).await?) };
        Ok(Pending::new(export, |py, file| Ok(PyBytes::new(py, &file).unbind())))
    }

    /// Puts what a file says in the place of all that the first model has learned. Files of this node and of those whose public
    /// keys are given are taken.
    fn import_learned(&self, file: Vec<u8>, trust: Vec<String>) -> PyResult<Pending> {
        let mut trusted = vec![self.node_key()?.public()];
        for text in &trust {
            let key = PublicKey::parse(text).map_err(|error| Failure::Usage(format!("trust: {error}")))?;
            trusted.push(key);
        }
        let embedded = self.embedded()?;
        let import = async move { Ok(embedded.import_learned(file, trusted).await?) };
        Ok(Pending::new(import, |_, generation| Ok(generation)))
    }

    /// Returns the public key that others need to trust files of this node.
    fn public_key(&self) -> PyResult<String> {
        Ok(self.node_key()?.public().to_string())
    }

    /// Ends what runs, keeps what was learned, and frees the models.
    fn dispose(&self) -> PyResult<Pending> {
        let embedded = self.embedded()?;
        let stop = move || {
            let engines = embedded.stop(Duration::ZERO)?;
            let kept = engines.iter().try_for_each(|engine| engine.flush_cache());
            kept.map_err(|error| Failure::Load(error.to_string()))
        };
        Ok(Pending::new(blocking(stop), |_, ()| Ok(())))
    }
}

/// An answer of `/v1/embeddings` whose numbers are packed.
#[derive(Deserialize)]
struct Embeddings {
    data: Vec<Embedding>,
    usage: Usage,
}

#[derive(Deserialize)]
struct Embedding {
    embedding: String,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: usize,
}

/// Asks for embeddings and unpacks them.
async fn embed(embedded: &Embedded, body: Bytes) -> Result<(Floats, usize), Failure> {
    let request = Request::post("/v1/embeddings").header(http::header::CONTENT_TYPE, "application/json");
    let request = request.body(body).expect("its parts are well formed");
    let (head, mut answer) = embedded.call(request).await.into_parts();
    let mut bytes = Vec::new();
    while let Some(more) = answer.next(usize::MAX).await {
        bytes.extend_from_slice(&more);
    }
    if !head.status.is_success() {
        return Err(Failure::of_answer(&head, &bytes));
    }
    let unread = |what: &dyn std::fmt::Display| Failure::Internal(format!("embeddings cannot be read: {what}"));
    let answer: Embeddings = serde_json::from_slice(&bytes).map_err(|error| unread(&error))?;
    let mut values = Vec::new();
    for Embedding { embedding } in &answer.data {
        let packed = STANDARD.decode(embedding).map_err(|error| unread(&error))?;
        values.extend(packed.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
    }
    Ok((Floats::new(values, answer.data.len()), answer.usage.prompt_tokens))
}
