//! The engine, for the worker.

use js_sys::Function;
use ruvllm_api::error::ApiError;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wasm_bindgen::prelude::*;

use crate::engine::{FILE_BYTES_MAX, WebEngine, check_size, error_json};
use crate::options::WebProgress;

/// A file on its way into the module's memory, piece by piece.
#[wasm_bindgen]
pub struct ModelFile {
    bytes: Vec<u8>,
    n_bytes: usize,
}

#[wasm_bindgen]
impl ModelFile {
    /// Makes room for a file of so many bytes.
    ///
    /// # Errors
    /// It is too large, or there is not so much memory.
    #[wasm_bindgen(constructor)]
    pub fn new(n_bytes: f64) -> Result<ModelFile, JsValue> {
        check_size(n_bytes as u64).map_err(thrown)?;
        let (mut bytes, n_bytes) = (Vec::new(), n_bytes as usize);
        if bytes.try_reserve_exact(n_bytes).is_err() {
            let line = format!("the page has no memory for {n_bytes} bytes; load a smaller model");
            return Err(thrown(ApiError::new(http::StatusCode::SERVICE_UNAVAILABLE, line).code("no_memory")));
        }
        Ok(ModelFile { bytes, n_bytes })
    }

    /// Returns the SHA-256 of the bytes that came, as hexadecimal digits.
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(&self.bytes))
    }

    /// Adds the next piece.
    ///
    /// # Errors
    /// There are more bytes than were said.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), JsValue> {
        if self.bytes.len() + piece.len() > self.n_bytes {
            let line = format!("the file has more than the {} bytes that were said; fetch it again", self.n_bytes);
            return Err(thrown(ApiError::bad("", line)));
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

/// A loaded model.
#[wasm_bindgen]
pub struct WasmEngine(WebEngine);

#[wasm_bindgen]
impl WasmEngine {
    /// Loads a file. `progress` is called with a phase, and how many of how many.
    ///
    /// # Errors
    /// As [`WebEngine::load`].
    pub fn load(
        file: ModelFile,
        options: &str,
        calibration: Option<Vec<u8>>,
        progress: &Function,
    ) -> Result<WasmEngine, JsValue> {
        if file.bytes.len() < file.n_bytes {
            let (n, of) = (file.bytes.len(), file.n_bytes);
            return Err(thrown(ApiError::bad("", format!("the file ends after {n} of {of} bytes; fetch it again"))));
        }
        let mut tell = |WebProgress { phase, done, total }| {
            // A callback that throws hears no more than one that does not.
            let _ = progress.call3(&JsValue::NULL, &phase.into(), &(done as f64).into(), &(total as f64).into());
        };
        WebEngine::load(file.bytes, options, calibration.as_deref(), &mut tell).map(WasmEngine).map_err(thrown)
    }

    /// Returns the name of the model in answers.
    pub fn model(&self) -> String {
        self.0.model().to_owned()
    }

    /// Computes one step; returns whether there was something to compute.
    pub fn step(&mut self) -> bool {
        self.0.step()
    }

    /// Begins a call of this kind; returns its number.
    ///
    /// # Errors
    /// As the server has them.
    pub fn start(&mut self, kind: &str, body: &str) -> Result<u32, JsValue> {
        let engine = &mut self.0;
        match kind {
            "chat" => engine.chat(body),
            "complete" => engine.complete(body),
            "embed" => engine.embed(body),
            "feedback" => engine.feedback(body),
            "remember" => engine.remember(body),
            _ => Err(ApiError::bad("", format!("no call is '{kind}'"))),
        }
        .map_err(thrown)
    }

    /// Returns what came of a call since the last time, as JSON; nothing once it is over.
    pub fn take(&mut self, id: u32) -> Option<String> {
        self.0.take(id).map(|taken| taken.to_string())
    }

    /// Ends a call.
    pub fn cancel(&mut self, id: u32) {
        self.0.cancel(id);
    }

    /// Answers a call of this kind at once.
    ///
    /// # Errors
    /// As the server has them.
    pub fn ask(&mut self, kind: &str, body: &str) -> Result<String, JsValue> {
        let engine = &mut self.0;
        let answer: Result<Value, ApiError> = match kind {
            "tokenize" => engine.tokenize(body),
            "detokenize" => engine.detokenize(body),
            "capabilities" => Ok(engine.capabilities()),
            "learning" => engine.learning(),
            "forget" => engine.forget(),
            _ => Err(ApiError::bad("", format!("no call is '{kind}'"))),
        };
        answer.map(|answer| answer.to_string()).map_err(thrown)
    }

    /// Returns what was learned.
    ///
    /// # Errors
    /// The model does not learn.
    #[wasm_bindgen(js_name = exportLearned)]
    pub fn export_learned(&self) -> Result<Vec<u8>, JsValue> {
        self.0.export_learned().map_err(thrown)
    }

    /// Puts what was exported in the place of what was learned.
    ///
    /// # Errors
    /// As [`WebEngine::import_learned`].
    #[wasm_bindgen(js_name = importLearned)]
    pub fn import_learned(&mut self, bytes: &[u8]) -> Result<String, JsValue> {
        self.0.import_learned(bytes).map(|status| status.to_string()).map_err(thrown)
    }

    /// Returns what learning was calibrated by.
    ///
    /// # Errors
    /// The model does not learn.
    pub fn calibration(&self) -> Result<Vec<u8>, JsValue> {
        self.0.calibration().map_err(thrown)
    }
}

/// Returns the most bytes of a file.
#[wasm_bindgen(js_name = fileBytesMax)]
pub fn file_bytes_max() -> f64 {
    FILE_BYTES_MAX as f64
}

/// Returns an error as it is thrown: a text of JSON.
fn thrown(error: ApiError) -> JsValue {
    error_json(&error).to_string().into()
}
