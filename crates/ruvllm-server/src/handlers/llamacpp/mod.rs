//! Endpoints of llama.cpp's own server that tools ask for: `/completion`, `/infill`, `/embedding`, `/props`, `/slots`,
//! `/lora-adapters`, and loading models by hand.

mod completion;
mod lora;
mod slots;
use axum::http::{Method, StatusCode};
use ruvllm_api::BUILD;
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::fields::{Field, Kind, optional, required, unheeded};
use ruvllm_api::generation::{GENERATION, MODEL, POOLING};
use ruvllm_api::input::INPUT;
use ruvllm_api::llamacpp::ALIKE;
use ruvllm_api::sampling::SAMPLING;
use ruvllm_api::timings::TIMINGS_PER_TOKEN;
use ruvllm_engine::Service;
use serde_json::{Value, json};

use crate::call::embed::embed;
use crate::call::response::json_response;
use crate::call::{Call, Endpoint, Handler, HandlerFuture, Lists, ServerCall, settings, verbose};

const POST: Endpoint = Endpoint {
    answers: &["index", "content", "tokens", "stop", "model", "tokens_predicted", "tokens_evaluated", "timings"],
    run: Handler::Model(completion::complete),
    ..Endpoint::POST
};

/// What only these two endpoints take.
const OWN: &[Field] = &[
    completion::N_PROBS,
    completion::POST_SAMPLING,
    verbose::RETURN_TOKENS,
    completion::RESPONSE_FIELDS,
    TIMINGS_PER_TOKEN,
    unheeded("reasoning_format", Kind::Text, "the text is told as it is"),
];

const EMBEDDING: &[Field] = &[
    required("content", INPUT, "a text, or its tokens; or several of them").also(&["input"]),
    optional("embd_normalize", Kind::Only("2", "embeddings have unit length"), "how embeddings are scaled"),
    MODEL,
    EACH,
    ADAPTER,
    ADAPTERS,
];

const NAMED: &[Field] = &[required("model", Kind::Text, "the model, by the name that /v1/models lists")];

pub(super) const WHICH: Field = optional("model", Kind::Text, "the model that is asked about; the first without");

const PROPS: &[Field] = &[WHICH, unheeded("autoload", Kind::Bool, "a model that sleeps is not loaded for this")];

/// The ways of pooling, with none among them: the answer is a list of vectors in any case.
const EACH: Field = Field { kind: Kind::Word(&["mean", "cls", "last", "none"]), ..POOLING };

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/completion",
        also: &["/completions"],
        summary: "Continues a text, as llama.cpp's server does",
        fields: &[completion::PROMPT, SAMPLING, GENERATION, OWN, ALIKE],
        lists: Lists::Several,
        ..POST
    },
    Endpoint {
        path: "/infill",
        summary: "Fills a gap in a text, for models that were trained to",
        fields: &[completion::GAP, SAMPLING, GENERATION, OWN, ALIKE],
        lists: Lists::Several,
        run: Handler::Model(completion::fill),
        ..POST
    },
    Endpoint {
        path: "/embedding",
        also: &["/embeddings"],
        summary: "Returns the embedding of texts, as llama.cpp's server does",
        fields: &[EMBEDDING],
        answers: &["index", "embedding"],
        lists: Lists::Always,
        run: Handler::Model(embedding),
        ..POST
    },
    Endpoint {
        method: Method::GET,
        path: "/props",
        summary: "Returns what is served, as llama.cpp's server tells it",
        query: PROPS,
        answers: &["default_generation_settings", "total_slots", "model_alias", "is_sleeping", "build_info"],
        run: Handler::Server(props),
        ..POST
    },
    lora::LIST,
    lora::SET,
    slots::LIST,
    slots::KEEP,
    Endpoint {
        path: "/models/load",
        summary: "Loads a model that is served, and answers when it is there",
        fields: &[NAMED],
        answers: &["success"],
        run: Handler::Server(load),
        ..POST
    },
    Endpoint {
        path: "/models/unload",
        summary: "Drops a model that nobody uses; it is loaded again when somebody asks for it",
        fields: &[NAMED],
        answers: &["success"],
        run: Handler::Server(unload),
        ..POST
    },
];

/// Loads a model.
fn load(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        call.server.model_as(call.body.text("model"), call.deadline, true).await?;
        Ok(json_response(StatusCode::OK, &json!({ "success": true })))
    })
}

/// Drops a model.
fn unload(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        call.server.models.let_go(call.body.text("model")).await?;
        Ok(json_response(StatusCode::OK, &json!({ "success": true })))
    })
}

/// Embeds texts.
fn embedding(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let n_embd = call.model.service()?.info().n_embd;
        let (embeddings, _) = embed(&call, "content").await?;
        // There is one vector for each text, or one for each of its tokens where none are pooled.
        let one = |(i, embedding): (usize, Vec<f32>)| json!({ "index": i, "embedding": embedding.chunks(n_embd).collect::<Vec<_>>() });
        let answer: Vec<Value> = embeddings.into_iter().enumerate().map(one).collect();
        Ok(json_response(StatusCode::OK, &json!(answer)))
    })
}

/// Tells what is served. A model that sleeps goes on sleeping.
fn props(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        let (status, model) = call.server.models.look(call.body.text("model"))?;
        let mut params = settings::of_sampling(&call.server.options().sampling);
        params["n_predict"] = json!(-1);
        let n_ctx = status.info.as_ref().map(|info| info.n_ctx);
        let mut answer = json!({
            "default_generation_settings": { "n_ctx": n_ctx, "params": params },
            "total_slots": model.as_ref().map_or(0, |model| model.n_running_max()),
            "model_alias": &*status.name,
            "model_path": status.file.as_deref(),
            "is_sleeping": model.is_none(),
            "modalities": { "vision": false, "audio": false },
            "build_info": BUILD,
        });
        let n_models = call.server.models.n_slots();
        if n_models > 1 && call.body.text("model").is_none() {
            answer["role"] = json!("router");
            answer["max_instances"] = json!(call.server.options().models_max.min(n_models));
            answer["models_autoload"] = json!(call.server.options().loads_models);
        }
        if let Some(text) = model.as_ref().and_then(|model| model.engine()).map(Service::text) {
            let spelled = |id: Option<u32>| id.and_then(|id| text.tokenizer().token_text(id)).unwrap_or_default();
            answer["chat_template"] = json!(text.template()?.map(|template| template.source()));
            answer["bos_token"] = json!(spelled(text.tokenizer().bos()));
            answer["eos_token"] = json!(spelled(text.tokenizer().eos()));
        }
        Ok(json_response(StatusCode::OK, &answer))
    })
}
