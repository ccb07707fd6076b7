//! Answers as Ollama writes them: whole, or line by line, with thoughts and calls beside what is said.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use ruvllm_api::error::{ApiError, Shape};
use ruvllm_api::openai::chat::n_logprobs;
use ruvllm_api::reading::{AnswerEvent, ToolCall};
use ruvllm_api::tools::call_id;
use ruvllm_engine::FinishReason;
use ruvllm_engine::template::strftime;
use ruvllm_engine::tools::{CallEvent, ToolUse};
use serde_json::{Value, json};

use crate::call::Call;
use crate::call::answer::{Chunk, Piece, Reading, Summary};
use crate::call::generate::{Choices, ParsedRequest};
use crate::call::prompt::Prompt;
use crate::call::response::json_response;
use crate::call::stream::{self, Disconnected, Events};
use crate::handlers::ollama::names::of_answer;

/// Where an answer's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// In `message`.
    Chat,
    /// In `response`.
    Generate,
}

/// Reads how an answer is to be written.
///
/// # Errors
/// As [`ParsedRequest::read`].
pub(super) fn asked(call: &Call) -> Result<ParsedRequest, ApiError> {
    let given = &call.body;
    let mut asked = ParsedRequest::read(call, None)?;
    (asked.is_stream, asked.is_truncated) = (given.flag("stream", true), given.flag("truncate", true));
    asked.request.logprobs = n_logprobs(&call.body)?;
    Ok(asked)
}

/// Answers a prompt.
///
/// # Errors
/// As [`Choices::start`], or the answer failed.
pub(super) async fn respond(
    call: Call,
    mut asked: ParsedRequest,
    tool_use: Option<ToolUse>,
    prompt: Prompt,
    form: Form,
) -> Result<Response<Body>, ApiError> {
    call.begin_thinking(&mut asked.request, &prompt)?;
    let reading = Reading::new(tool_use.as_ref(), asked.request.thinking);
    let reader = Reader { reading, open: None, n_calls: 0 };
    let choices = Choices::start(&call, &asked, vec![prompt])?;
    match asked.is_stream {
        true => Ok(stream::respond(&stream::LINES, |events| write(call, form, reader, choices, events))),
        false => {
            let summaries = choices.collect().await?;
            Ok(json_response(StatusCode::OK, &whole(&call, form, reader, &summaries[0])))
        }
    }
}

/// Returns the answer to a request that only loads the model.
pub(super) fn loaded(call: &Call, form: Form) -> Response<Body> {
    let mut answer = line(call, form, &Said::default());
    (answer["done"], answer["done_reason"]) = (json!(true), json!("load"));
    json_response(StatusCode::OK, &answer)
}

/// What a piece of an answer says, or a whole one.
#[derive(Debug, Default)]
struct Said {
    thought: String,
    text: String,
    /// Whole calls, by their place in the answer.
    calls: Vec<(usize, String, Value)>,
}

impl Said {
    fn is_empty(&self) -> bool {
        self.thought.is_empty() && self.text.is_empty() && self.calls.is_empty()
    }
}

/// Reads an answer as it comes.
struct Reader {
    reading: Reading,
    /// A call that is being written.
    open: Option<ToolCall>,
    n_calls: usize,
}

impl Reader {
    fn push(&mut self, piece: &Piece) -> Said {
        let events = self.reading.push(piece);
        self.say(events)
    }

    /// Takes the last text, and returns all that was held back.
    fn finish(&mut self, text: &str, summary: &Summary) -> Said {
        let events = self.reading.finish(text, summary);
        let mut said = self.say(events);
        self.close(&mut said);
        said
    }

    /// Takes a whole answer.
    fn all(&mut self, summary: &Summary) -> Said {
        let events = self.reading.all(summary);
        let mut said = self.say(events);
        self.close(&mut said);
        said
    }

    fn say(&mut self, events: Vec<AnswerEvent>) -> Said {
        let mut said = Said::default();
        events.into_iter().for_each(|event| self.take(event, &mut said));
        said
    }

    fn take(&mut self, event: AnswerEvent, said: &mut Said) {
        let event = match event {
            AnswerEvent::Thought(text) => return said.thought.push_str(&text),
            AnswerEvent::Said(event) => event,
        };
        match event {
            CallEvent::Text(text) => said.text.push_str(&text),
            CallEvent::Begin { name, .. } => self.open = Some(ToolCall { name, ..ToolCall::default() }),
            CallEvent::Arguments { json, .. } => {
                self.open.iter_mut().for_each(|open| open.arguments.push_str(&json));
            }
            CallEvent::End { .. } => self.close(said),
        }
    }

    /// Ends the call that is being written. Arguments that were cut are no object, and not lost: they are text.
    fn close(&mut self, said: &mut Said) {
        let Some(ToolCall { name, arguments }) = self.open.take() else { return };
        match serde_json::from_str::<Value>(if arguments.is_empty() { "{}" } else { &arguments }) {
            Ok(arguments) => {
                said.calls.push((self.n_calls, name, arguments));
                self.n_calls += 1;
            }
            Err(_) => said.text.push_str(&arguments),
        }
    }
}

/// Returns a line of an answer.
fn line(call: &Call, form: Form, said: &Said) -> Value {
    let mut line = json!({ "model": of_answer(call), "created_at": now(), "done": false });
    let of_text = match form {
        Form::Chat => {
            line["message"] = json!({ "role": "assistant", "content": said.text });
            &mut line["message"]
        }
        Form::Generate => {
            line["response"] = json!(said.text);
            &mut line
        }
    };
    if !said.thought.is_empty() {
        of_text["thinking"] = json!(said.thought);
    }
    if !said.calls.is_empty() {
        let of_call = |(index, name, arguments): &(usize, String, Value)| {
            json!({
                "id": call_id(&call.id, "call", 0, *index),
                "function": { "index": index, "name": name, "arguments": arguments },
            })
        };
        of_text["tool_calls"] = said.calls.iter().map(of_call).collect();
    }
    line
}

/// Adds what is known when an answer is over.
fn end(line: &mut Value, call: &Call, summary: &Summary) {
    let timings = &summary.timings;
    let of_ms = |ms: f64| (ms * 1e6) as u64;
    let reason = if summary.finish_reason == FinishReason::Stop { "stop" } else { "length" };
    for (name, value) in [
        ("done", json!(true)),
        ("done_reason", json!(reason)),
        ("total_duration", json!(nanoseconds(call.asked_at.elapsed()))),
        ("load_duration", json!(nanoseconds(load_duration(call)))),
        ("prompt_eval_count", json!(summary.n_prompt())),
        ("prompt_eval_duration", json!(of_ms(timings.prompt_ms))),
        ("eval_count", json!(summary.n_answer())),
        ("eval_duration", json!(of_ms(timings.decode_ms))),
    ] {
        line[name] = value;
    }
}

/// Returns how long a request waited for its model.
pub(super) fn load_duration(call: &Call) -> Duration {
    call.loaded_at.saturating_duration_since(call.asked_at)
}

pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds log-probabilities as chats tell them, if there are some.
fn add_logprobs(line: &mut Value, logprobs: Value) {
    if let Value::Object(mut logprobs) = logprobs {
        line["logprobs"] = logprobs.remove("content").unwrap_or_default();
    }
}

/// Returns the answer in one piece.
fn whole(call: &Call, form: Form, mut reader: Reader, summary: &Summary) -> Value {
    let said = reader.all(summary);
    let mut answer = line(call, form, &said);
    add_logprobs(&mut answer, summary.chat_logprobs(call));
    end(&mut answer, call, summary);
    answer
}

/// Writes the answer in lines.
async fn write(
    call: Call,
    form: Form,
    mut reader: Reader,
    mut choices: Choices,
    events: Arc<Events>,
) -> Result<(), Disconnected> {
    loop {
        match choices.next().await {
            Ok(Some((_, Chunk::Progress(_)))) => {}
            Ok(Some((_, Chunk::Token(token)))) => {
                let said = reader.push(&token);
                if !said.is_empty() || token.has_logprobs() {
                    let mut piece = line(&call, form, &said);
                    add_logprobs(&mut piece, token.chat_logprobs(&call));
                    events.send_line(&piece).await?;
                }
            }
            Ok(Some((_, Chunk::End(rest, summary)))) => {
                let said = reader.finish(&rest, &summary);
                if !said.is_empty() {
                    events.send_line(&line(&call, form, &said)).await?;
                }
                let mut last = line(&call, form, &Said::default());
                end(&mut last, &call, &summary);
                events.send_line(&last).await?;
            }
            Ok(None) => return Ok(()),
            Err(error) => return events.send_line(&error.body(Shape::Ollama)).await,
        }
    }
}

/// Returns the time as RFC 3339 writes it, in UTC.
pub(super) fn date(time: SystemTime) -> String {
    let micros = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_micros());
    format!("{}.{micros:06}Z", strftime(time, "%Y-%m-%dT%H:%M:%S"))
}

fn now() -> String {
    date(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_rfc_3339() {
        let at = |micros: u64| date(UNIX_EPOCH + Duration::from_micros(micros));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(at(951_782_400_000_042), "2000-02-29T00:00:00.000042Z");
    }
}
