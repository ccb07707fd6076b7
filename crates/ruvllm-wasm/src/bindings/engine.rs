//! The engine, for the worker.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use js_sys::Function;
use ruvllm_api::error::ApiError;
use ruvllm_engine::EngineError;
use ruvllm_gguf::ByteSource;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use wasm_bindgen::prelude::*;

use crate::engine::{WebEngine, check_size, error_json};
use crate::options::WebProgress;

/// Bytes of a file that are hashed at once.
const HASHED_BYTES: usize = 1 << 20;

#[wasm_bindgen]
extern "C" {
    /// A file outside of the module's memory, as `reader.js` has it.
    pub type Reader;

    /// Returns the length of the file, in bytes.
    #[wasm_bindgen(method, getter)]
    fn size(this: &Reader) -> f64;

    /// Reads bytes from an offset on into `to`; returns how many.
    #[wasm_bindgen(method, catch, js_name = readAt)]
    fn read_at(this: &Reader, offset: f64, to: &mut [u8]) -> Result<f64, JsValue>;
}

thread_local! {
    /// Readers of the files that are in use, by number: values of JavaScript stay with their thread, and an engine may not.
    static READERS: RefCell<BTreeMap<u32, Reader>> = const { RefCell::new(BTreeMap::new()) };
}

/// A file that a [`Reader`] reads, until it is dropped.
struct ReaderSource {
    id: u32,
    n_bytes: u64,
}

impl ReaderSource {
    fn new(reader: Reader) -> ReaderSource {
        let n_bytes = reader.size() as u64;
        let id = READERS.with_borrow_mut(|readers| {
            let id = readers.last_key_value().map_or(0, |(last, _)| last + 1);
            readers.insert(id, reader);
            id
        });
        ReaderSource { id, n_bytes }
    }
}

impl Drop for ReaderSource {
    fn drop(&mut self) {
        READERS.with_borrow_mut(|readers| readers.remove(&self.id));
    }
}

impl ByteSource for ReaderSource {
    fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    fn read_at(&self, offset: u64, to: &mut [u8]) -> io::Result<usize> {
        READERS.with_borrow(|readers| {
            let reader = readers.get(&self.id).ok_or_else(|| io::Error::other("it is another thread's"))?;
            let n = reader.read_at(offset as f64, to).map_err(|error| io::Error::other(line_of(&error)))?;
            Ok(n as usize)
        })
    }
}

/// Returns the line of an error of JavaScript.
fn line_of(error: &JsValue) -> String {
    let message = error.dyn_ref::<js_sys::Error>().map(|error| String::from(error.message()));
    message.or_else(|| error.as_string()).unwrap_or_else(|| "an unknown error".to_owned())
}

/// A loaded model.
#[wasm_bindgen]
pub struct WasmEngine(WebEngine);

#[cfg(not(feature = "gpu"))]
#[wasm_bindgen]
impl WasmEngine {
    /// Loads a file. `progress` is called with a phase, and how many of how many.
    ///
    /// # Errors
    /// As [`WebEngine::load`].
    pub fn load(
        file: Reader,
        options: String,
        calibration: Option<Vec<u8>>,
        progress: Function,
    ) -> Result<WasmEngine, JsValue> {
        load(file, &options, calibration.as_deref(), &progress)
    }

    /// Computes one step; returns whether there was something to compute.
    pub fn step(&mut self) -> bool {
        self.0.step()
    }
}

/// Calls that wait for the GPU: they return promises.
#[cfg(feature = "gpu")]
#[wasm_bindgen]
#[expect(deprecated, reason = "the attribute is marked as experimental, and the version is pinned")]
impl WasmEngine {
    /// Loads a file. `progress` is called with a phase, and how many of how many.
    ///
    /// # Errors
    /// As [`WebEngine::load`].
    #[wasm_bindgen(jspi)]
    pub fn load(
        file: Reader,
        options: String,
        calibration: Option<Vec<u8>>,
        progress: Function,
    ) -> Result<WasmEngine, JsValue> {
        load(file, &options, calibration.as_deref(), &progress)
    }

    /// Computes one step; returns whether there was something to compute.
    #[wasm_bindgen(jspi)]
    pub fn step(&mut self) -> bool {
        self.0.step()
    }
}

fn load(file: Reader, options: &str, calibration: Option<&[u8]>, progress: &Function) -> Result<WasmEngine, JsValue> {
    let mut tell = |WebProgress { phase, done, total }| {
        // A callback that throws hears no more than one that does not.
        let _ = progress.call3(&JsValue::NULL, &phase.into(), &(done as f64).into(), &(total as f64).into());
    };
    let source = Arc::new(ReaderSource::new(file));
    WebEngine::load(source, options, calibration, &mut tell).map(WasmEngine).map_err(thrown)
}

#[wasm_bindgen]
impl WasmEngine {
    /// Returns the name of the model in answers.
    pub fn model(&self) -> String {
        self.0.model().to_owned()
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

/// Checks that a file of so many bytes can be loaded.
///
/// # Errors
/// It is too large.
#[wasm_bindgen(js_name = checkSize)]
pub fn check_file_size(n_bytes: f64) -> Result<(), JsValue> {
    check_size(n_bytes as u64).map_err(thrown)
}

/// Returns the SHA-256 of a file, as hexadecimal digits.
///
/// # Errors
/// It cannot be read.
#[wasm_bindgen(js_name = sha256Of)]
pub fn sha256_of(file: Reader) -> Result<String, JsValue> {
    let (source, mut hash, mut piece) = (ReaderSource::new(file), Sha256::new(), vec![0; HASHED_BYTES]);
    for offset in (0..source.n_bytes).step_by(HASHED_BYTES) {
        let piece = &mut piece[..HASHED_BYTES.min((source.n_bytes - offset) as usize)];
        source.read_all_at(offset, piece).map_err(|error| thrown(ApiError::from(EngineError::from(error))))?;
        hash.update(piece);
    }
    Ok(hex::encode(hash.finalize()))
}

/// Returns an error as it is thrown: a text of JSON.
fn thrown(error: ApiError) -> JsValue {
    error_json(&error).to_string().into()
}
