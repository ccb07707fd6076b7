//! Errors on their way to Python: `ruvllm.errors` makes an exception of what is told here.

use http::response::Parts;
use pyo3::prelude::*;
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_server::ServerError;

/// Reason why something failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Options of loading that cannot be honoured.
    Usage(String),
    /// A model that cannot be found, fetched, read or loaded, or an end that was not clean.
    Load(String),
    /// An error of the HTTP API: its status, its body in OpenAI's shape and the header `retry-after`.
    Api { status: u16, body: String, retry_after: Option<String> },
    /// A fault of the caller of this module, or of the runtime.
    Internal(String),
}

impl Failure {
    /// Returns the error that an answer of the HTTP API tells.
    pub(crate) fn of_answer(head: &Parts, body: &[u8]) -> Failure {
        let retry_after = head.headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        Failure::Api {
            status: head.status.as_u16(),
            body: String::from_utf8_lossy(body).into_owned(),
            retry_after: retry_after.map(str::to_owned),
        }
    }
}

impl From<ruvllm_cli::Error> for Failure {
    fn from(error: ruvllm_cli::Error) -> Failure {
        let line = error.line().unwrap_or_else(|| "interrupted".to_owned());
        if error.exit_code() == 2 { Failure::Usage(line) } else { Failure::Load(line) }
    }
}

impl From<ServerError> for Failure {
    fn from(error: ServerError) -> Failure {
        Failure::Load(error.to_string())
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Failure {
        Failure::Api {
            status: error.status.as_u16(),
            body: error.body(Shape::OpenAi).to_string(),
            retry_after: error.retry_after_s.map(|seconds| seconds.to_string()),
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        let (name, args) = match failure {
            Failure::Usage(line) => ("of_usage", (line, None, None)),
            Failure::Load(line) => ("of_load", (line, None, None)),
            Failure::Internal(line) => ("of_internal", (line, None, None)),
            Failure::Api { status, body, retry_after } => ("of_answer", (body, Some(status), retry_after)),
        };
        // Without the interpreter there is nobody to tell.
        let made = Python::try_attach(|py| {
            let errors = py.import("ruvllm.errors")?;
            Ok(PyErr::from_value(errors.call_method1(name, args)?))
        });
        match made {
            Some(Ok(error)) | Some(Err(error)) => error,
            None => pyo3::exceptions::PyRuntimeError::new_err("the interpreter is ending"),
        }
    }
}
