//! A loaded engine.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use napi::bindgen_prelude::{Buffer, Uint8Array};
use napi_derive::napi;
use ruvllm_api::error::ApiError;
use ruvllm_learning::PublicKey;
use ruvllm_server::Embedded;
use tokio::task::spawn_blocking;

use crate::call::NativeCall;
use crate::error::{internal, of_api, of_command, of_server};

/// Models in this process that answer requests.
#[napi]
pub struct NativeEngine {
    /// Taken when the engine is disposed: the collector of JavaScript may keep this object long after that.
    embedded: Mutex<Option<Arc<Embedded>>>,
    names: Vec<String>,
    home: PathBuf,
}

impl NativeEngine {
    pub(crate) fn new(embedded: Arc<Embedded>, names: Vec<String>, home: PathBuf) -> NativeEngine {
        NativeEngine { embedded: Mutex::new(Some(embedded)), names, home }
    }

    /// # Errors
    /// The engine was disposed.
    fn embedded(&self) -> napi::Result<Arc<Embedded>> {
        let embedded = self.embedded.lock().unwrap_or_else(PoisonError::into_inner);
        embedded.clone().ok_or_else(|| internal("the engine was disposed"))
    }
}

#[napi]
impl NativeEngine {
    /// Names of the models; the first answers requests that name none.
    #[napi(getter)]
    pub fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// Makes a call of a request; [`NativeCall::head`] begins it.
    ///
    /// # Errors
    /// The method, the path or a header is none that HTTP has.
    #[napi]
    pub fn call(
        &self,
        method: String,
        path: String,
        headers: Vec<Vec<String>>,
        body: Option<Uint8Array>,
    ) -> napi::Result<NativeCall> {
        let mut request = Request::builder().method(method.as_str()).uri(path);
        for header in &headers {
            if let [name, value] = &header[..] {
                request = request.header(name, value);
            }
        }
        let body = body.map_or_else(Bytes::new, |body| Bytes::copy_from_slice(&body));
        let request = request.body(body).map_err(|error| internal(&format!("it is no request: {error}")))?;
        Ok(NativeCall::new(self.embedded()?, request))
    }

    /// Returns all that the first model has learned as a file that this node signs.
    ///
    /// # Errors
    /// It learns nothing, or the key of this node cannot be had.
    #[napi]
    pub async fn export_learned(&self) -> napi::Result<Buffer> {
        let key = ruvllm_cli::node_key(&self.home).map_err(|error| of_command(&error))?;
        let file = self.embedded()?.export_learned(key).await.map_err(|error| of_api(&error))?;
        Ok(file.into())
    }

    /// Puts what a file says in the place of all that the first model has learned. Files of this node and of those whose public
    /// keys are given are taken.
    ///
    /// # Errors
    /// It learns nothing, the file was changed or is of another model, or a stranger has signed it.
    #[napi]
    pub async fn import_learned(&self, file: Uint8Array, trust: Vec<String>) -> napi::Result<f64> {
        let own = ruvllm_cli::node_key(&self.home).map_err(|error| of_command(&error))?.public();
        let mut trusted = vec![own];
        for text in &trust {
            let key = PublicKey::parse(text).map_err(|error| ApiError::bad("trust", error.to_string()));
            trusted.push(key.map_err(|error| of_api(&error))?);
        }
        let generation = self.embedded()?.import_learned(file.to_vec(), trusted).await;
        Ok(generation.map_err(|error| of_api(&error))? as f64)
    }

    /// Returns the public key that others need to trust files of this node.
    ///
    /// # Errors
    /// It cannot be had.
    #[napi]
    pub fn public_key(&self) -> napi::Result<String> {
        Ok(ruvllm_cli::node_key(&self.home).map_err(|error| of_command(&error))?.public().to_string())
    }

    /// Ends what runs, keeps what was learned, and frees the models.
    ///
    /// # Errors
    /// An engine broke, or something could not be kept.
    #[napi]
    pub async fn dispose(&self) -> napi::Result<()> {
        let taken = self.embedded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let stop = move || {
            let Some(embedded) = taken else { return Ok(()) };
            let engines = embedded.stop(Duration::ZERO).map_err(|error| of_server(&error))?;
            engines.iter().try_for_each(|engine| engine.flush_cache()).map_err(|error| internal(&error.to_string()))
        };
        spawn_blocking(stop).await.map_err(|_| internal("the end broke off by an internal error"))?
    }
}
