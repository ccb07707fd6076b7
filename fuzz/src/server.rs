//! Requests to the server.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::Request;
use ruvllm_engine::{Engine, LoadOptions, SamplingParams};
use ruvllm_server::{ModelSource, Server, ServerOptions};
use ruvllm_testkit::Golden;
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// Where bodies are sent.
pub const PATHS: [&str; 17] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/route",
    "/v1/sessions",
    "/v1/feedback",
    "/v1/memory",
    "/v1/patterns/search",
    "/v1/adapters",
    "/v1/witness/search",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

/// Characters of an error, at most.
const ERROR_BYTES_MAX: usize = 8 << 10;

struct Bench {
    runtime: Runtime,
    app: Router,
    _server: Arc<Server>,
}

fn bench() -> &'static Bench {
    static BENCH: OnceLock<Bench> = OnceLock::new();
    BENCH.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let inside = runtime.enter();
        let load = LoadOptions { n_threads: 1, n_ctx: Some(64), n_seq_max: 2, ..LoadOptions::default() };
        let engine = Engine::load(&Golden::load("llama-a").model("f32"), &load, &mut |_| {}).expect("it loads");
        let options = ServerOptions {
            sampling: SamplingParams::greedy(),
            request_timeout: Some(Duration::from_millis(800)),
            ..ServerOptions::default()
        };
        let server = Server::start(vec![ModelSource::loaded("tiny", engine)], options).expect("it starts");
        let app = server.app();
        drop(inside);
        Bench { runtime, app, _server: server }
    })
}

/// Sends a body. The first byte says where.
pub fn fields(bytes: &[u8]) {
    let Some((&path, body)) = bytes.split_first() else { return };
    let path = PATHS[usize::from(path) % PATHS.len()];
    let Bench { runtime, app, .. } = bench();
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body.to_vec()));
    let (status, answer) = runtime.block_on(async {
        let response = app.clone().oneshot(request.expect("a request")).await.expect("it answers");
        let status = response.status();
        (status, to_bytes(response.into_body(), 64 << 20).await)
    });
    let Ok(answer) = answer else { return };
    assert_ne!(status.as_u16(), 500, "{path}: {}", String::from_utf8_lossy(&answer));
    if status.is_client_error() {
        assert!(answer.len() <= ERROR_BYTES_MAX, "{path}: an error of {} bytes", answer.len());
    }
}
