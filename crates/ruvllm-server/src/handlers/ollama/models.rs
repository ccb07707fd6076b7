//! `/api/tags`, `/api/ps`, `/api/show` and `/api/version`: what is served, as Ollama's clients read it.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use ruvllm_api::fields::{Field, Kind, unheeded};
use ruvllm_api::generation::MODEL;
use ruvllm_api::thinking;
use ruvllm_engine::{ModelInfo, ModelText};
use ruvllm_server_state::models::ModelStatus;
use ruvllm_server_state::server::Server;
use ruvllm_witness::decimal;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::call::response::json_response;
use crate::call::{Call, HandlerFuture, ServerCall};
use crate::handlers::ollama::answer::date;
use crate::handlers::ollama::names::tagged;

/// The version of Ollama's API that this one is. Clients compare it with those that they need.
const API_VERSION: &str = "0.12.11";
/// When a model goes that nothing makes go.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// What a request for a model's description may say.
pub(super) const SHOW: &[Field] =
    &[MODEL.also(&["name"]), unheeded("verbose", Kind::Bool, "the vocabulary is told by /tokenize")];

/// Lists what is served, adapters as well.
pub(super) fn tags(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let mut models = Vec::new();
        for model in call.server.models.statuses() {
            models.push(listed(&call.server, &model, &tagged(&model.name)));
            for adapter in model.adapters.visible(&call.tenant) {
                models.push(listed(&call.server, &model, &format!("{}:{}", model.name, adapter.name)));
            }
        }
        Ok(json_response(StatusCode::OK, &json!({ "models": models })))
    })
}

/// Lists what is loaded.
pub(super) fn ps(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let server = &call.server;
        let lasts = server.options().idle_timeout.unwrap_or(NEVER);
        let until = date(SystemTime::now() + lasts.min(NEVER));
        let statuses = server.models.statuses();
        let loaded = statuses.iter().filter(|model| model.state == "loaded").map(|model| {
            let mut listed = listed(server, model, &tagged(&model.name));
            listed["expires_at"] = json!(until);
            listed["size_vram"] = json!(0);
            listed["context_length"] = json!(model.info.as_ref().map(|info| info.n_ctx));
            listed
        });
        Ok(json_response(StatusCode::OK, &json!({ "models": loaded.collect::<Vec<_>>() })))
    })
}

/// Describes a model, which is loaded for it.
pub(super) fn show(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let options = call.server.options();
        let sampling = &options.sampling;
        let Some(service) = call.model.engine() else { return Ok(json_response(StatusCode::OK, &show_remote(&call))) };
        let (info, text) = (service.info(), service.text());
        let mut parameters = String::new();
        for (name, value) in [
            ("num_ctx", json!(info.n_ctx)),
            ("temperature", decimal(sampling.temperature)),
            ("top_k", json!(sampling.top_k)),
            ("top_p", decimal(sampling.top_p)),
            ("min_p", decimal(sampling.min_p)),
            ("repeat_penalty", decimal(sampling.repeat_penalty)),
        ] {
            let _ = writeln!(parameters, "{name:<30} {value}");
        }
        let answer = json!({
            "modelfile": format!("# served by ruvllm\nFROM {}\n", call.model.name),
            "parameters": parameters.trim_end(),
            "template": text.template()?.map_or("", |template| template.source()),
            "details": details(Some(info)),
            "model_info": model_info(info),
            "capabilities": capabilities(info, text),
            "modified_at": started(&call.server),
        });
        Ok(json_response(StatusCode::OK, &answer))
    })
}

/// Describes a model that another server answers for: of its file nothing is known.
fn show_remote(call: &Call) -> Value {
    json!({
        "modelfile": format!("# another server answers for it\nFROM {}\n", call.model.name),
        "parameters": "",
        "template": "",
        "details": details(None),
        "model_info": {},
        "capabilities": ["completion", "tools", "thinking", "embedding"],
        "modified_at": started(&call.server),
    })
}

/// Returns the version of the API, and of the server.
pub(super) fn version(_: ServerCall) -> HandlerFuture {
    Box::pin(async {
        let answer = json!({ "version": API_VERSION, "ruvllm": env!("CARGO_PKG_VERSION") });
        Ok(json_response(StatusCode::OK, &answer))
    })
}

/// Returns when the server started, which stands for when its models came.
fn started(server: &Server) -> String {
    date(UNIX_EPOCH + Duration::from_secs(server.created_s))
}

fn listed(server: &Server, model: &ModelStatus, name: &str) -> Value {
    let info = model.info.as_ref();
    json!({
        "name": name,
        "model": name,
        "modified_at": started(server),
        "size": info.map_or(0, |info| info.file_bytes),
        "digest": digest(name, info),
        "details": details(info),
    })
}

/// Returns what tells models apart: a digest of what is known about one, not of its file.
fn digest(name: &str, info: Option<&ModelInfo>) -> String {
    let about = info.map(|info| (&info.name, &info.arch, info.n_params, info.file_bytes));
    hex::encode(Sha256::digest(format!("{name} {about:?}")))
}

/// Returns what Ollama tells about a model in short; of one that was never loaded nothing is known.
fn details(info: Option<&ModelInfo>) -> Value {
    let family = info.map_or("", |info| &info.arch);
    let families: Vec<&str> = info.iter().map(|info| &*info.arch).collect();
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": families,
        "parameter_size": info.map_or(String::new(), |info| parameter_size(info.n_params)),
        "quantization_level": info.map_or("", |info| &info.quantization),
    })
}

/// Returns a number of parameters as Ollama writes it.
fn parameter_size(n: usize) -> String {
    let n = n as f64;
    match n {
        1e9.. => format!("{:.1}B", n / 1e9),
        1e6.. => format!("{:.2}M", n / 1e6),
        1e3.. => format!("{:.2}K", n / 1e3),
        _ => n.to_string(),
    }
}

/// Returns what the file says of the model, by its keys.
fn model_info(info: &ModelInfo) -> Value {
    let arch = &info.arch;
    json!({
        "general.architecture": arch,
        "general.name": info.name,
        "general.basename": info.name,
        "general.parameter_count": info.n_params,
        format!("{arch}.context_length"): info.n_ctx_train,
        format!("{arch}.embedding_length"): info.n_embd,
        format!("{arch}.block_count"): info.n_layers,
        format!("{arch}.vocab_size"): info.n_vocab,
    })
}

fn capabilities(info: &ModelInfo, text: &ModelText) -> Vec<&'static str> {
    if info.is_encoder {
        return if info.is_ranker { Vec::new() } else { vec!["embedding"] };
    }
    let has = [
        ("completion", true),
        ("tools", true),
        ("insert", text.tokenizer().infill_tokens().is_some()),
        ("thinking", thinking::is_known(text)),
        ("embedding", true),
    ];
    has.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_ollama_does() {
        let sizes = [7_615_616_512, 134_515_008, 22_700, 12].map(parameter_size);
        assert_eq!(sizes, ["7.6B", "134.52M", "22.70K", "12"]);
    }

    #[test]
    fn digests_differ_by_name() {
        assert_eq!(digest("a", None).len(), 64);
        assert_ne!(digest("a", None), digest("b", None));
    }
}
