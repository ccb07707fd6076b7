//! `/v1/messages`.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_api::adapters::{ADAPTER, ADAPTERS};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::fields::{Field, Kind, optional, required, unheeded};
use ruvllm_api::generation::{MODEL, PARSE_SPECIAL, STREAM};
use ruvllm_api::learning::PATTERNS;
use ruvllm_api::messages::{CACHE, joined};
use ruvllm_api::reading::{AnswerEvent, ToolCall, Whole};
use ruvllm_api::sampling::TOP_K;
use ruvllm_api::thinking;
use ruvllm_api::tools::{self, call_id};
use ruvllm_engine::FinishReason;
use ruvllm_engine::tools::CallEvent;
use serde_json::{Value, json};

use crate::call::answer::{Chunk, Reading, Summary};
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::prompt::{Conversation, prompt};
use crate::call::response::json_response;
use crate::call::stream::{self, Disconnected, Events};
use crate::call::tools::read_tools;
use crate::call::{Call, HandlerFuture};

const TEXT_BLOCK: &[Field] = &[
    required("type", Kind::Word(&["text"]), "the model reads text only"),
    required("text", Kind::Text, "the text"),
    unheeded("citations", Kind::Any, "nothing, in an answer that is sent back"),
    CACHE,
];

const CONTENT: Kind = Kind::Either(&[Kind::Text, Kind::List(&Kind::Object(TEXT_BLOCK), 0, 4096)]);

const TOOL_USE: &[Field] = &[
    required("type", Kind::Word(&["tool_use"]), "a tool that the assistant used"),
    required("id", Kind::Text, "what its result refers to"),
    required("name", Kind::Text, "the tool's name"),
    required("input", Kind::Map(&Kind::Any), "what it was given"),
    unheeded("caller", Kind::Any, "the model is the only caller"),
    CACHE,
];

const TOOL_RESULT: &[Field] = &[
    required("type", Kind::Word(&["tool_result"]), "what a tool returned, in a message of the user"),
    required("tool_use_id", Kind::Text, "the use that it answers"),
    optional("content", CONTENT, "what it returned"),
    optional("is_error", Kind::Bool, "the tool failed; the model is told so"),
    CACHE,
];

const THOUGHT: &[Field] = &[
    required("type", Kind::Word(&["thinking"]), "what the assistant thought"),
    required("thinking", Kind::Text, "its text; the model reads it if its template has a place for it"),
    unheeded("signature", Kind::Text, "who wrote it"),
    CACHE,
];

const REDACTED: &[Field] = &[
    required("type", Kind::Word(&["redacted_thinking"]), "what the assistant thought, unreadable"),
    unheeded("data", Kind::Text, "what only its writer can read"),
    CACHE,
];

const BLOCK: Kind = Kind::Tagged(&[
    ("text", TEXT_BLOCK),
    ("tool_use", TOOL_USE),
    ("tool_result", TOOL_RESULT),
    ("thinking", THOUGHT),
    ("redacted_thinking", REDACTED),
]);

const MESSAGE: &[Field] = &[
    required("role", Kind::Word(&["user", "assistant", "system"]), "who says it"),
    required("content", Kind::Either(&[Kind::Text, Kind::List(&BLOCK, 0, 4096)]), "what is said"),
];

/// Fields of a conversation, which is answered or counted.
pub(super) const CONVERSATION: &[Field] = &[
    MODEL,
    required(
        "messages",
        Kind::List(&Kind::Object(MESSAGE), 1, 4096),
        "the conversation; one that ends with the assistant is gone on with",
    ),
    optional("system", CONTENT, "what the model is told before the conversation"),
    CACHE,
    optional("thinking", thinking::THINKING, "whether the model thinks, where its template asks for that"),
    unheeded("context_management", Kind::Any, "what is sent is read"),
    optional("chat_template_kwargs", Kind::Map(&Kind::Any), "more variables for the model's chat template"),
    PARSE_SPECIAL,
];

const FORMAT: &[Field] = &[
    required("type", Kind::Word(&["json_schema"]), "JSON of a schema"),
    required("schema", Kind::Map(&Kind::Any), "the JSON Schema"),
];

const OUTPUT_CONFIG: &[Field] = &[
    optional("effort", Kind::Word(thinking::EFFORTS), "how much a model thinks, where its template asks for that"),
    optional("format", Kind::Object(FORMAT), "the form of the answer"),
    unheeded("task_budget", Kind::Any, "answers end where the model ends them, or with max_tokens"),
];

/// The form of an answer.
pub(super) const FORM: &[Field] = &[
    optional("output_config", Kind::Object(OUTPUT_CONFIG), "the form of the answer, and how much is thought"),
    optional("output_format", Kind::Object(FORMAT), "an older name of output_config.format"),
];

const METADATA: &[Field] = &[optional("user_id", Kind::Text, "a label for the server's log")];

/// How it is answered.
pub(super) const ANSWER: &[Field] = &[
    required(
        "max_tokens",
        Kind::Int(1, 1 << 24),
        "the most tokens to write; what does not fit the context is not written",
    ),
    optional("temperature", Kind::Number(0.0, 100.0), "divides the logits; 0 always takes the likeliest token"),
    optional("top_p", Kind::Number(0.0, 1.0), "keeps the likeliest tokens that make up this share; 1 keeps all"),
    optional("top_k", TOP_K, "keeps the k likeliest tokens; 0 and -1 keep all"),
    optional("seed", Kind::Int(i64::MIN, i64::MAX), "the same seed gives the same answer"),
    optional("stop_sequences", Kind::List(&Kind::Text, 0, 16), "texts that end the answer and are no part of it"),
    ADAPTER,
    ADAPTERS,
    PATTERNS,
    STREAM,
    optional("metadata", Kind::Object(METADATA), "labels for the server's log; the answer does not depend on them"),
    unheeded("service_tier", Kind::Text, "there is one tier"),
    unheeded("diagnostics", Kind::Any, "the server's log and /metrics tell more"),
    unheeded("inference_geo", Kind::Text, "the model runs where the server does"),
    unheeded("speed", Kind::Text, "there is one speed"),
    unheeded("user_profile_id", Kind::Text, "a label"),
    unheeded("workspace_id", Kind::Text, "a label"),
];

/// Answers a conversation.
pub(super) fn answer(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        let mut asked = ParsedRequest::read(&call, None)?;
        asked.request.stop = call.body.texts("stop_sequences");
        if asked.request.stop.iter().any(String::is_empty) {
            return Err(ApiError::bad(
                "stop_sequences",
                "a text of 'stop_sequences' is empty; it would end every answer",
            ));
        }
        let tool_use = read_tools(&call, &mut asked.request).await?;
        let conversation = conversation(&call)?;
        let prompt = prompt(&mut call, None, tool_use.as_ref(), conversation).await?;
        let n_prompt = prompt.tokens().len();
        call.begin_thinking(&mut asked.request, &prompt)?;
        let reading = Reading::new(tool_use.as_ref(), asked.request.thinking);
        let choices = Choices::start(&call, &asked, vec![prompt])?;
        match asked.is_stream {
            true => Ok(stream::respond(&stream::PINGED, |events| write(call, n_prompt, reading, choices, events))),
            false => {
                let summaries = choices.collect().await?;
                Ok(json_response(StatusCode::OK, &whole(&call, reading, &summaries[0])))
            }
        }
    })
}

/// Counts the tokens of a conversation.
pub(super) fn count(mut call: Call) -> HandlerFuture {
    Box::pin(async move {
        let tool_use = tools::read(&call.body, call.text()?)?;
        let conversation = conversation(&call)?;
        let n_tokens = prompt(&mut call, None, tool_use.as_ref(), conversation).await?.tokens().len();
        Ok(json_response(StatusCode::OK, &json!({ "input_tokens": n_tokens })))
    })
}

/// Returns the conversation as the chat template reads it, and what the assistant has begun to answer.
fn conversation(call: &Call) -> Result<Conversation, ApiError> {
    let system = call.body.get("system").map(|system| json!({ "role": "system", "content": joined(system) }));
    let mut messages: Vec<Value> = system.into_iter().collect();
    for (i, given) in call.body.list("messages").into_iter().flatten().enumerate() {
        add_message(&mut messages, given, &format!("messages[{i}]"))?;
    }
    let is_begun = |last: &Value| last["role"] == "assistant" && last["tool_calls"].is_null();
    let begun = messages.pop_if(|last| is_begun(last)).map(|last| joined(&last["content"]));
    Ok(Conversation { messages, begun, opens_answer: true })
}

/// Adds a message as the chat template reads it: results are messages of their own, in front of what the user says.
fn add_message(messages: &mut Vec<Value>, given: &Value, path: &str) -> Result<(), ApiError> {
    let role = given["role"].as_str().unwrap_or_default();
    let blocks = given["content"].as_array().map_or(&[][..], Vec::as_slice);
    let (mut calls, mut thought) = (Vec::new(), String::new());
    for (i, block) in blocks.iter().enumerate() {
        let kind = block["type"].as_str().unwrap_or_default();
        let speaker = match kind {
            "tool_use" | "thinking" | "redacted_thinking" => "assistant",
            "tool_result" => "user",
            _ => role,
        };
        if speaker != role {
            let path = format!("{path}.content[{i}]");
            let line = format!("'{path}' is a {kind}, which is for messages of the {speaker}, not of the {role}");
            return Err(ApiError::bad(path, line));
        }
        match kind {
            "thinking" => thought.push_str(block["thinking"].as_str().unwrap_or_default()),
            "tool_use" => calls.push(json!({
                "id": block["id"],
                "type": "function",
                "function": { "name": block["name"], "arguments": block["input"] },
            })),
            "tool_result" => {
                let failed = if block["is_error"] == true { "Error: " } else { "" };
                let content = format!("{failed}{}", joined(&block["content"]));
                messages.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }));
            }
            _ => {}
        }
    }
    let is_of_tools = |block: &Value| block["type"] == "tool_result";
    let says = blocks.iter().any(|block| block["type"] == "text") || !blocks.iter().any(is_of_tools);
    if says {
        let mut message = json!({ "role": role, "content": joined(&given["content"]) });
        if !thought.is_empty() {
            message["reasoning_content"] = json!(thought);
        }
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        messages.push(message);
    }
    Ok(())
}

/// Returns why an answer ended.
fn stop_reason(summary: &Summary, has_calls: bool) -> &'static str {
    match (summary.finish_reason, &summary.stopped_by) {
        (FinishReason::Stop, Some(_)) => "stop_sequence",
        (FinishReason::Stop, None) if has_calls => "tool_use",
        (FinishReason::Stop, None) => "end_turn",
        _ => "max_tokens",
    }
}

fn usage(summary: &Summary) -> Value {
    let n_cached = summary.timings.cached_tokens;
    json!({
        "input_tokens": summary.n_prompt() - n_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": summary.n_answer(),
    })
}

fn head(call: &Call) -> Value {
    json!({
        "id": format!("msg_{}", call.id),
        "type": "message",
        "role": "assistant",
        "model": &*call.model_name,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    })
}

/// Returns the answer in one piece.
fn whole(call: &Call, reading: Reading, summary: &Summary) -> Value {
    let Whole { thought, said, calls } = reading.whole(summary);
    let text = |text: &str| json!({ "type": "text", "text": text });
    let mut content = Vec::new();
    if !thought.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": thought, "signature": "" }));
    }
    if calls.is_empty() || !said.is_empty() {
        content.push(text(&said));
    }
    for (i, ToolCall { name, arguments }) in calls.iter().enumerate() {
        content.push(match serde_json::from_str::<Value>(arguments) {
            Ok(input) => {
                json!({ "type": "tool_use", "id": call_id(&call.id, "toolu", 0, i), "name": name, "input": input })
            }
            // The answer was cut within the arguments: they are no object, and not lost.
            Err(_) => text(arguments),
        });
    }
    let mut answer = head(call);
    answer["content"] = json!(content);
    answer["stop_reason"] = json!(stop_reason(summary, !calls.is_empty()));
    answer["stop_sequence"] = json!(summary.stopped_by);
    answer["usage"] = usage(summary);
    answer
}

/// The blocks of an answer while it is written.
struct Blocks<'c> {
    call: &'c Call,
    events: Arc<Events>,
    n_begun: usize,
    open: Option<BlockKind>,
}

/// Whose text a block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockKind {
    Text,
    Thinking,
}

impl Blocks<'_> {
    async fn send(&self, name: &str, mut event: Value) -> Result<(), Disconnected> {
        event["type"] = json!(name);
        self.events.send_named(name, &event).await
    }

    /// Sends an event about the block that was begun last.
    async fn about(&self, name: &str, mut event: Value) -> Result<(), Disconnected> {
        event["index"] = json!(self.n_begun.saturating_sub(1));
        self.send(name, event).await
    }

    async fn begin(&mut self, block: Value) -> Result<(), Disconnected> {
        self.n_begun += 1;
        self.about("content_block_start", json!({ "content_block": block })).await
    }

    /// Has a block of this kind open.
    async fn begin_text(&mut self, kind: BlockKind) -> Result<(), Disconnected> {
        if self.open == Some(kind) {
            return Ok(());
        }
        self.end_text().await?;
        self.open = Some(kind);
        self.begin(match kind {
            BlockKind::Text => json!({ "type": "text", "text": "" }),
            BlockKind::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
        })
        .await
    }

    async fn end_text(&mut self) -> Result<(), Disconnected> {
        let Some(kind) = self.open.take() else { return Ok(()) };
        if kind == BlockKind::Thinking {
            // Clients keep it, and send it back with the thought.
            self.delta(json!({ "type": "signature_delta", "signature": "" })).await?;
        }
        self.about("content_block_stop", json!({})).await
    }

    async fn delta(&self, delta: Value) -> Result<(), Disconnected> {
        self.about("content_block_delta", json!({ "delta": delta })).await
    }

    async fn take(&mut self, event: AnswerEvent) -> Result<(), Disconnected> {
        let event = match event {
            AnswerEvent::Thought(text) => {
                self.begin_text(BlockKind::Thinking).await?;
                return self.delta(json!({ "type": "thinking_delta", "thinking": text })).await;
            }
            AnswerEvent::Said(event) => event,
        };
        match event {
            CallEvent::Text(text) => {
                self.begin_text(BlockKind::Text).await?;
                self.delta(json!({ "type": "text_delta", "text": text })).await
            }
            CallEvent::Begin { index, name } => {
                self.end_text().await?;
                let id = call_id(&self.call.id, "toolu", 0, index);
                self.begin(json!({ "type": "tool_use", "id": id, "name": name, "input": {} })).await
            }
            CallEvent::Arguments { json, .. } => {
                self.delta(json!({ "type": "input_json_delta", "partial_json": json })).await
            }
            CallEvent::End { .. } => self.about("content_block_stop", json!({})).await,
        }
    }
}

/// Writes the answer in pieces.
async fn write(
    call: Call,
    n_prompt: usize,
    mut reading: Reading,
    mut choices: Choices,
    events: Arc<Events>,
) -> Result<(), Disconnected> {
    let mut message = head(&call);
    message["usage"] = json!({
        "input_tokens": n_prompt,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    });
    let mut blocks = Blocks { call: &call, events, n_begun: 0, open: None };
    blocks.send("message_start", json!({ "message": message })).await?;
    loop {
        match choices.next().await {
            Ok(Some((_, Chunk::Progress(_)))) => {}
            Ok(Some((_, Chunk::Token(token)))) => {
                for event in reading.push(&token) {
                    blocks.take(event).await?;
                }
            }
            Ok(Some((_, Chunk::End(rest, summary)))) => {
                for event in reading.finish(&rest, &summary) {
                    blocks.take(event).await?;
                }
                if blocks.n_begun == 0 || blocks.open == Some(BlockKind::Thinking) {
                    blocks.begin_text(BlockKind::Text).await?;
                }
                blocks.end_text().await?;
                let reason = stop_reason(&summary, reading.has_calls());
                let end = json!({ "stop_reason": reason, "stop_sequence": summary.stopped_by });
                blocks.send("message_delta", json!({ "delta": end, "usage": usage(&summary) })).await?;
            }
            Ok(None) => return blocks.send("message_stop", json!({})).await,
            Err(error) => return blocks.events.send_named("error", &error.body(Shape::Anthropic)).await,
        }
    }
}
