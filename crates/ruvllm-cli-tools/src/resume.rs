//! A named session in `run` and `chat`: what there was under the name, and saving it.

use std::time::Instant;

use ruvllm_engine::template::ChatInput;
use ruvllm_engine::tokenizer::EncodeOptions;
use ruvllm_engine::{ChatOptions, Engine, FinishReason, GenerationSummary, Session};
use serde_json::{Value, json};

use crate::args::cache::CacheArgs;
use crate::error::{Error, Result};

/// The session that a command goes on with, or begins.
#[derive(Debug)]
pub struct Resume {
    name: String,
    /// Conversation so far.
    pub session: Session,
    /// Tokens that need no computing because their keys and values were read from disk.
    n_restored: usize,
    restore_ms: f64,
}

impl Resume {
    /// Reads the session that the command line names, if it does, and its keys and values; of a name that is new, an
    /// empty one or the copy of another.
    ///
    /// # Errors
    /// The session is of another model or cannot be read; there is none to be copied, or one in place of the copy.
    pub fn load(engine: &mut Engine, args: &CacheArgs) -> Result<Option<Resume>> {
        let Some(name) = &args.session else { return Ok(None) };
        let start = Instant::now();
        if let Some(from) = &args.fork {
            engine.fork_session(from, name)?;
        }
        let session = engine.load_session(name)?.unwrap_or_default();
        let n_restored = engine.restore_prefix(&session.tokens, 0);
        let restore_ms = start.elapsed().as_secs_f64() * 1e3;
        Ok(Some(Resume { name: name.to_owned(), session, n_restored, restore_ms }))
    }

    /// Returns a line about what was found.
    pub fn note(&self) -> String {
        let (name, n) = (&self.name, self.session.tokens.len());
        match (n, self.session.messages.len()) {
            (0, _) => format!("session '{name}' begins"),
            (_, 0) => format!("session '{name}' goes on after {n} tokens, {} of them from disk", self.n_restored),
            (_, n_messages) => format!(
                "session '{name}' goes on after {n_messages} messages ({n} tokens, {} of them from disk)",
                self.n_restored
            ),
        }
    }

    /// Returns the messages.
    ///
    /// # Errors
    /// A usage error if the session continues a text.
    pub fn messages(&self) -> Result<&[Value]> {
        if self.session.messages.is_empty() && !self.session.tokens.is_empty() {
            let name = &self.name;
            let line = "continues a text and holds no conversation; use 'ruvllm run --raw' or another name";
            return Err(Error::usage(format_args!("session '{name}' {line}")));
        }
        Ok(&self.session.messages)
    }

    /// Appends a message and returns the tokens of the conversation up to the answer.
    ///
    /// # Errors
    /// A usage error if the session continues a text; the engine's.
    pub fn ask(&mut self, engine: &Engine, text: &str, parse_special: bool) -> Result<Vec<u32>> {
        self.messages()?;
        self.session.messages.push(json!({ "role": "user", "content": text }));
        let messages = self.session.messages.clone();
        let input = ChatInput { messages, add_generation_prompt: true, ..ChatInput::default() };
        Ok(engine.text()?.encode_chat_as(&input, ChatOptions { parse_special, ..ChatOptions::default() })?)
    }

    /// Returns the session's text with `text` behind it, as tokens.
    ///
    /// # Errors
    /// A usage error if the session is a conversation; the engine's.
    pub fn append(&self, engine: &Engine, text: &str, parse_special: bool) -> Result<Vec<u32>> {
        let Session { tokens, messages, .. } = &self.session;
        if !messages.is_empty() {
            let name = &self.name;
            let line = "is a conversation; leave --raw out, use 'ruvllm chat', or choose another name";
            return Err(Error::usage(format_args!("session '{name}' {line}")));
        }
        let tokenizer = engine.tokenizer()?;
        if tokens.is_empty() {
            return Ok(tokenizer.encode_prompt(text, parse_special)?);
        }
        let options = EncodeOptions { add_special: false, parse_special };
        Ok([&tokens[..], &tokenizer.encode(text, options)?].concat())
    }

    /// Takes over an answer and saves the session.
    ///
    /// # Errors
    /// The session cannot be written.
    pub fn finish(&mut self, engine: &Engine, summary: &GenerationSummary) -> Result<()> {
        let is_chat = !self.session.messages.is_empty();
        self.session.tokens.clone_from(&summary.prompt_tokens);
        if is_chat {
            self.session.messages.push(json!({ "role": "assistant", "content": summary.text.trim_end() }));
            self.session.tokens.extend(&summary.tokens);
        } else {
            self.session.tokens.extend(said(engine, summary)?);
        }
        self.save(engine)
    }

    /// Saves the session as it is.
    ///
    /// # Errors
    /// The session cannot be written.
    pub fn save(&self, engine: &Engine) -> Result<()> {
        Ok(engine.save_session(&self.name, &self.session)?)
    }

    /// Returns what `--json` tells of the session.
    pub fn json(&self) -> Value {
        json!({
            "name": self.name,
            "tokens": self.session.tokens.len(),
            "messages": self.session.messages.len(),
            "restored_tokens": self.n_restored,
            "restore_ms": self.restore_ms,
        })
    }
}

/// Returns the tokens of an answer as far as it was shown: without the token or text that ended it.
fn said(engine: &Engine, summary: &GenerationSummary) -> Result<Vec<u32>> {
    let tokenizer = engine.tokenizer()?;
    match summary.tokens.split_last() {
        Some((&last, rest)) if tokenizer.is_end_of_generation(last) => Ok(rest.to_vec()),
        // A stop string ended it, in the middle of a token perhaps.
        Some(_) if summary.finish_reason == FinishReason::Stop => {
            Ok(tokenizer.encode(&summary.text, EncodeOptions { add_special: false, parse_special: false })?)
        }
        _ => Ok(summary.tokens.clone()),
    }
}
