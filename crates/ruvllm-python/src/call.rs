//! A request under way, as Python has it.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ruvllm_server::EmbeddedCall;

use crate::pending::Pending;
use crate::runtime::OfProcess;

/// The most bytes that are given at once, where more are there.
const CHUNK_BYTES: usize = 64 << 10;

/// A request under way.
#[pyclass(frozen, module = "ruvllm._native")]
pub struct NativeCall(OfProcess<Arc<EmbeddedCall>>);

impl NativeCall {
    pub(crate) fn new(call: EmbeddedCall) -> NativeCall {
        NativeCall(OfProcess::new(Arc::new(call)))
    }
}

/// Status and headers of an answer.
type Head = (u16, Vec<(String, String)>);

#[pymethods]
impl NativeCall {
    /// Begins the request; gives the status and the headers of its answer, `None` if it was cancelled.
    fn head(&self) -> PyResult<Pending> {
        let call = Arc::clone(self.0.get()?);
        let head = async move {
            let head = call.head().await.map(|parts| -> Head {
                let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
                    (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
                };
                (parts.status.as_u16(), parts.headers.iter().map(header).collect())
            });
            Ok(head)
        };
        Ok(Pending::new(head, |_, head| Ok(head)))
    }

    /// Gives the bytes of the answer that are there, once some are; `None` at the end, and if it was cancelled.
    fn next(&self) -> PyResult<Pending> {
        let call = Arc::clone(self.0.get()?);
        let next = async move { Ok(call.next(CHUNK_BYTES).await) };
        Ok(Pending::new(next, |py, next| Ok(next.map(|bytes| PyBytes::new(py, &bytes).unbind()))))
    }

    /// Ends the request: it leaves the engine within a step.
    fn cancel(&self) {
        // A child of the process that asked has no part in it.
        if let Ok(call) = self.0.get() {
            call.cancel();
        }
    }
}
