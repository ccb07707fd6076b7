//! A response in pieces: events about its items as they are written.

use std::sync::Arc;

use ruvllm_api::error::ApiError;
use ruvllm_api::progress::with_progress;
use ruvllm_api::reading::{AnswerEvent, ToolCall};
use ruvllm_api::thinking;
use ruvllm_api::timings::{Clocks, timed};
use ruvllm_api::tools::call_id;
use ruvllm_engine::FinishReason;
use ruvllm_engine::tools::CallEvent;
use serde_json::{Value, json};

use crate::call::Call;
use crate::call::answer::{Chunk, Reading};
use crate::call::generate::Choices;
use crate::call::stream::{Disconnected, Events};
use crate::handlers::openai::responses::{
    Prepared, function_call, message, object, part, reasoning, status, thought_part,
};

/// Sends events with their numbers.
struct Numbered {
    events: Arc<Events>,
    n_sent: u64,
}

impl Numbered {
    async fn send(&mut self, name: &str, mut event: Value) -> Result<(), Disconnected> {
        event["type"] = json!(name);
        event["sequence_number"] = json!(self.n_sent);
        self.n_sent += 1;
        self.events.send_named(name, &event).await
    }
}

/// A text of a response while it is written.
#[derive(Clone, Debug)]
struct Open {
    kind: TextKind,
    text: String,
}

/// Whose text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Message,
    Reasoning,
}

impl Open {
    fn item(&self, call: &Call, status: &str, is_whole: bool) -> Value {
        let text = is_whole.then_some(&*self.text);
        match self.kind {
            TextKind::Message => message(call, status, text),
            TextKind::Reasoning => reasoning(call, status, text),
        }
    }

    fn part(&self) -> Value {
        match self.kind {
            TextKind::Message => part(&self.text),
            TextKind::Reasoning => thought_part(&self.text),
        }
    }

    /// Returns what its events are called, and what they hold beside the text.
    fn events(&self) -> (&'static str, Value) {
        match self.kind {
            TextKind::Message => ("response.output_text", json!({ "logprobs": [] })),
            TextKind::Reasoning => ("response.reasoning_text", json!({})),
        }
    }
}

/// The items of a response while it is written.
struct Items<'c> {
    call: &'c Call,
    out: Numbered,
    /// Those that are whole.
    done: Vec<Value>,
    /// The text that is open, if one is.
    text: Option<Open>,
    /// The call that is open.
    called: ToolCall,
    n_calls: usize,
    /// Times of the token that is told, if they are asked for.
    times: Value,
}

impl Items<'_> {
    /// Returns an event about the item that is open.
    fn event(&self, more: Value) -> Value {
        let id = match &self.text {
            Some(open) => open.item(self.call, "", false)["id"].take(),
            None => json!(self.call_item("fc")),
        };
        let mut event = json!({ "item_id": id, "output_index": self.done.len() });
        if self.text.is_some() {
            event["content_index"] = json!(0);
        }
        event.as_object_mut().into_iter().for_each(|event| event.extend(more.as_object().cloned().unwrap_or_default()));
        event
    }

    /// Returns whether something was said or called.
    fn has_said(&self) -> bool {
        let is_open = self.text.as_ref().is_some_and(|open| open.kind == TextKind::Message);
        is_open || self.done.iter().any(|item| item["type"] != "reasoning")
    }

    fn call_item(&self, prefix: &str) -> String {
        call_id(&self.call.id, prefix, 0, self.n_calls.saturating_sub(1))
    }

    async fn added(&mut self, item: Value) -> Result<(), Disconnected> {
        let event = json!({ "output_index": self.done.len(), "item": item });
        self.out.send("response.output_item.added", event).await
    }

    async fn is_done(&mut self, item: Value) -> Result<(), Disconnected> {
        let event = json!({ "output_index": self.done.len(), "item": item });
        self.done.push(item);
        self.out.send("response.output_item.done", event).await
    }

    async fn open(&mut self, kind: TextKind) -> Result<(), Disconnected> {
        let open = Open { kind, text: String::new() };
        self.added(open.item(self.call, "in_progress", false)).await?;
        let part = open.part();
        self.text = Some(open);
        let event = self.event(json!({ "part": part }));
        self.out.send("response.content_part.added", event).await
    }

    async fn close(&mut self, status: &str) -> Result<(), Disconnected> {
        let Some(open) = self.text.clone() else { return Ok(()) };
        let (name, mut done) = open.events();
        done["text"] = json!(open.text);
        let done = self.event(done);
        self.out.send(&format!("{name}.done"), done).await?;
        let done = self.event(json!({ "part": open.part() }));
        self.out.send("response.content_part.done", done).await?;
        self.text = None;
        self.is_done(open.item(self.call, status, true)).await
    }

    /// Adds to a text, which is opened if it is not.
    async fn add(&mut self, kind: TextKind, text: String) -> Result<(), Disconnected> {
        if self.text.as_ref().is_none_or(|open| open.kind != kind) {
            self.close("completed").await?;
            self.open(kind).await?;
        }
        let Some(open) = &mut self.text else { return Ok(()) };
        open.text.push_str(&text);
        let (name, mut delta) = open.events();
        delta["delta"] = json!(text);
        let delta = timed(self.event(delta), &self.times);
        self.out.send(&format!("{name}.delta"), delta).await
    }

    async fn take(&mut self, event: AnswerEvent, status: &str) -> Result<(), Disconnected> {
        let event = match event {
            AnswerEvent::Thought(text) if thinking::is_told(&self.call.body) => {
                return self.add(TextKind::Reasoning, text).await;
            }
            AnswerEvent::Thought(_) => return Ok(()),
            AnswerEvent::Said(event) => event,
        };
        match event {
            CallEvent::Text(text) => self.add(TextKind::Message, text).await,
            CallEvent::Begin { name, .. } => {
                self.close("completed").await?;
                self.n_calls += 1;
                self.called = ToolCall { name, ..ToolCall::default() };
                self.added(function_call(self.call, self.n_calls - 1, "in_progress", &self.called)).await
            }
            CallEvent::Arguments { json, .. } => {
                self.called.arguments.push_str(&json);
                let delta = timed(self.event(json!({ "delta": json })), &self.times);
                self.out.send("response.function_call_arguments.delta", delta).await
            }
            CallEvent::End { .. } => {
                let whole = json!({ "name": self.called.name, "arguments": self.called.arguments });
                let done = self.event(whole);
                self.out.send("response.function_call_arguments.done", done).await?;
                let item = function_call(self.call, self.n_calls - 1, status, &self.called);
                self.is_done(item).await
            }
        }
    }
}

/// Writes the answer in pieces.
pub(super) async fn write(
    call: Call,
    prepared: Prepared,
    mut choices: Choices,
    events: Arc<Events>,
) -> Result<(), Disconnected> {
    let Prepared { asked, tool_use, mut keeping, .. } = prepared;
    let mut out = Numbered { events, n_sent: 0 };
    for name in ["response.created", "response.in_progress"] {
        out.send(name, json!({ "response": object(&call, &asked, None) })).await?;
    }
    let mut reading = Reading::new(tool_use.as_ref(), asked.request.thinking);
    let (called, times) = (ToolCall::default(), Value::Null);
    let mut items = Items { call: &call, out, done: Vec::new(), text: None, called, n_calls: 0, times };
    let mut clocks = Clocks::new(&call.body, 1);
    loop {
        match choices.next().await {
            Ok(Some((_, Chunk::Progress(progress)))) => {
                let event = json!({ "response": object(&call, &asked, None) });
                items.out.send("response.in_progress", with_progress(event, &progress)).await?;
            }
            Ok(Some((_, Chunk::Token(token)))) => {
                items.times = clocks.tick(0);
                for event in reading.push(&token) {
                    items.take(event, "completed").await?;
                }
            }
            Ok(Some((_, Chunk::End(rest, summary)))) => {
                for event in reading.finish(&rest, &summary) {
                    items.take(event, status(&summary)).await?;
                }
                if !items.has_said() {
                    items.close(status(&summary)).await?;
                    items.open(TextKind::Message).await?;
                }
                items.close(status(&summary)).await?;
                let is_cut = summary.finish_reason == FinishReason::Length;
                let name = if is_cut { "response.incomplete" } else { "response.completed" };
                let output = std::mem::take(&mut items.done);
                let mut response = object(&call, &asked, Some((&*summary, output)));
                keeping.keep(&call, &mut response).await;
                let times = if clocks.is_asked() { summary.timings() } else { Value::Null };
                items.out.send(name, timed(json!({ "response": response }), &times)).await?;
            }
            Ok(None) => return Ok(()),
            Err(ApiError { message, code, param, .. }) => {
                let error = json!({ "code": code, "message": message, "param": param });
                return items.out.send("error", error).await;
            }
        }
    }
}
