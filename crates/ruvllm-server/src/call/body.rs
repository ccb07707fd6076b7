//! Bodies of requests: read within limits of bytes, time and memory, and parsed.

use std::pin::Pin;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use ruvllm_api::error::ApiError;
use ruvllm_api::strict_json::Strict;
use ruvllm_server_state::keys::Tenant;
use ruvllm_server_state::options::ServerOptions;
use ruvllm_server_state::shared::{Share, Shared};
use serde_json::Value;

/// Most memory for what becomes of one body.
const PARSED_BYTES_MAX: usize = 128 << 20;
/// Bodies that are longer take a while to read and to parse.
pub(crate) const LONG_BYTES: usize = 64 << 10;

/// A body, and the memory that is kept for it.
pub(crate) struct Read {
    pub bytes: Bytes,
    pub part: Share,
}

/// A page elsewhere can make a browser send anything but JSON without asking first: what comes of a page is read as JSON only
/// if it says that it is. Browsers name the page; programs do not, and often say nothing of JSON (`curl -d`).
///
/// # Errors
/// 415: another content type, or an encoding that is not undone.
pub(crate) fn check_content(headers: &HeaderMap) -> Result<(), ApiError> {
    let encoding = headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !["", "identity"].contains(&encoding) {
        let line = format!("the body's encoding is '{encoding}'; send it as it is, or packed with gzip or deflate");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, line));
    }
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = given.split(';').next().unwrap_or_default().trim();
    let is_of_page = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    let untold = ["", "application/x-www-form-urlencoded"];
    if essence.eq_ignore_ascii_case("application/json") || (!is_of_page && untold.contains(&essence)) {
        return Ok(());
    }
    let line = format!("the body's content type is '{essence}'; send application/json");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, line))
}

/// Reads a body, within its limits of bytes and time, and in memory that `bodies` share.
///
/// # Errors
/// 413: too long; 408: too slow; 503: the bodies of others have the memory, or those of the same tenant.
pub(crate) async fn read(
    mut body: Body,
    options: &ServerOptions,
    bodies: &std::sync::Arc<Shared>,
    tenant: &Tenant,
) -> Result<Read, ApiError> {
    let limit = options.body_bytes_max;
    let too_large = || {
        let line = format!("the body is larger than {limit} bytes; send less");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, line)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let read = async {
        let mut bytes = BytesMut::new();
        let mut part = bodies.take(tenant.id, 0).ok_or_else(busy)?;
        while let Some(frame) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|error| {
                ApiError::new(StatusCode::BAD_REQUEST, format!("the body ended before its end: {error}"))
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > limit {
                return Err(too_large());
            }
            if !part.grow(data.len()) {
                return Err(busy());
            }
            bytes.extend_from_slice(&data);
        }
        Ok(Read { bytes: bytes.freeze(), part })
    };
    tokio::time::timeout(options.body_timeout, read).await.unwrap_or_else(|_| {
        let line = format!("the body did not come within {} s", options.body_timeout.as_secs());
        Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, line))
    })
}

/// Takes memory for what is no body but held beside one.
///
/// # Errors
/// 503: the bodies of others have the memory.
pub(crate) fn room(bodies: &std::sync::Arc<Shared>, tenant: u64, n_bytes: usize) -> Result<Share, ApiError> {
    bodies.take(tenant, n_bytes).ok_or_else(busy)
}

/// Parses what is no body but becomes part of a request, in the memory of bodies; what is kept for it comes with it.
///
/// # Errors
/// As [`parse`].
pub(crate) fn parse_more(
    bytes: Vec<u8>,
    bodies: &std::sync::Arc<Shared>,
    tenant: u64,
) -> Result<(Value, Share), ApiError> {
    let part = room(bodies, tenant, bytes.len())?;
    let mut read = Read { bytes: bytes.into(), part };
    Ok((parse(&mut read)?, read.part))
}

/// Parses a body, in memory that is kept for it.
///
/// # Errors
/// 400: no JSON, or a key that stands twice in an object; 413: a body of so many small values that it would take too much
/// memory; 503 as [`read`].
pub(crate) fn parse(read: &mut Read) -> Result<Value, ApiError> {
    let n_bytes = parsed_bytes(&read.bytes);
    if n_bytes > PARSED_BYTES_MAX {
        let (n, max) = (n_bytes >> 20, PARSED_BYTES_MAX >> 20);
        let line = format!("the values of the body would take {n} MiB, and {max} are the most; send fewer at once");
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, line));
    }
    if !read.part.grow(n_bytes) {
        return Err(busy());
    }
    serde_json::from_slice(&read.bytes).map(|Strict(value)| value).map_err(|error| {
        ApiError::new(StatusCode::BAD_REQUEST, format!("the body is no JSON: {error}")).code("invalid_json")
    })
}

/// Returns the bytes that the values of a JSON text take at most, as its punctuation tells; texts count by their length.
fn parsed_bytes(text: &[u8]) -> usize {
    let (mut n_bytes, mut is_text, mut is_escaped) = (text.len(), false, false);
    for byte in text {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            // A value in a list of up to twice the length, a key and its place in a table, the beginning of such a table.
            b',' | b'[' if !is_text => n_bytes += 2 * size_of::<Value>(),
            b':' if !is_text => n_bytes += 160,
            b'{' if !is_text => n_bytes += 256,
            _ => {}
        }
    }
    n_bytes
}

fn busy() -> ApiError {
    let line = "the server has no memory for this body: those of other requests have it; try again";
    let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("overloaded");
    ApiError { retry_after_s: Some(1), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_becomes_of_a_body_is_known_before() {
        let value = size_of::<Value>();
        assert_eq!(parsed_bytes(br#""a,b:[{\"x,""#), 12);
        assert_eq!(parsed_bytes(b"[1,2,3]"), 7 + 3 * 2 * value);
        assert_eq!(parsed_bytes(br#"{"a":[]}"#), 8 + 256 + 160 + 2 * value);
    }

    #[test]
    fn many_small_values_are_refused_before_they_are_made() {
        let bytes = Bytes::from(format!("[{}[]]", "[],".repeat(1 << 20)));
        let part = Shared::new(384 << 20).take(1, bytes.len()).expect("there is room");
        let error = parse(&mut Read { bytes, part }).expect_err("too many values");
        assert_eq!(error.status, StatusCode::PAYLOAD_TOO_LARGE);
        assert!(error.message.starts_with("the values of the body would take"), "{}", error.message);
    }
}
