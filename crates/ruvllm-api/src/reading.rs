//! Reads answers: what the model thinks, what it says and what it calls, as the text comes and whole.

use ruvllm_engine::thoughts::{Thinking, ThoughtReader};
use ruvllm_engine::tools::{CallEvent, CallReader, ToolUse};
use ruvllm_engine::{FinishReason, GenerationSummary};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEvent {
    /// Text of what the model thinks.
    Thought(String),
    /// Text and calls of the answer itself.
    Said(CallEvent),
}

/// A call of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// JSON, whole unless the answer was cut.
    pub arguments: String,
}

/// Reads one answer as it comes.
#[derive(Debug)]
pub struct AnswerReader {
    thoughts: Option<ThoughtReader>,
    calls: Option<CallReader>,
}

impl AnswerReader {
    /// Makes a reader for an answer of these tools and thoughts.
    pub fn new(tool_use: Option<&ToolUse>, thinking: Option<Thinking>) -> AnswerReader {
        AnswerReader { thoughts: thinking.as_ref().map(Thinking::reader), calls: tool_use.map(ToolUse::reader) }
    }

    /// Takes more text, and returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<AnswerEvent> {
        match &mut self.thoughts {
            Some(thoughts) => {
                let (thought, said) = thoughts.push(text);
                self.take(thought, said)
            }
            None => self.take(String::new(), text.to_owned()),
        }
    }

    /// Takes a thought and a text behind it.
    fn take(&mut self, thought: String, said: String) -> Vec<AnswerEvent> {
        let mut events = Vec::new();
        if !thought.is_empty() {
            events.push(AnswerEvent::Thought(thought));
        }
        if !said.is_empty() {
            let said = match &mut self.calls {
                None => vec![CallEvent::Text(said)],
                Some(calls) => calls.push(&said),
            };
            events.extend(self.without_space(said));
        }
        events
    }

    /// Takes the last text, and returns all that was held back; the beginning of a call that was cut is no text.
    pub fn finish(&mut self, text: &str, summary: &GenerationSummary) -> Vec<AnswerEvent> {
        let mut events = self.push(text);
        if let Some((thought, said)) = self.thoughts.as_mut().map(ThoughtReader::finish) {
            events.extend(self.take(thought, said));
        }
        let finish = match summary.finish_reason {
            FinishReason::Length => CallReader::finish_cut,
            _ => CallReader::finish,
        };
        let rest = self.calls.as_mut().map(finish).unwrap_or_default();
        events.extend(self.without_space(rest));
        events
    }

    /// Returns whether something was called.
    pub fn has_calls(&self) -> bool {
        self.calls.as_ref().is_some_and(|reader| reader.n_calls() > 0)
    }

    /// Leaves out white space between and behind calls.
    fn without_space(&self, events: Vec<CallEvent>) -> impl Iterator<Item = AnswerEvent> + use<> {
        let has_calls = self.has_calls();
        let is_space = move |event: &CallEvent| matches!(event, CallEvent::Text(text) if text.trim().is_empty());
        events.into_iter().filter(move |event| !(has_calls && is_space(event))).map(AnswerEvent::Said)
    }
}

/// A whole answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// Text of its thoughts.
    pub thought: String,
    /// Text of the answer itself.
    pub said: String,
    /// Its calls, in order.
    pub calls: Vec<ToolCall>,
}

impl Whole {
    /// Reads the answer of a summary.
    pub fn read(mut reading: AnswerReader, summary: &GenerationSummary) -> Whole {
        Whole::of_events(reading.finish(&summary.text, summary))
    }

    /// Puts the pieces of an answer together.
    pub fn of_events(events: Vec<AnswerEvent>) -> Whole {
        let mut whole = Whole::default();
        for event in events {
            match event {
                AnswerEvent::Thought(text) => whole.thought.push_str(&text),
                AnswerEvent::Said(CallEvent::Text(text)) => whole.said.push_str(&text),
                AnswerEvent::Said(CallEvent::Begin { name, .. }) => {
                    whole.calls.push(ToolCall { name, ..ToolCall::default() });
                }
                AnswerEvent::Said(CallEvent::Arguments { index, json }) => {
                    whole.calls[index].arguments.push_str(&json);
                }
                AnswerEvent::Said(CallEvent::End { .. }) => {}
            }
        }
        whole
    }
}
