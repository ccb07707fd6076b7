//! Answers by gRPC: the message as fields of the HTTP API, and the pieces of the answers as messages.

use std::time::Duration;

use ruvllm_api::error::ApiError;
use ruvllm_api::fields::{Field, Kind, Unsupported, ValidBody, optional};
use ruvllm_api::generation::GENERATION;
use ruvllm_api::messages;
use ruvllm_api::sampling::SAMPLING;
use ruvllm_engine::GenerationSummary;
use ruvllm_engine::template::ChatInput;
use ruvllm_server_state::gate::offload;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::Sender;
use tonic::Status;

use crate::call::Call;
use crate::call::answer::Chunk;
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::grammar::grammar;
use crate::call::prompt::{Prompt, prompt_max};
use crate::handlers::grpc::v1::generate_event::Event;
use crate::handlers::grpc::v1::generate_request::Input;
use crate::handlers::grpc::{status_of, v1};

/// What the message says by fields of its own.
const INPUT: &[Field] = &[
    optional("prompt", Kind::Either(&[Kind::Text, Kind::List(&Kind::Int(0, u32::MAX as i64), 0, 1 << 24)]), "the text"),
    optional("messages", messages::MESSAGES, "the conversation"),
];

/// Fields of HTTP that have no meaning here.
const UNSUPPORTED: &Unsupported = &[
    ("stream", "the call always streams"),
    ("stream_options", "the counts of tokens come with the end of each answer"),
    ("timeout_ms", "set the call's deadline"),
];

/// Returns the request as fields, checked against the tables of the HTTP API.
///
/// # Errors
/// 400, as there.
pub(super) fn given(message: v1::GenerateRequest) -> Result<ValidBody, ApiError> {
    let v1::GenerateRequest { model, input, max_tokens, temperature, top_p, top_k, seed, stop, fields_json } = message;
    let mut object = match fields_json.is_empty() {
        true => Map::new(),
        false => serde_json::from_str(&fields_json).map_err(|error| {
            ApiError::bad("fields_json", format!("'fields_json' is no JSON object: {error}")).code("invalid_json")
        })?,
    };
    let input = match input {
        Some(Input::Prompt(text)) => ("prompt", json!(text)),
        Some(Input::Tokens(tokens)) => ("prompt", json!(tokens.ids)),
        Some(Input::Conversation(conversation)) => {
            let message = |message: &v1::Message| json!({ "role": message.role, "content": message.content });
            ("messages", conversation.messages.iter().map(message).collect())
        }
        None => {
            let line = "the request has no input; set prompt, tokens or conversation";
            return Err(ApiError::bad("input", line).code("missing_field"));
        }
    };
    let own = [
        Some(input),
        (!model.is_empty()).then(|| ("model", json!(model))),
        max_tokens.map(|n| ("max_tokens", json!(n))),
        temperature.map(|x| ("temperature", json!(x))),
        top_p.map(|x| ("top_p", json!(x))),
        top_k.map(|k| ("top_k", json!(k))),
        seed.map(|seed| ("seed", json!(seed))),
        (!stop.is_empty()).then(|| ("stop", json!(stop))),
    ];
    for (name, value) in own.into_iter().flatten() {
        if object.insert(name.to_owned(), value).is_some() {
            let line = format!("'{name}' is set by the message and in 'fields_json' as well; send one of them");
            return Err(ApiError::bad(name, line));
        }
    }
    let fields: Vec<Field> = [INPUT, SAMPLING, GENERATION].concat();
    ValidBody::check(Value::Object(object), &fields, UNSUPPORTED)
}

/// Answers that are being written.
pub(super) struct Writing(Choices);

/// Begins the answers to a request.
///
/// # Errors
/// What cannot be, a full queue, or a tenant that has enough of them.
pub(super) async fn start(call: Call) -> Result<Writing, ApiError> {
    let mut asked = ParsedRequest::read(&call, None)?;
    asked.request.grammar = grammar(&call, &asked.request).await?;
    let prompt = prompt(&call, &asked).await?;
    Ok(Writing(Choices::start(&call, &asked, vec![Prompt::Tokens(prompt)])?))
}

/// Returns the tokens of the prompt, or of the conversation.
async fn prompt(call: &Call, asked: &ParsedRequest) -> Result<Vec<u32>, ApiError> {
    let (text, given) = (call.text()?.clone(), call.body.clone());
    let n_max = asked.is_truncated.then(|| prompt_max(call, &asked.request)).transpose()?;
    offload(move || {
        if let Some(conversation) = given.list("messages") {
            let messages = messages::for_template(conversation, &text)?;
            let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
            let encoding = messages::Encoding {
                n_max,
                parse_special: given.is_set("parse_special"),
                ..messages::Encoding::default()
            };
            return messages::encode(&text, input, encoding);
        }
        let mut tokens: Vec<u32> = match given.get("prompt") {
            Some(Value::Array(ids)) => ids.iter().filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect(),
            prompt => {
                let parse_special = given.flag("parse_special", true);
                text.tokenizer().encode_prompt(prompt.and_then(Value::as_str).unwrap_or_default(), parse_special)?
            }
        };
        tokens.drain(..tokens.len().saturating_sub(n_max.unwrap_or(usize::MAX)));
        Ok(tokens)
    })
    .await
}

impl Writing {
    /// Sends pieces until all answers are over, or the client is gone or takes none for as long as `limit`.
    pub(super) async fn write(mut self, sender: &Sender<Result<v1::GenerateEvent, Status>>, limit: Duration) {
        loop {
            let (event, is_last) = match self.0.next().await {
                Ok(None) => return,
                Ok(Some((i, piece))) => {
                    let Some(event) = of_piece(piece) else { continue };
                    (Ok(v1::GenerateEvent { index: i as u32, event: Some(event) }), false)
                }
                Err(error) => (Err(status_of(error)), true),
            };
            if !matches!(tokio::time::timeout(limit, sender.send(event)).await, Ok(Ok(()))) || is_last {
                return;
            }
        }
    }
}

fn of_piece(piece: Chunk) -> Option<Event> {
    Some(match piece {
        Chunk::Progress(_) => return None,
        Chunk::Token(token) => Event::Token(v1::Token { id: token.id(), text: token.text }),
        Chunk::End(text, summary) => {
            let GenerationSummary { finish_reason, ref timings, .. } = **summary;
            Event::Done(v1::Done {
                text,
                finish_reason: finish_reason.as_str().to_owned(),
                prompt_tokens: summary.n_prompt() as u32,
                cached_tokens: timings.cached_tokens as u32,
                answer_tokens: summary.n_answer() as u32,
                queue_ms: timings.queue_ms,
                ttft_ms: timings.ttft_ms,
            })
        }
    })
}
