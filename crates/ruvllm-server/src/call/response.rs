//! Answers: a JSON value, an error as its API's clients read it, and what is held until an answer has been sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use ruvllm_api::error::{ApiError, Shape};
use serde_json::Value;

/// Returns an answer of one JSON value.
pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Returns the answer to a request that failed.
pub(crate) fn respond(error: &ApiError, shape: Shape) -> Response<Body> {
    let mut response = json_response(error.status, &error.body(shape));
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if error.status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// Keeps something until an answer has been sent to its end, or nobody takes it any more.
pub(crate) fn held<G: Send + Unpin + 'static>(response: Response<Body>, guard: G) -> Response<Body> {
    response.map(|body| Body::new(Held { body, _guard: guard }))
}

struct Held<G> {
    body: Body,
    _guard: G,
}

impl<G: Unpin> HttpBody for Held<G> {
    type Data = bytes::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
