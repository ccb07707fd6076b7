//! The router: every endpoint in one table, and the way of a request through key, body, check, handler and answer.

pub(crate) mod batches;
pub(crate) mod capabilities;
mod enter;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use axum::routing::{MethodFilter, on};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_server_state::server::Server;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::decompression::RequestDecompressionLayer;
use tower_http::normalize_path::NormalizePath;

use crate::call::response::respond;
use crate::call::{Endpoint, routing};
use crate::handlers::{
    adapters, anthropic, grpc, keys, learning, llamacpp, mcp, native, ollama, openai, replay, routing as route,
    sessions, witness,
};
use crate::page;
use enter::enter;

/// Paths that are answered even when all places are taken.
pub(crate) const PROBES: [&str; 2] = ["/health", "/ready"];

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The same, as Anthropic's SDK looks for it.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
/// What a request said that changes nothing.
const UNHEEDED: HeaderName = HeaderName::from_static("x-ruvllm-unheeded");

/// Old names of fields that a request used, with the new ones.
const RENAMED: HeaderName = HeaderName::from_static("x-ruvllm-renamed");

/// Returns every endpoint, in the order of the documents.
pub(crate) fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    let of_others = openai::ENDPOINTS
        .iter()
        .chain(openai::stored::ENDPOINTS)
        .chain(openai::batches::ENDPOINTS)
        .chain(anthropic::ENDPOINTS);
    let of_others = of_others.chain(ollama::ENDPOINTS);
    let own = native::ENDPOINTS.iter().chain(capabilities::ENDPOINTS).chain(llamacpp::ENDPOINTS);
    let own = own.chain(adapters::ENDPOINTS).chain(witness::ENDPOINTS).chain(replay::ENDPOINTS).chain(route::ENDPOINTS);
    let own = own.chain(mcp::ENDPOINTS).chain(sessions::ENDPOINTS).chain(learning::ENDPOINTS);
    let own = own.chain(learning::patterns::ENDPOINTS).chain(keys::ENDPOINTS);
    of_others.chain(own)
}

/// Returns the router of all endpoints.
pub fn app(server: &Arc<Server>) -> Router {
    let mut router = Router::new();
    for endpoint in endpoints() {
        let filter = match endpoint.method {
            Method::GET => MethodFilter::GET,
            Method::DELETE => MethodFilter::DELETE,
            _ => MethodFilter::POST,
        };
        let server = Arc::clone(server);
        let enter = move |request: Request<Body>| enter(Arc::clone(&server), endpoint, request);
        for path in endpoint.also {
            router = router.route(path, on(filter, enter.clone()));
        }
        router = router.route(endpoint.path, on(filter, enter));
    }
    router = if server.options().has_page { page::add(router) } else { router };
    router = grpc::add(router, server).fallback(not_found).method_not_allowed_fallback(not_allowed);
    // A body that is packed is read within the limits of one that is not. What is packed otherwise is refused there.
    let unpack = RequestDecompressionLayer::new().pass_through_unaccepted(true);
    let router = router.layer(unpack).layer(CatchPanicLayer::custom(panicked));
    let router = match cors(server) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    // A path with a slash at its end is the same path.
    Router::new().fallback_service(NormalizePath::trim_trailing_slash(router))
}

fn cors(server: &Server) -> Option<CorsLayer> {
    let options = server.options();
    let origins = &options.cors_origins;
    let origins = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false if origins.is_empty() => return None,
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    Some(
        CorsLayer::new()
            .allow_origin(origins)
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            // The SDKs of the APIs send headers of their own, of every version others. No cookie goes with them.
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers([
                REQUEST_ID,
                ANTHROPIC_REQUEST_ID,
                UNHEEDED,
                RENAMED,
                header::RETRY_AFTER,
                routing::CHOSEN,
                routing::REASON,
            ])
            .max_age(Duration::from_secs(3600)),
    )
}

async fn not_found(uri: Uri) -> Response<Body> {
    let line = format!("there is nothing at {}; /v1/capabilities lists what there is", uri.path());
    respond(&ApiError::new(StatusCode::NOT_FOUND, line).code("not_found"), Shape::of_path(uri.path()))
}

async fn not_allowed(method: Method, uri: Uri) -> Response<Body> {
    let line = format!("{} does not take {method}", uri.path());
    respond(&ApiError::new(StatusCode::METHOD_NOT_ALLOWED, line).code("method_not_allowed"), Shape::of_path(uri.path()))
}

fn panicked(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!("a handler broke; its request is answered with 500");
    respond(
        &ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error; the server's log tells more"),
        Shape::OpenAi,
    )
}

#[cfg(test)]
mod tests {
    use ruvllm_api::fields::schema;

    use super::*;

    #[test]
    fn the_tables_are_consistent() {
        for endpoint in endpoints() {
            let fields = endpoint.all_fields();
            for (i, field) in fields.iter().enumerate() {
                let name = field.name;
                assert!(fields[..i].iter().all(|other| other.name != name), "{} has '{name}' twice", endpoint.path);
                assert!(
                    endpoint.unsupported.iter().all(|(refused, _)| *refused != name),
                    "{} refuses '{name}'",
                    endpoint.path
                );
                assert!(!field.doc.is_empty() && !field.doc.ends_with('.'), "{} says '{}'", name, field.doc);
                // Reads the JSON of every value that is the only one.
                schema::of_kind(&field.kind);
            }
        }
    }
}
