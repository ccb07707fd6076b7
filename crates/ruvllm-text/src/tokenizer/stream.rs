//! Decoding tokens that come one by one, without ever showing half a character.

use std::borrow::Borrow;

use super::Tokenizer;

/// Turns tokens into text as they come. The texts together, with that of [`DecodeStream::finish`], are what
/// [`Tokenizer::decode`] gives for the same tokens. `T` is a reference to the tokenizer or an `Arc` of it.
#[derive(Debug)]
pub struct DecodeStream<T: Borrow<Tokenizer>> {
    tokenizer: T,
    render_special: bool,
    strip_space: bool,
    /// The start of a character whose end has not come yet, at most 3 bytes.
    pending: Vec<u8>,
}

impl<T: Borrow<Tokenizer>> DecodeStream<T> {
    /// Decodes a text from its first token on; see [`Tokenizer::stream`].
    pub fn from_start(tokenizer: T) -> DecodeStream<T> {
        let strip_space = tokenizer.borrow().strips_space();
        DecodeStream::new(tokenizer, strip_space)
    }

    /// Decodes the continuation of a text; see [`Tokenizer::stream_continuing`].
    pub fn continuing(tokenizer: T) -> DecodeStream<T> {
        DecodeStream::new(tokenizer, false)
    }

    fn new(tokenizer: T, strip_space: bool) -> DecodeStream<T> {
        DecodeStream { tokenizer, render_special: false, strip_space, pending: Vec::new() }
    }

    /// Writes control tokens as their text, or not (the start).
    pub fn render_special(mut self, render_special: bool) -> DecodeStream<T> {
        self.render_special = render_special;
        self
    }

    /// Takes a token and returns the text that is certain now: `None` where that is nothing. Bytes that can no longer
    /// become a character give U+FFFD.
    pub fn push(&mut self, id: u32) -> Option<String> {
        self.push_as(id, self.render_special)
    }

    /// Pushes a token whose text is written or not, whatever was said about others.
    pub fn push_as(&mut self, id: u32, render_special: bool) -> Option<String> {
        let piece = self.tokenizer.borrow().piece(id, render_special);
        let strip = std::mem::take(&mut self.strip_space) && piece.first() == Some(&b' ');
        self.pending.extend_from_slice(&piece[usize::from(strip)..]);
        let n_certain = self.pending.len() - unfinished(&self.pending);
        let text = String::from_utf8_lossy(&self.pending[..n_certain]).into_owned();
        self.pending.drain(..n_certain);
        Some(text).filter(|text| !text.is_empty())
    }

    /// Returns what is left: U+FFFD for a character that was never finished.
    pub fn finish(&mut self) -> Option<String> {
        Some(String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()).filter(|text| !text.is_empty())
    }
}

/// Returns the length of an unfinished character at the end, 0 to 3.
fn unfinished(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    let starts = (0..tail.len()).filter(|&start| tail[start] >= 0xC0);
    let unfinished = |start: &usize| match std::str::from_utf8(&tail[*start..]) {
        Ok(_) => false,
        Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
    };
    starts.into_iter().find(unfinished).map_or(0, |start| tail.len() - start)
}
