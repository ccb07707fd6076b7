//! The place of an answer's tokens: before, within or behind its thought. A grammar has a say behind it only.

use std::sync::Arc;

use super::Thinking;
use crate::tokenizer::{DecodeOptions, EncodeOptions, Tokenizer};

/// The place of the next token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// None has come.
    Begin,
    Within,
    Behind,
}

/// Follows an answer through its thought, token by token.
#[derive(Debug)]
pub struct Gate {
    state: State,
    thinking: Thinking,
    tokenizer: Arc<Tokenizer>,
    /// The opening mark, if it is one token.
    open: Option<u32>,
    close: Vec<u32>,
    /// The bytes of the tokens so far, while they may be the opening mark; then the last ones of the thought.
    recent: Vec<u8>,
    n_tokens: usize,
    /// The tokens of the closing mark that are to come, the last first.
    forced: Vec<u32>,
}

impl Gate {
    /// Begins to follow an answer.
    pub fn new(thinking: Thinking, tokenizer: &Arc<Tokenizer>) -> Gate {
        let encode = |mark: &str| {
            let options = EncodeOptions { add_special: false, parse_special: true };
            tokenizer.encode(mark, options).unwrap_or_default()
        };
        let open = encode(thinking.format.open);
        let mut gate = Gate {
            state: if thinking.is_open { State::Within } else { State::Begin },
            thinking,
            open: <[u32; 1]>::try_from(open).ok().map(|[id]| id),
            close: encode(thinking.format.close),
            tokenizer: Arc::clone(tokenizer),
            recent: Vec::new(),
            n_tokens: 0,
            forced: Vec::new(),
        };
        gate.check_length();
        gate
    }

    /// Returns whether the next token is one of the thought.
    pub fn is_within(&self) -> bool {
        self.state == State::Within
    }

    /// Returns the token that begins a thought, where one may begin and a mask would rule it out.
    pub fn opening(&self) -> Option<u32> {
        self.open.filter(|_| self.state == State::Begin)
    }

    /// Returns the token that must come next, because the thought is long enough.
    pub fn forced(&self) -> Option<u32> {
        self.forced.last().copied()
    }

    /// Returns how many tokens the thought has, its marks included.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Takes note of the next token, and returns whether it belongs to the thought.
    pub fn accept(&mut self, id: u32) -> bool {
        if self.state == State::Behind {
            return false;
        }
        let bytes = self.tokenizer.decode_bytes(&[id], DecodeOptions { render_special: true });
        self.recent.extend_from_slice(&bytes);
        let is_begun = self.state == State::Begin;
        if is_begun {
            self.begin();
        }
        if self.state != State::Within {
            return false;
        }
        self.n_tokens += 1;
        if self.forced.last() == Some(&id) {
            self.forced.pop();
        }
        if !is_begun && self.is_closed() {
            self.state = State::Behind;
            self.forced.clear();
            return true;
        }
        let n_kept = self.thinking.format.close.len();
        self.recent.drain(..self.recent.len().saturating_sub(n_kept));
        self.check_length();
        true
    }

    /// Looks whether the first bytes are an opening mark.
    fn begin(&mut self) {
        let text = String::from_utf8_lossy(&self.recent);
        let (text, open) = (text.trim_start(), self.thinking.format.open);
        if text.starts_with(open) {
            self.state = State::Within;
            self.recent.clear();
        } else if !open.starts_with(text) {
            self.state = State::Behind;
        }
    }

    fn is_closed(&self) -> bool {
        let close = self.thinking.format.close.as_bytes();
        self.recent.windows(close.len()).any(|bytes| bytes == close)
    }

    /// Ends the thought when it is as long as it may be.
    fn check_length(&mut self) {
        let is_long = self.thinking.n_tokens_max.is_some_and(|n_max| self.n_tokens >= n_max);
        if self.state == State::Within && is_long && self.forced.is_empty() {
            self.forced = self.close.iter().rev().copied().collect();
        }
    }
}
