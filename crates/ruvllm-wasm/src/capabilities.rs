//! What the engine has and takes.

use ruvllm_api::fields::{Field, Unsupported};
use ruvllm_api::learning::{FEEDBACK, MEMORY};
use ruvllm_api::openai::{UNSUPPORTED, chat, completions, embeddings};
use ruvllm_api::tokens::{DETOKENIZE, TOKENIZE};
use ruvllm_engine::Service;
use serde_json::{Value, json};

use crate::body::NOT_HERE;

/// The calls that have a body: the path of the server's endpoint, its tables and what it refuses.
const CALLS: &[(&str, &[&[Field]], &Unsupported)] = &[
    ("/v1/chat/completions", chat::TABLE, UNSUPPORTED),
    ("/v1/completions", completions::TABLE, UNSUPPORTED),
    ("/v1/embeddings", &[embeddings::FIELDS], &[]),
    ("/tokenize", &[TOKENIZE], &[]),
    ("/detokenize", &[DETOKENIZE], &[]),
    ("/v1/feedback", &[FEEDBACK], &[]),
    ("/v1/memory", &[MEMORY], &[]),
];

/// Returns what a model's service has and takes.
pub(crate) fn capabilities(service: &Service, model: &str, learns: bool) -> Value {
    let info = service.info();
    let makes = match (info.is_ranker, info.is_encoder) {
        (true, _) => "scores",
        (_, true) => "embeddings",
        _ => "text",
    };
    let field = |field: &Field| json!({ "name": field.name, "takes": field.kind.words(), "required": field.is_required, "does": field.doc });
    let call = |(path, tables, refused): &(&str, &[&[Field]], &Unsupported)| {
        let is_here = |field: &&Field| NOT_HERE.iter().all(|(name, _)| *name != field.name);
        let accepted: Vec<Value> = tables.concat().iter().filter(is_here).map(field).collect();
        let refused = refused.iter().chain(NOT_HERE).map(|(name, why)| json!({ "name": name, "why": why }));
        let refused: Vec<Value> = refused.collect();
        json!({ "method": "POST", "path": path, "accepted": accepted, "refused": refused })
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "runtime": "web",
        "model": {
            "id": model,
            "backend": info.device.backend,
            "n_ctx": info.n_ctx,
            "n_ctx_train": info.n_ctx_train,
            "n_embd": info.n_embd,
            "n_vocab": info.n_vocab,
            "makes": makes,
            "missing": ["adapters", "sessions", "patterns"],
        },
        "device": { "isa": &*info.device.name, "threads": info.device.n_threads, "webgpu": info.device.backend == "gpu" },
        "tools": {
            "format": service.text().tool_format().as_str(),
            "choice": ["none", "auto", "required", "named"],
            "strict": true,
        },
        "limits": { "requests_at_once": service.n_running_max(), "queue": service.n_inside_max() },
        "learns": learns,
        "endpoints": CALLS.iter().map(call).collect::<Vec<_>>(),
    })
}
