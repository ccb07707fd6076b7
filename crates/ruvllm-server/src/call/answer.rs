//! Pieces and ends of answers: those of an engine, which are tokens and text, and those of another server, which has told
//! thoughts, text and calls apart.

use std::ops::Deref;

use ruvllm_api::logprobs;
use ruvllm_api::openai::Usage;
use ruvllm_api::reading::{AnswerEvent, AnswerReader, Whole};
use ruvllm_api::remote::Calls;
use ruvllm_api::timings::timings_of;
use ruvllm_backend::CompletionEvent;
use ruvllm_engine::thoughts::Thinking;
use ruvllm_engine::tools::{CallEvent, ToolUse};
use ruvllm_engine::{GenerationSummary, PromptProgress, TokenEvent, TokenLogprobs};
use ruvllm_server_state::models::RemoteEnd;
use serde_json::Value;

use super::Call;

/// A piece of an answer.
#[derive(Debug)]
pub(crate) enum Chunk {
    /// More of its prompt is computed; comes only where a request asks for it.
    Progress(PromptProgress),
    /// A token, and the text that became certain with it; of another server more of what it says.
    Token(Piece),
    /// The answer is over. Text that no token made certain comes with it.
    End(String, Box<Summary>),
}

/// More of an answer.
#[derive(Debug)]
pub(crate) struct Piece {
    /// Text of the answer: an engine's with the marks of thoughts and calls.
    pub text: String,
    of: PieceOf,
}

#[derive(Debug)]
enum PieceOf {
    Engine { id: u32, logprobs: Option<TokenLogprobs> },
    Remote { events: Vec<AnswerEvent>, logprobs: Vec<Value> },
}

impl Piece {
    /// Makes the piece that a token of an engine is.
    pub(super) fn of_token(token: TokenEvent) -> Piece {
        let TokenEvent { id, text, logprobs } = token;
        Piece { text, of: PieceOf::Engine { id, logprobs } }
    }

    /// Returns the token; 0 if another server wrote it.
    pub(crate) fn id(&self) -> u32 {
        match self.of {
            PieceOf::Engine { id, .. } => id,
            PieceOf::Remote { .. } => 0,
        }
    }

    /// Returns whether there are log-probabilities of it.
    pub(crate) fn has_logprobs(&self) -> bool {
        match &self.of {
            PieceOf::Engine { logprobs, .. } => logprobs.is_some(),
            PieceOf::Remote { logprobs, .. } => !logprobs.is_empty(),
        }
    }

    /// Returns its log-probabilities as an engine tells them.
    pub(crate) fn token_logprobs(&self) -> Option<(u32, &TokenLogprobs)> {
        match &self.of {
            PieceOf::Engine { id, logprobs } => logprobs.as_ref().map(|logprobs| (*id, logprobs)),
            PieceOf::Remote { .. } => None,
        }
    }

    /// Returns its log-probabilities as chats tell them; null if there are none.
    pub(crate) fn chat_logprobs(&self, call: &Call) -> Value {
        match &self.of {
            PieceOf::Remote { logprobs, .. } => logprobs::of_chat_elsewhere(logprobs),
            PieceOf::Engine { .. } => {
                call.answer_tokens().map_or(Value::Null, |of| logprobs::of_chat(of, self.token_logprobs().into_iter()))
            }
        }
    }

    /// Returns its log-probabilities as completions tell them, if there are some. `offset` is where its text begins, and becomes
    /// where it ends.
    pub(crate) fn completion_logprobs(&self, call: &Call, offset: &mut usize) -> Option<Value> {
        match &self.of {
            PieceOf::Remote { logprobs, .. } if logprobs.is_empty() => None,
            PieceOf::Remote { logprobs, .. } => Some(logprobs::of_completion_elsewhere(logprobs, offset)),
            PieceOf::Engine { .. } => {
                let (told, of) = (self.token_logprobs()?, call.answer_tokens()?);
                Some(logprobs::of_completion(of, [told].into_iter(), offset))
            }
        }
    }
}

/// An answer that is over: an engine's, or one of another server, of which there is no token.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    generation: GenerationSummary,
    n_prompt: usize,
    n_answer: usize,
    remote: Option<Told>,
}

/// An answer as another server told it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    events: Vec<AnswerEvent>,
    /// How many of them came in pieces.
    n_sent: usize,
    logprobs: Vec<Value>,
}

impl Deref for Summary {
    type Target = GenerationSummary;

    fn deref(&self) -> &GenerationSummary {
        &self.generation
    }
}

impl Summary {
    /// Makes the end of an engine's answer.
    pub(super) fn of_engine(generation: GenerationSummary) -> Summary {
        let (n_prompt, n_answer) = (generation.prompt_tokens.len(), generation.tokens.len());
        Summary { generation, n_prompt, n_answer, remote: None }
    }

    /// Makes the end of another server's answer.
    pub(super) fn of_remote(end: RemoteEnd, told: Told) -> Summary {
        let RemoteEnd { text, finish_reason, n_prompt, n_answer, timings } = end;
        let generation = GenerationSummary {
            text,
            prompt_tokens: Vec::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            finish_reason,
            n_thought: 0,
            stopped_by: None,
            kv: None,
            choices: Box::default(),
            timings,
        };
        Summary { generation, n_prompt, n_answer, remote: Some(told) }
    }

    /// Returns how many tokens the prompt has.
    pub(crate) fn n_prompt(&self) -> usize {
        self.n_prompt
    }

    /// Returns how many tokens the answer has.
    pub(crate) fn n_answer(&self) -> usize {
        self.n_answer
    }

    /// Returns the summary of the engine that wrote it; none if another server did.
    pub(crate) fn generation(&self) -> Option<&GenerationSummary> {
        self.remote.is_none().then_some(&self.generation)
    }

    /// Returns its counts of tokens.
    pub(crate) fn usage(&self) -> Usage {
        Usage { n_prompt: self.n_prompt, n_answer: self.n_answer, ..Usage::of(&self.generation) }
    }

    /// Returns how long it took.
    pub(crate) fn timings(&self) -> Value {
        timings_of(&self.generation.timings, self.n_prompt, self.n_answer)
    }

    /// Returns the log-probabilities of its tokens as chats tell them; null if there are none.
    pub(crate) fn chat_logprobs(&self, call: &Call) -> Value {
        match &self.remote {
            Some(told) => logprobs::of_chat_elsewhere(&told.logprobs),
            None => call.answer_tokens().map_or(Value::Null, |of| logprobs::of_chat(of, self.token_logprobs())),
        }
    }

    /// Returns the log-probabilities of its tokens as completions tell them.
    pub(crate) fn completion_logprobs(&self, call: &Call) -> Value {
        match &self.remote {
            Some(told) => logprobs::of_completion_elsewhere(&told.logprobs, &mut 0),
            None => call
                .answer_tokens()
                .map_or(Value::Null, |of| logprobs::of_completion(of, self.token_logprobs(), &mut 0)),
        }
    }

    /// Returns the tokens that an engine wrote, with their log-probabilities.
    pub(crate) fn token_logprobs(&self) -> impl Iterator<Item = (u32, &TokenLogprobs)> {
        self.generation.tokens.iter().copied().zip(&self.generation.logprobs)
    }
}

/// Hears an answer of another server.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    told: Told,
    calls: Calls,
}

impl Hearing {
    /// Takes an event, and returns the piece that it is.
    pub(super) fn take(&mut self, event: CompletionEvent) -> Piece {
        let mut logprobs = Vec::new();
        let events = match event {
            CompletionEvent::Text(text) => vec![AnswerEvent::Said(CallEvent::Text(text))],
            CompletionEvent::Thought(text) => vec![AnswerEvent::Thought(text)],
            CompletionEvent::Call(piece) => self.calls.take(piece),
            CompletionEvent::Logprobs(tokens) => {
                logprobs = tokens;
                Vec::new()
            }
        };
        let text = match &events[..] {
            [AnswerEvent::Said(CallEvent::Text(text))] => text.clone(),
            _ => String::new(),
        };
        self.told.events.extend_from_slice(&events);
        self.told.n_sent = self.told.events.len();
        self.told.logprobs.extend_from_slice(&logprobs);
        Piece { text, of: PieceOf::Remote { events, logprobs } }
    }

    /// Ends the answer.
    pub(super) fn end(&mut self, end: RemoteEnd) -> Summary {
        let mut told = std::mem::take(&mut self.told);
        told.events.extend(self.calls.finish());
        Summary::of_remote(end, told)
    }
}

/// Reads an answer as it comes: its thoughts, its text and its calls.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Reads the marks in an engine's text.
    marks: AnswerReader,
    /// Whether another server has called something.
    has_calls: bool,
}

impl Reading {
    /// Makes the reading of an answer of these tools and thoughts.
    pub(crate) fn new(tool_use: Option<&ToolUse>, thinking: Option<Thinking>) -> Reading {
        Reading { marks: AnswerReader::new(tool_use, thinking), has_calls: false }
    }

    /// Takes more of the answer, and returns what is certain now.
    pub(crate) fn push(&mut self, piece: &Piece) -> Vec<AnswerEvent> {
        match &piece.of {
            PieceOf::Engine { .. } => self.marks.push(&piece.text),
            PieceOf::Remote { events, .. } => {
                self.has_calls |= has_calls(events);
                events.clone()
            }
        }
    }

    /// Takes the last text, and returns all that was held back.
    pub(crate) fn finish(&mut self, text: &str, summary: &Summary) -> Vec<AnswerEvent> {
        match &summary.remote {
            None => self.marks.finish(text, &summary.generation),
            Some(told) => told.events[told.n_sent..].to_vec(),
        }
    }

    /// Takes a whole answer.
    pub(crate) fn all(&mut self, summary: &Summary) -> Vec<AnswerEvent> {
        match &summary.remote {
            None => self.marks.finish(&summary.generation.text, &summary.generation),
            Some(told) => {
                self.has_calls |= has_calls(&told.events);
                told.events.clone()
            }
        }
    }

    /// Reads a whole answer.
    pub(crate) fn whole(mut self, summary: &Summary) -> Whole {
        Whole::of_events(self.all(summary))
    }

    /// Returns whether something was called.
    pub(crate) fn has_calls(&self) -> bool {
        self.has_calls || self.marks.has_calls()
    }
}

fn has_calls(events: &[AnswerEvent]) -> bool {
    events.iter().any(|event| matches!(event, AnswerEvent::Said(CallEvent::Begin { .. })))
}
