//! Endpoints of this server's own: text and tokens, health, metrics, and what it takes.

use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, StatusCode, header};
use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, optional, required, unheeded};
use ruvllm_api::generation::{MODEL, PARSE_SPECIAL};
use ruvllm_api::thinking::{self, EFFORTS};
use ruvllm_api::tokens::{self, DETOKENIZE, TOKENIZE};
use ruvllm_api::{messages, tools};
use ruvllm_engine::ChatOptions;
use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tools::ToolUse;
use ruvllm_server_state::gate::offload;
use ruvllm_server_state::options::stopping;
use serde_json::{Value, json};

use crate::call::response::json_response;
use crate::call::{Call, Endpoint, Handler, HandlerFuture, ServerCall};

const APPLY_TEMPLATE: &[Field] = &[
    required("messages", messages::MESSAGES, "the conversation"),
    tools::CHAT[0],
    messages::OPENS_ANSWER,
    messages::CONTINUE,
    optional("reasoning_effort", Kind::Word(EFFORTS), "how much a model thinks, where its template asks for that"),
    thinking::ENABLE,
    unheeded("reasoning_format", Kind::Text, "it is about answers"),
    optional("chat_template_kwargs", Kind::Map(&Kind::Any), "more variables for the template"),
    PARSE_SPECIAL,
    MODEL,
];

const GET: Endpoint =
    Endpoint { method: Method::GET, needs_key: false, run: Handler::Server(health), ..Endpoint::POST };

const POST: Endpoint = Endpoint { method: Method::POST, needs_key: true, ..GET };

/// The endpoints.
pub(crate) static ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/tokenize",
        summary: "Turns a text into tokens",
        fields: &[TOKENIZE],
        answers: &["tokens", "count", "max_model_len"],
        run: Handler::Model(tokenize),
        ..POST
    },
    Endpoint {
        path: "/detokenize",
        summary: "Turns tokens into text",
        fields: &[DETOKENIZE],
        answers: &["text", "content", "prompt"],
        run: Handler::Model(detokenize),
        ..POST
    },
    Endpoint {
        path: "/apply-template",
        summary: "Returns a conversation as the model reads it",
        fields: &[APPLY_TEMPLATE],
        answers: &["prompt", "tokens", "count"],
        run: Handler::Model(apply_template),
        ..POST
    },
    Endpoint {
        path: "/tokenizer_info",
        summary: "Returns what clients of vLLM ask about the tokenizer",
        needs_key: true,
        answers: &["model_max_length", "bos_token", "eos_token", "chat_template"],
        run: Handler::Model(tokenizer_info),
        ..GET
    },
    Endpoint {
        path: "/health",
        also: &["/v1/health"],
        summary: "200 while the engine lives",
        answers: &["status"],
        ..GET
    },
    Endpoint {
        path: "/ready",
        summary: "200 while requests are taken",
        answers: &["status"],
        run: Handler::Server(ready),
        ..GET
    },
    Endpoint {
        path: "/version",
        summary: "Returns the server's version",
        answers: &["version"],
        run: Handler::Server(version),
        ..GET
    },
    Endpoint {
        path: "/metrics",
        summary: "Metrics in Prometheus' text format",
        needs_key: true,
        run: Handler::Server(metrics),
        ..GET
    },
];

fn ok(value: &Value) -> Result<Response<Body>, ApiError> {
    Ok(json_response(StatusCode::OK, value))
}

fn tokenize(call: Call) -> HandlerFuture {
    Box::pin(async move {
        offload(move || {
            let service = call.model.service()?;
            ok(&tokens::tokenize(&call.body, service.text(), service.info().n_ctx)?)
        })
        .await
    })
}

fn tokenizer_info(call: Call) -> HandlerFuture {
    Box::pin(async move {
        let (text, info) = (call.text()?, call.model.service()?.info());
        let spelled = |id: Option<u32>| id.and_then(|id| text.tokenizer().token_text(id));
        ok(&json!({
            "model_max_length": info.n_ctx,
            "vocab_size": info.n_vocab,
            "bos_token": spelled(text.tokenizer().bos()),
            "eos_token": spelled(text.tokenizer().eos()),
            "add_bos_token": text.tokenizer().bos_to_add().is_some(),
            "add_eos_token": text.tokenizer().eos_to_add().is_some(),
            "chat_template": text.template()?.map(|template| template.source()),
        }))
    })
}

fn detokenize(call: Call) -> HandlerFuture {
    Box::pin(async move { ok(&tokens::detokenize(&call.body, call.text()?)?) })
}

fn apply_template(call: Call) -> HandlerFuture {
    Box::pin(async move {
        offload(move || {
            let (text, given) = (call.text()?, &call.body);
            let mut messages = messages::for_template(given.list("messages").map_or(&[][..], Vec::as_slice), text)?;
            let begun = messages::begun(given, &mut messages)?;
            let input = ChatInput {
                messages,
                tools: tools::read(&call.body, text)?.as_ref().map(ToolUse::definitions),
                add_generation_prompt: begun.is_some() || given.flag(messages::OPENS_ANSWER.name, true),
                extra: thinking::variables(&call.body, text, &call.model_name)?,
                ..ChatInput::default()
            };
            let mut prompt = text.render_chat(&input)?;
            let closing = if thinking::is_off(given) { thinking::closing(text, &prompt) } else { "" };
            let begun = format!("{closing}{}", begun.unwrap_or_default());
            prompt.push_str(&begun);
            let parse_special = given.is_set("parse_special");
            let tokens = text.encode_chat_as(&input, ChatOptions { parse_special, begun: &begun })?;
            ok(&json!({ "prompt": prompt, "tokens": tokens, "count": tokens.len() }))
        })
        .await
    })
}

fn health(_: ServerCall) -> HandlerFuture {
    Box::pin(async { ok(&json!({ "status": "ok" })) })
}

fn ready(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        if call.server.is_stopping() {
            return Err(stopping());
        }
        if call.server.models.is_preparing() {
            let line = "a model is being made ready to learn; requests wait for it";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line).code("loading"));
        }
        for model in call.server.models.loaded() {
            if let Some(remote) = model.remote() {
                remote.check().await?;
            }
        }
        let mut failures = vec![("responses", call.server.stored.saves.failing())];
        if let Some(witness) = &call.server.witness {
            // Where answers need a record it takes no requests; else it answers, and says what is missing.
            witness.check()?;
            failures.extend([("witness", witness.failing()), ("sessions", witness.saves.failing())]);
        }
        let mut answer = json!({ "status": "ready" });
        for (store, failing) in failures {
            if let Some(why) = failing {
                (answer["status"], answer[store]) = (json!("degraded"), json!(why));
            }
        }
        ok(&answer)
    })
}

fn version(_: ServerCall) -> HandlerFuture {
    Box::pin(async { ok(&json!({ "version": env!("CARGO_PKG_VERSION") })) })
}

fn metrics(call: ServerCall) -> HandlerFuture {
    Box::pin(async move {
        if call.server.options().metrics_key.as_deref().is_some_and(|name| *name != *call.tenant.name) {
            let line = "this key may not read the metrics; they show what all keys do";
            return Err(ApiError::new(StatusCode::FORBIDDEN, line).code("forbidden"));
        }
        call.server.models.tell_all();
        if let Some(witness) = &call.server.witness {
            call.server.metrics.tell_witness(&witness.stats(), witness.saves.n_lost());
        }
        call.server.metrics.tell_kept(call.server.stored.saves.n_lost());
        if let Some(batches) = &call.server.batches {
            call.server.metrics.batches(batches.n_waiting());
        }
        let mut response = Response::new(Body::from(call.server.metrics.render()));
        let format = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, format);
        Ok(response)
    })
}
