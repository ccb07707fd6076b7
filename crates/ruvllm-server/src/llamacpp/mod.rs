//! Endpoints of llama.cpp's own server that tools ask for: `/completion`, `/infill`, `/props`, `/slots`, `/lora-adapters`.

mod completion;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

use ruvllm_lora::manager::AdapterInfo;

use crate::app::{Answer, Call, Endpoint, Lists, Run};
use crate::error::json_response;
use crate::fields::{Field, Kind, unheeded};
use crate::generate::{GENERATION, SAMPLING};

const POST: Endpoint = Endpoint {
    answers: &["index", "content", "tokens", "stop", "model", "tokens_predicted", "tokens_evaluated", "timings"],
    run: Run::Model(completion::complete),
    ..Endpoint::POST
};

/// Fields that llama.cpp's clients send along, most of which change nothing.
const HINTS: &[Field] = &[
    completion::N_PROBS,
    unheeded("cache_prompt", Kind::Bool, "every prompt is cached as far as there is room"),
    unheeded("id_slot", Kind::Int(-1, 1 << 20), "any place is as good"),
    unheeded("return_tokens", Kind::Bool, "the tokens are told in any case"),
    unheeded("timings_per_token", Kind::Bool, "the times are told at the end"),
    unheeded("n_keep", Kind::Int(-1, 1 << 24), "what does not fit the context is refused"),
];

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/completion",
        also: &["/completions"],
        summary: "Continues a text, as llama.cpp's server does",
        fields: &[completion::PROMPT, SAMPLING, GENERATION, HINTS],
        lists: Lists::Several,
        ..POST
    },
    Endpoint {
        path: "/infill",
        summary: "Fills a gap in a text, for models that were trained to",
        fields: &[completion::GAP, SAMPLING, GENERATION, HINTS],
        lists: Lists::Several,
        run: Run::Model(completion::fill),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/props",
        summary: "Returns what is served, as llama.cpp's server tells it",
        answers: &["default_generation_settings", "total_slots", "model_alias", "chat_template", "build_info"],
        run: Run::Model(props),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/lora-adapters",
        summary: "Returns the adapters that a request may name",
        answers: &["id", "path", "scale"],
        lists: Lists::Always,
        run: Run::Model(lora_adapters),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/slots",
        summary: "Returns which places of the model are taken",
        answers: &["id", "n_ctx", "is_processing"],
        lists: Lists::Always,
        run: Run::Model(slots),
        ..POST
    },
];

/// Tells which adapters a request may name, with the scales that they have where it names none.
fn lora_adapters(call: Call) -> Answer {
    Box::pin(async move {
        let known = call.model.adapters.visible(&call.tenant);
        let one = |(id, info): (usize, &AdapterInfo)| json!({ "id": id, "path": info.name, "scale": 0.0 });
        let adapters: Vec<Value> = known.iter().enumerate().map(one).collect();
        Ok(json_response(StatusCode::OK, &json!(adapters)))
    })
}

/// Tells what is served.
fn props(call: Call) -> Answer {
    Box::pin(async move {
        let (service, sampling) = (&call.model.service, &call.server.options.sampling);
        let (info, text) = (service.info(), service.text());
        let spelled = |id: Option<u32>| id.and_then(|id| text.tokenizer().token_text(id)).unwrap_or_default();
        let template = text.template()?.map(|template| template.source());
        let answer = json!({
            "default_generation_settings": {
                "n_ctx": info.n_ctx,
                "params": {
                    "temperature": sampling.temperature,
                    "top_k": sampling.top_k,
                    "top_p": sampling.top_p,
                    "min_p": sampling.min_p,
                    "repeat_penalty": sampling.repeat_penalty,
                    "n_predict": -1,
                },
            },
            "total_slots": service.n_running_max(),
            "model_alias": &*call.model.name,
            "modalities": { "vision": false, "audio": false },
            "chat_template": template,
            "bos_token": spelled(text.tokenizer().bos()),
            "eos_token": spelled(text.tokenizer().eos()),
            "build_info": format!("ruvllm-{}", env!("CARGO_PKG_VERSION")),
        });
        Ok(json_response(StatusCode::OK, &answer))
    })
}

/// Tells which places are taken.
fn slots(call: Call) -> Answer {
    Box::pin(async move {
        let service = &call.model.service;
        let (n_ctx, n_running) = (service.info().n_ctx, service.stats().n_running);
        let slot = |id: usize| json!({ "id": id, "n_ctx": n_ctx, "is_processing": id < n_running });
        let slots: Vec<Value> = (0..service.n_running_max()).map(slot).collect();
        Ok(json_response(StatusCode::OK, &json!(slots)))
    })
}
