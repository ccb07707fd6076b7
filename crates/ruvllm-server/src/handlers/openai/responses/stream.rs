//! A response in pieces: events about its items as they are written.

use std::sync::Arc;

use axum::http::StatusCode;
use ruvllm_api::error::ApiError;
use ruvllm_api::progress::with_progress;
use ruvllm_api::reading::{AnswerEvent, ToolCall};
use ruvllm_api::thinking;
use ruvllm_api::timings::{Clocks, timed};
use ruvllm_engine::tools::CallEvent;
use serde_json::{Value, json};

use crate::call::Call;
use crate::call::answer::{Chunk, Summary};
use crate::call::stream::{Disconnected, Events};
use crate::handlers::openai::responses::output::{
    Output, Stop, function_call, function_id, message, part, reasoning, thought_part,
};
use crate::handlers::openai::responses::rounds::{Ended, First, Responding, Started};
use crate::handlers::openai::responses::status;

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

/// The items of a round while it is written.
struct Items<'c> {
    call: &'c Call,
    responding: &'c Responding,
    out: &'c mut Output,
    /// Whether something was said or called in this round.
    has_said: bool,
    /// The text that is open, if one is.
    text: Option<Open>,
    /// The call that is open.
    called: ToolCall,
    /// Calls of functions so far.
    n_calls: usize,
    /// Calls of tools that are run here.
    own: Vec<ToolCall>,
    /// Times of the token that is told, if they are asked for.
    times: Value,
}

impl<'c> Items<'c> {
    fn new(call: &'c Call, responding: &'c Responding, out: &'c mut Output) -> Items<'c> {
        let (called, times) = (ToolCall::default(), Value::Null);
        Items { call, responding, out, has_said: false, text: None, called, n_calls: 0, own: Vec::new(), times }
    }

    /// Returns an event about the item that is open.
    fn event(&self, more: Value) -> Value {
        let id = match &self.text {
            Some(open) => open.item(self.call, "", false)["id"].take(),
            None => json!(function_id(self.call, self.n_calls.saturating_sub(1))),
        };
        let mut event = json!({ "item_id": id, "output_index": self.out.done.len() });
        if self.text.is_some() {
            event["content_index"] = json!(0);
        }
        event.as_object_mut().into_iter().for_each(|event| event.extend(more.as_object().cloned().unwrap_or_default()));
        event
    }

    /// Returns the item of the function's call that is open.
    fn function(&self, status: &str) -> Value {
        function_call(self.call, self.n_calls.saturating_sub(1), status, &self.called)
    }

    /// Returns whether the call that is open is run here: it is told when it runs.
    fn is_own(&self) -> bool {
        self.responding.runs(&self.called.name)
    }

    async fn open(&mut self, kind: TextKind) -> Result<(), Disconnected> {
        let open = Open { kind, text: String::new() };
        self.has_said |= kind == TextKind::Message;
        self.out.added(open.item(self.call, "in_progress", false)).await?;
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
        self.out.is_done(open.item(self.call, status, true)).await
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
                self.has_said = true;
                self.called = ToolCall { name, ..ToolCall::default() };
                if self.is_own() {
                    return Ok(());
                }
                self.n_calls += 1;
                self.out.added(self.function("in_progress")).await
            }
            CallEvent::Arguments { json, .. } => {
                self.called.arguments.push_str(&json);
                if self.is_own() {
                    return Ok(());
                }
                let delta = timed(self.event(json!({ "delta": json })), &self.times);
                self.out.send("response.function_call_arguments.delta", delta).await
            }
            CallEvent::End { .. } if self.is_own() => {
                self.own.push(std::mem::take(&mut self.called));
                Ok(())
            }
            CallEvent::End { .. } => {
                let whole = json!({ "name": self.called.name, "arguments": self.called.arguments });
                let done = self.event(whole);
                self.out.send("response.function_call_arguments.done", done).await?;
                self.out.is_done(self.function(status)).await
            }
        }
    }
}

/// A round whose answer is over.
struct Read {
    summary: Box<Summary>,
    calls: Vec<ToolCall>,
    has_functions: bool,
}

/// Writes a response in pieces.
pub(super) async fn write(
    mut call: Call,
    mut responding: Responding,
    first: First,
    events: Arc<Events>,
) -> Result<(), Disconnected> {
    let mut output = Output::streamed(events);
    for name in ["response.created", "response.in_progress"] {
        output.send(name, json!({ "response": responding.begun(&call) })).await?;
    }
    match rounds(&mut call, &mut responding, first, &mut output).await {
        Ok(()) => Ok(()),
        Err(Stop::Disconnected) => Err(Disconnected),
        Err(Stop::Failed(ApiError { message, code, param, .. })) => {
            let error = json!({ "code": code, "message": message, "param": param });
            output.send("error", error).await
        }
    }
}

/// Writes all rounds of a response, and its end.
async fn rounds(call: &mut Call, responding: &mut Responding, first: First, output: &mut Output) -> Result<(), Stop> {
    let mut started = responding.begin(call, first, output).await?;
    let mut clocks = Clocks::new(&call.body, 1);
    loop {
        let Read { summary, calls, has_functions } = round(call, responding, &mut started, &mut clocks, output).await?;
        let ended = Ended { summary: &summary, calls, has_functions, choices: started.choices };
        match responding.next(call, ended, output).await? {
            Some(next) => started = next,
            None => {
                let (name, mut response) = responding.end(call, output);
                responding.keeping.keep(call, &mut response).await;
                let times = if clocks.is_asked() { summary.timings() } else { Value::Null };
                return Ok(output.send(name, timed(json!({ "response": response }), &times)).await?);
            }
        }
    }
}

/// Writes what the model answers in a round.
async fn round(
    call: &Call,
    responding: &Responding,
    started: &mut Started,
    clocks: &mut Clocks,
    output: &mut Output,
) -> Result<Read, Stop> {
    let (mut reading, mut items) = (started.reading(), Items::new(call, responding, output));
    loop {
        let Some((_, chunk)) = started.choices.next().await? else {
            let line = "an answer has no end; the server's log tells more";
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, line).into());
        };
        match chunk {
            Chunk::Progress(progress) => {
                let event = json!({ "response": responding.begun(call) });
                items.out.send("response.in_progress", with_progress(event, &progress)).await?;
            }
            Chunk::Token(token) => {
                items.times = clocks.tick(0);
                for event in reading.push(&token) {
                    items.take(event, "completed").await?;
                }
            }
            Chunk::End(rest, summary) => {
                for event in reading.finish(&rest, &summary) {
                    items.take(event, status(&summary)).await?;
                }
                if !items.has_said {
                    items.close(status(&summary)).await?;
                    items.open(TextKind::Message).await?;
                }
                items.close(status(&summary)).await?;
                let (calls, has_functions) = (items.own, items.n_calls > 0);
                return Ok(Read { summary, calls, has_functions });
            }
        }
    }
}
