//! A request under way: its answer's head, its body in chunks, and its end from outside.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use napi::bindgen_prelude::Buffer;
use napi_derive::napi;
use ruvllm_server::{Embedded, EmbeddedCall};

/// The most bytes that are given at once, where more are there.
const CHUNK_BYTES: usize = 64 << 10;

/// Head of an answer.
#[napi(object)]
pub struct ResponseHead {
    /// Status of HTTP.
    pub status: u32,
    /// Names and values of headers.
    pub headers: Vec<Vec<String>>,
}

/// A request under way.
#[napi]
pub struct NativeCall(EmbeddedCall);

impl NativeCall {
    pub(crate) fn new(embedded: Arc<Embedded>, request: Request<Bytes>) -> NativeCall {
        NativeCall(EmbeddedCall::new(embedded, request))
    }
}

#[napi]
impl NativeCall {
    /// Begins the request and waits for the head of its answer; `None` if it was begun before or cancelled.
    #[napi]
    pub async fn head(&self) -> Option<ResponseHead> {
        let parts = self.0.head().await?;
        let header = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            vec![name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()]
        };
        Some(ResponseHead { status: parts.status.as_u16().into(), headers: parts.headers.iter().map(header).collect() })
    }

    /// Waits for bytes of the answer and returns all that are there; `None` at the end, and if it was cancelled.
    #[napi]
    pub async fn next(&self) -> Option<Buffer> {
        self.0.next(CHUNK_BYTES).await.map(|bytes| Vec::from(bytes).into())
    }

    /// Ends the request: it leaves the engine within a step.
    #[napi]
    pub fn cancel(&self) {
        self.0.cancel();
    }
}
