//! SentencePiece by score: of all neighbours that make a token together, those with the best score merge first.

use std::cell::RefCell;

use super::merge::{Merger, Symbol};
use super::vocab::Vocab;
use crate::error::{TextError, TextErrorKind};

/// What SentencePiece needs beside the vocabulary.
pub(super) struct Spm {
    byte_tokens: Vec<Option<u32>>,
    /// Scores as integers in the same order.
    ranks: Vec<u32>,
}

impl Spm {
    /// Prepares for a vocabulary.
    pub(super) fn new(vocab: &Vocab) -> Spm {
        let ranks = match vocab.scores.is_empty() {
            true => vec![0; vocab.n_tokens as usize],
            false => vocab.scores[..vocab.n_tokens as usize].iter().map(|&score| rank(score)).collect(),
        };
        Spm { byte_tokens: byte_tokens(vocab), ranks }
    }

    /// Appends the tokens of a text, after a space if `space_first`.
    ///
    /// # Errors
    /// A byte without a token in a vocabulary without an unknown token.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &str,
        space_first: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), TextError> {
        thread_local!(static MERGER: RefCell<Merger> = RefCell::default());
        let text = [if space_first { "▁" } else { "" }, &text.replace(' ', "▁")].concat();
        let bytes = text.as_bytes();
        MERGER.with_borrow_mut(|merger| {
            merger.clear();
            let mut utf8 = [0; 4];
            for c in text.chars() {
                let id = vocab.id(c.encode_utf8(&mut utf8).as_bytes());
                merger.push(id.unwrap_or(Symbol::UNKNOWN), c.len_utf8());
            }
            let find = |left: &Symbol, right: &Symbol| {
                let both = left.range().start..right.range().end;
                let id = Some(both)
                    .filter(|both| both.len() <= vocab.max_token_bytes)
                    .and_then(|both| vocab.id(&bytes[both]))?;
                Some((self.ranks[id as usize], id))
            };
            for symbol in merger.merge(find) {
                if symbol.id != Symbol::UNKNOWN {
                    out.push(symbol.id);
                    continue;
                }
                for &byte in &bytes[symbol.range()] {
                    let id = self.byte_tokens[byte as usize].or(vocab.special.unk);
                    out.push(id.ok_or_else(|| no_token(byte))?);
                }
            }
            Ok(())
        })
    }
}

fn no_token(byte: u8) -> TextError {
    let line = format!("the vocabulary has no token for byte 0x{byte:02X} and no unknown token");
    TextError::new(TextErrorKind::Model, line)
}

/// Returns an integer that orders like the score.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// Returns the tokens `<0x00>` … `<0xFF>`, or where one is missing the token that is the byte itself.
pub(super) fn byte_tokens(vocab: &Vocab) -> Vec<Option<u32>> {
    let token = |byte: u8| vocab.id(format!("<0x{byte:02X}>").as_bytes()).or_else(|| vocab.id(&[byte]));
    (0..=255).map(token).collect()
}

/// Returns the byte of a token like `<0x0A>`.
pub(super) fn byte_of(text: &str) -> Option<u8> {
    u8::from_str_radix(text.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_order_like_scores() {
        let scores = [f32::NEG_INFINITY, -1e9, -2.5, -1.0, 0.0, 1e-30, 3.0, f32::INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(-0.0), rank(0.0));
    }

    #[test]
    fn byte_tokens_are_read() {
        assert_eq!(
            (byte_of("<0x0A>"), byte_of("<0xff>"), byte_of("<0x>"), byte_of("a")),
            (Some(10), Some(255), None, None)
        );
    }
}
