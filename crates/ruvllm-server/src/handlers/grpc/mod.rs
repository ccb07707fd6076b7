//! The gRPC API: generate, embed and tokenize, on the port of the HTTP API and with its keys, limits and checks.
//!
//! A message becomes a request of the HTTP API's fields and is checked against the same tables. `proto/ruvllm.proto`
//! describes it; `v1` is what `cargo xtask codegen` makes of that.

mod generate;
#[expect(unreachable_pub, reason = "generated")]
#[allow(clippy::all, reason = "generated")]
#[rustfmt::skip]
mod v1;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::ValidBody;
use ruvllm_engine::Readout;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::server::Server;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Code, Request, Response, Status};
use tracing::Instrument as _;

use crate::call::embed::read_out;
use crate::call::{Call, NewCall, span};
use v1::ruvllm_server::{Ruvllm, RuvllmServer};

/// Events that wait for a slow reader.
const N_EVENTS: usize = 64;

/// Adds the service to a router.
pub(crate) fn add(router: Router, server: &Arc<Server>) -> Router {
    let service = RuvllmServer::new(Api(Arc::clone(server)));
    let service = service.max_decoding_message_size(server.options().body_bytes_max);
    router.route_service("/ruvllm.v1.Ruvllm/{method}", service)
}

/// The service.
struct Api(Arc<Server>);

/// Answers of a stream on their way to the client.
pub(crate) struct Events(mpsc::Receiver<Result<v1::GenerateEvent, Status>>);

impl Stream for Events {
    type Item = Result<v1::GenerateEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

#[tonic::async_trait]
impl Ruvllm for Api {
    type GenerateStream = Events;

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Result<Response<Events>, Status> {
        let (headers, message) = parts(request);
        let answer = |call: Call| async move {
            let (sender, receiver) = mpsc::channel(N_EVENTS);
            let (limit, span) = (call.server.options().write_timeout, call.span.clone());
            let writing = generate::start(call).await?;
            let write = async move {
                tokio::select! {
                    _ = writing.write(&sender, limit) => {}
                    () = sender.closed() => {}
                }
            };
            tokio::spawn(write.instrument(span));
            Ok(Events(receiver))
        };
        let given = generate::given(message);
        self.enter("Generate", headers, given, answer).await
    }

    async fn embed(&self, request: Request<v1::EmbedRequest>) -> Result<Response<v1::EmbedResponse>, Status> {
        let (headers, v1::EmbedRequest { model, texts }) = parts(request);
        let answer = |call: Call| async move {
            let _slot = call.tenant.enter()?;
            let text = call.text()?.clone();
            let encode = move || {
                texts
                    .iter()
                    .map(|line| Ok(text.tokenizer().encode(line, EncodeOptions::EMBEDDED)?))
                    .collect::<Result<Vec<_>, _>>()
            };
            let inputs = offload(encode).await?;
            let n_tokens = inputs.iter().map(Vec::len).sum::<usize>() as u32;
            let mut embeddings = Vec::new();
            for tokens in inputs {
                embeddings.push(v1::Embedding { values: read_out(&call, tokens, Readout::Embedding(None)).await? });
            }
            Ok(v1::EmbedResponse { embeddings, n_tokens })
        };
        self.enter("Embed", headers, Ok(of_model(model)), answer).await
    }

    async fn tokenize(&self, request: Request<v1::TokenizeRequest>) -> Result<Response<v1::TokenizeResponse>, Status> {
        let (headers, message) = parts(request);
        let v1::TokenizeRequest { model, text, add_special, parse_special } = message;
        let answer = |call: Call| {
            offload(move || {
                let options = EncodeOptions { add_special, parse_special };
                let tokens = call.text()?.tokenizer().encode(&text, options)?;
                Ok(v1::TokenizeResponse { tokens })
            })
        };
        self.enter("Tokenize", headers, Ok(of_model(model)), answer).await
    }
}

impl Api {
    /// Answers a call, counts it and writes a line to the log, as `router` does for HTTP.
    async fn enter<T, F>(
        &self,
        method: &'static str,
        headers: HeaderMap,
        given: Result<ValidBody, ApiError>,
        answer: impl FnOnce(Call) -> F,
    ) -> Result<Response<T>, Status>
    where
        F: Future<Output = Result<T, ApiError>>,
    {
        let (server, start, id) = (&self.0, Instant::now(), self.0.new_id());
        let path = match method {
            "Generate" => "/ruvllm.v1.Ruvllm/Generate",
            "Embed" => "/ruvllm.v1.Ruvllm/Embed",
            _ => "/ruvllm.v1.Ruvllm/Tokenize",
        };
        let span = span(&id, path);
        let handle = async {
            let tenant = server.keys.tenant(&headers)?;
            span.record("tenant", &*tenant.name);
            let (given, deadline) = (given?, server.deadline(timeout(&headers)?));
            let call = Call::new(server, NewCall { tenant, body: given, deadline, id: &id, span: &span }).await?;
            answer(if method == "Tokenize" { call } else { call.with_adapters().await? }).await
        };
        let result = handle.instrument(span.clone()).await;
        let (took, error) = (start.elapsed(), result.as_ref().err());
        let status = error.map_or(StatusCode::OK, |error| error.status).as_u16();
        server.metrics.answered(path, status, took.as_secs_f64());
        let ms = took.as_millis() as u64;
        span.in_scope(|| match error {
            Some(ApiError { message, .. }) => tracing::info!(status, ms, error = message, "refused"),
            None => tracing::info!(status, ms, "answered"),
        });
        result.map(Response::new).map_err(|error| {
            server.metrics.rejected(error.reason());
            status_of(error)
        })
    }
}

fn parts<T>(request: Request<T>) -> (HeaderMap, T) {
    let (metadata, _, message) = request.into_parts();
    (metadata.into_headers(), message)
}

/// Returns a request of which only the model is said.
fn of_model(model: String) -> ValidBody {
    let model = (!model.is_empty()).then_some(("model".to_owned(), model.into()));
    ValidBody::from(model.into_iter().collect::<serde_json::Map<_, _>>())
}

/// Returns the time that the client gives a call: at most eight digits and a unit (gRPC over HTTP/2, "Timeout").
///
/// # Errors
/// 400: what is there is no time.
fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let parse = || {
        let value = value.to_str().ok()?;
        let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
        let n: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
        Some(match unit {
            "H" => Duration::from_secs(n * 3600),
            "M" => Duration::from_secs(n * 60),
            "S" => Duration::from_secs(n),
            "m" => Duration::from_millis(n),
            "u" => Duration::from_micros(n),
            "n" => Duration::from_nanos(n),
            _ => return None,
        })
    };
    match parse() {
        Some(timeout) => Ok(Some(timeout)),
        None => Err(ApiError::bad("grpc-timeout", "the metadata grpc-timeout is no time; send one like 500m")),
    }
}

/// Returns an error as gRPC tells it. Every status of HTTP has its code here, and nowhere else.
fn status_of(error: ApiError) -> Status {
    let code = match error.status.as_u16() {
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        429 => Code::ResourceExhausted,
        501 => Code::Unimplemented,
        503 => Code::Unavailable,
        504 => Code::DeadlineExceeded,
        500.. => Code::Internal,
        _ => Code::InvalidArgument,
    };
    let mut status = Status::new(code, error.message);
    if let Some(seconds) = error.retry_after_s {
        status.metadata_mut().insert("retry-after", seconds.into());
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_digits_and_a_unit() {
        let read = |text: &str| {
            let headers =
                HeaderMap::from_iter([("grpc-timeout".parse().expect("a name"), text.parse().expect("a value"))]);
            timeout(&headers).map_err(|error| error.status.as_u16())
        };
        assert_eq!(timeout(&HeaderMap::new()), Ok(None));
        assert_eq!(read("250m"), Ok(Some(Duration::from_millis(250))));
        assert_eq!(read("99999999H"), Ok(Some(Duration::from_secs(99_999_999 * 3600))));
        for wrong in ["", "m", "5", "1.5S", "-1S", "123456789S", "5x"] {
            assert_eq!(read(wrong), Err(400), "{wrong}");
        }
    }
}
